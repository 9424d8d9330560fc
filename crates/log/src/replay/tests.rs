//! Tests of the segments and streams after replay, without a whole image.

use flowstone_log_format::{BLOCK_BYTES, Incarnation};
use flowstone_sim::SimDisk;

use super::*;
use crate::corrupter::Corrupter;
use crate::fuzzing::{Left, small_image};

const SHAPE: Shape = Shape { segment_blocks: 64, reserve_percent: 20, streams: 1 };

/// Otherwise it would be overwritten before the next checkpoint, or appended to.
#[test]
fn a_segment_that_replay_reads_is_sealed_and_pinned_in_its_present_use() {
    let mut segments = SegmentTable::new(SHAPE, 8, 1);
    let segment = SegmentId::new(3);
    let incarnation = Incarnation::new(1, 9);
    segments.set(segment, Segment { live: 5, birth: 7, sealed: 8, ..Segment::default() });
    let cursor = Cursor::new(LIFETIME_COLD, HeadPlace { incarnation, segment, block: 2 });
    note_segment(&mut segments, &cursor);
    let Segment { state, lifetime, pinned, incarnation: noted, live, birth, sealed, damaged, died } =
        segments.get(segment);
    assert_eq!((state, lifetime, pinned), (State::Sealed, LIFETIME_COLD, true));
    assert_eq!((noted, live, birth, sealed, damaged, died), (incarnation, 5, 7, 8, false, 0));
}

#[test]
fn an_image_that_was_closed_goes_on_where_its_superblock_says() {
    let superblock = Corrupter::new(small_image(Left::Closed).to_vec()).superblock();
    let replay = Replay::nothing(&superblock);
    assert!(superblock.next_sequence > Sequence::FIRST);
    assert_eq!(replay.next_sequence, superblock.next_sequence);
    assert!(!replay.heads[0].incarnation.is_none());
    assert_eq!(replay.heads, superblock.heads[..STREAMS_MAX]);
    assert_eq!((replay.records, replay.blocks, replay.damage), (0, 0, None));
}

/// A log that is written record by record, behind a checkpoint before record 10.
struct Log {
    disk: SimDisk,
    superblock: Superblock,
    map: BlockMap,
    segments: SegmentTable,
}

const SEGMENTS: u32 = 16;
const BLOCKS: u64 = 100;
const GUESTS: HeadPlace =
    HeadPlace { incarnation: Incarnation::new(1, 1), segment: SegmentId::new(1), block: 0 };
const COPIES: HeadPlace =
    HeadPlace { incarnation: Incarnation::new(1, 2), segment: SegmentId::new(2), block: 0 };

/// A record without the fields that follow from its place.
#[derive(Clone, Copy)]
struct Draft<'a> {
    sequence: u64,
    durable: u64,
    entries: &'a [Entry],
}

impl Log {
    fn new() -> Self {
        let mut superblock = Corrupter::new(small_image(Left::Closed).to_vec()).superblock();
        superblock.clean = false;
        superblock.capacity_sectors = BLOCKS * 8;
        (superblock.segments, superblock.generation) = (SEGMENTS, 5);
        superblock.next_sequence = Sequence::new(10);
        superblock.heads = Default::default();
        superblock.heads[0] = GUESTS;
        superblock.heads[usize::from(LIFETIME_CLEANED)] = COPIES;
        let disk = SimDisk::new(u64::from(SEGMENTS) * SHAPE.segment_bytes());
        let segments = SegmentTable::new(SHAPE, SEGMENTS, 1);
        Self { disk, superblock, map: BlockMap::default(), segments }
    }

    fn header(place: HeadPlace, kind: Kind, draft: Draft<'_>) -> Header {
        Header {
            incarnation: place.incarnation,
            sequence: Sequence::new(draft.sequence),
            durable: Sequence::new(draft.durable),
            generation: 5,
            position: place.block,
            kind,
            payload_blocks: draft.entries.iter().map(|entry| entry.payload_blocks()).sum(),
            link: 0,
        }
    }

    /// Writes a header, followed by blocks that all hold the same.
    fn put(&self, place: HeadPlace, header: Header, entries: &[Entry]) {
        let mut bytes = vec![VALUE; BLOCK_BYTES * header.record_blocks() as usize];
        let codec = Codec::new(&self.superblock.identity);
        codec.encode(&header, entries, &mut bytes[..BLOCK_BYTES]);
        let at = SHAPE.address(place.segment, place.block);
        self.disk.write_at(at.offset().get(), &bytes);
    }

    fn write(&self, block: u32, sequence: u64, entries: &[Entry]) {
        let place = HeadPlace { block, ..GUESTS };
        let draft = Draft { sequence, durable: 10, entries };
        self.put(place, Self::header(place, Kind::Writes, draft), entries);
    }

    fn copy(&self, block: u32, link: u64, draft: Draft<'_>) {
        let place = HeadPlace { block, ..COPIES };
        let header = Header { link, ..Self::header(place, Kind::Relocated, draft) };
        self.put(place, header, draft.entries);
    }

    fn replay(&mut self) -> Replay {
        let mut reader = Reader::open(&self.disk).unwrap();
        let codec = Codec::new(&self.superblock.identity);
        let Self { superblock, map, segments, .. } = self;
        let mut medium = Medium { reader: &mut reader, shape: SHAPE, codec, progress: None };
        replay(&mut medium, superblock, map, segments).unwrap()
    }

    /// Returns the mapped location of a block: segment and block.
    fn place(&self, lba: u64) -> Option<(u32, u32)> {
        let entry = self.map.get(lba);
        let address = entry.address().get();
        entry.is_mapped().then_some((address / 64, address % 64))
    }
}

const VALUE: u8 = 7;

fn checksum() -> u32 {
    crc32c::crc32c(&[VALUE; BLOCK_BYTES])
}

fn data(lba: u64) -> Entry {
    Entry::Data { lba, checksum: checksum() }
}

fn moved(lba: u64, segment: u32, block: u32) -> Entry {
    let from = SHAPE.address(SegmentId::new(segment), block);
    Entry::Moved { lba, from, checksum: checksum() }
}

#[test]
fn records_are_applied_and_counted_up_to_the_first_that_is_missing() {
    let mut log = Log::new();
    log.write(0, 10, &[data(1), data(2)]);
    log.write(3, 11, &[Entry::Trim { lba: 1, count: 1 }]);
    log.write(4, 12, &[data(BLOCKS - 1)]);
    log.write(6, 14, &[data(1)]);
    let found = log.replay();
    assert_eq!([1, 2, BLOCKS - 1].map(|lba| log.place(lba)), [None, Some((1, 2)), Some((1, 5))]);
    assert_eq!(found.next_sequence, Sequence::new(13));
    assert_eq!((found.records, found.blocks, found.guest_blocks), (3, 6, 3));
    assert_eq!(found.heads[0], HeadPlace { block: 6, ..GUESTS });
    assert_eq!((found.damage, found.is_stale), (None, false));
}

#[test]
fn a_record_that_is_not_whole_or_belongs_elsewhere_is_the_end() {
    let entries = [data(2)];
    let sound =
        Log::header(GUESTS, Kind::Writes, Draft { sequence: 10, durable: 10, entries: &entries });
    let bad = |lba, checksum| vec![Entry::Data { lba, checksum }];
    let cases = [
        ("sound", sound, entries.to_vec()),
        ("data", sound, bad(2, 1)),
        ("beyond the disk", sound, bad(BLOCKS, checksum())),
        (
            "a trim beyond the disk",
            Header { payload_blocks: 0, ..sound },
            vec![Entry::Trim { lba: BLOCKS - 1, count: 2 }],
        ),
        ("another use", Header { incarnation: COPIES.incarnation, ..sound }, entries.to_vec()),
        ("misdirected", Header { position: 1, ..sound }, entries.to_vec()),
        ("later", Header { sequence: Sequence::new(11), ..sound }, entries.to_vec()),
        ("earlier", Header { sequence: Sequence::new(9), ..sound }, entries.to_vec()),
        ("copies", Header { kind: Kind::Relocated, ..sound }, entries.to_vec()),
        ("a map", Header { kind: Kind::Map, ..sound }, entries.to_vec()),
    ];
    for (name, header, entries) in cases {
        let mut log = Log::new();
        log.put(GUESTS, header, &entries);
        let found = log.replay();
        assert_eq!(found.records, u64::from(name == "sound"), "{name}");
        assert_eq!(log.map.mapped(), u64::from(name == "sound"), "{name}");
        assert_eq!(found.damage, None, "{name}");
    }
}

#[test]
fn a_record_made_after_a_newer_checkpoint_proves_that_its_superblock_is_lost() {
    for (generation, of_copies, is_stale) in
        [(5, false, false), (4, false, false), (6, false, true), (6, true, false)]
    {
        let mut log = Log::new();
        let place = if of_copies { COPIES } else { GUESTS };
        let kind = if of_copies { Kind::Relocated } else { Kind::Writes };
        let draft = Draft { sequence: 10, durable: 10, entries: &[] };
        let header = Header { generation, ..Log::header(place, kind, draft) };
        log.put(place, header, &[]);
        let found = log.replay();
        assert_eq!((found.is_stale, found.damage.is_some()), (is_stale, is_stale), "{generation}");
    }
}

/// The target of the seal is the head from then on, with a record there or without.
#[test]
fn a_seal_leads_to_the_next_segment_and_not_outside_the_image() {
    let last = SEGMENTS - 1;
    for (segment, is_empty, is_sound) in [
        (4, false, true),
        (4, true, true),
        (last, false, true),
        (SEGMENTS, true, false),
        (0, true, false),
    ] {
        let mut log = Log::new();
        log.write(0, 10, &[data(1)]);
        let incarnation = Incarnation::new(1, 5);
        let next = HeadPlace { incarnation, segment: SegmentId::new(segment), block: 0 };
        let place = HeadPlace { block: 2, ..GUESTS };
        let entries = [Entry::Next { incarnation }];
        let header =
            Log::header(place, Kind::Seal, Draft { sequence: 11, durable: 10, entries: &entries });
        log.put(place, Header { link: segment.into(), ..header }, &entries);
        if !is_empty {
            let entries = [data(2)];
            let draft = Draft { sequence: 12, durable: 10, entries: &entries };
            log.put(next, Log::header(next, Kind::Writes, draft), &entries);
        }
        let found = log.replay();
        assert_eq!(found.damage.is_none(), is_sound, "{segment}: {found:?}");
        if is_sound {
            assert_eq!(log.place(2), (!is_empty).then_some((segment, 1)));
            assert_eq!(found.heads[0], HeadPlace { block: if is_empty { 0 } else { 2 }, ..next });
            let Segment { pinned, incarnation: noted, .. } = log.segments.get(next.segment);
            assert_eq!((pinned, noted), (true, incarnation));
        }
    }
}

/// The copy of record 12 is applied only after that record, although it is first in its stream.
#[test]
fn blocks_move_to_their_copies_if_they_are_where_they_were_copied_from() {
    let mut log = Log::new();
    log.write(0, 10, &[data(1), data(2)]);
    log.write(3, 11, &[data(3), data(4)]);
    log.write(6, 12, &[data(3)]);
    let one = [moved(1, 1, 1), moved(2, 1, 2), moved(4, 1, 5)];
    log.copy(0, 1, Draft { sequence: 1, durable: 12, entries: &one });
    let two = [moved(3, 1, 4)];
    log.copy(4, 1, Draft { sequence: 2, durable: 12, entries: &two });
    let three = [moved(3, 1, 7)];
    log.copy(6, 1, Draft { sequence: 3, durable: 13, entries: &three });
    // Copies from several segments, and records that an earlier use of the segment has left.
    let rest = [moved(2, 2, 2)];
    log.copy(8, 0, Draft { sequence: 4, durable: 13, entries: &rest });
    log.copy(10, 1, Draft { sequence: 4, durable: 13, entries: &rest });
    let found = log.replay();
    assert_eq!((found.records, found.blocks, found.guest_blocks), (7, 18, 5));
    assert_eq!([1, 2, 4].map(|lba| log.place(lba)), [Some((2, 1)), Some((2, 2)), Some((2, 3))]);
    assert_eq!(log.place(3), Some((2, 7)));
}

#[test]
fn a_record_behind_the_end_that_knows_it_to_be_durable_proves_a_loss() {
    let sound = Draft { sequence: 15, durable: 12, entries: &[] };
    let cases = [
        ("a promise", 6, GUESTS.incarnation, sound, true),
        ("in the last block", 63, GUESTS.incarnation, sound, true),
        ("no promise", 6, GUESTS.incarnation, Draft { durable: 11, ..sound }, false),
        ("another use", 6, COPIES.incarnation, sound, false),
        ("an earlier record", 6, GUESTS.incarnation, Draft { sequence: 10, ..sound }, false),
    ];
    for (name, block, incarnation, draft, is_loss) in cases {
        for position in [block, 5] {
            let mut log = Log::new();
            log.write(0, 10, &[]);
            let place = HeadPlace { incarnation, block, ..GUESTS };
            let header = Header { position, ..Log::header(place, Kind::Writes, draft) };
            log.put(place, header, &[]);
            let found = log.replay();
            let expected = is_loss && position == block;
            assert_eq!(found.damage.is_some(), expected, "{name}, {position}: {found:?}");
            assert!(!found.is_stale);
        }
    }
}
