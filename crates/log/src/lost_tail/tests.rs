//! Tests with segments of an image that lost power, written one by one.

use flowstone_log_format::{Codec, Incarnation};
use flowstone_log_store::Reader;
use flowstone_log_store::segments::Segment;
use flowstone_sim::{Call, Fault, SimDisk};

use super::*;
use crate::corrupter::Corrupter;
use crate::fuzzing::{Left, small_image};

const SHAPE: Shape = Shape { segment_blocks: 64, reserve_percent: 20, streams: 1 };
const SEGMENTS: u32 = 8;
const SEGMENT: SegmentId = SegmentId::new(3);

/// A disk whose log was replayed up to record 5.
struct Disk {
    disk: SimDisk,
    segments: SegmentTable,
    codec: Codec,
}

impl Disk {
    fn new() -> Self {
        let disk = SimDisk::new(u64::from(SEGMENTS) * SHAPE.segment_bytes());
        let segments = SegmentTable::new(SHAPE, SEGMENTS, 1);
        Self { disk, segments, codec: Codec::new(&[7; 16]) }
    }

    /// Writes the header of a record that states `durable`.
    fn put(&self, block: u32, kind: Kind, durable: u64) {
        let header = Header {
            incarnation: Incarnation::new(1, 9),
            sequence: Sequence::new(10),
            durable: Sequence::new(durable),
            generation: 0,
            position: block,
            kind,
            payload_blocks: 0,
            link: 0,
        };
        let mut bytes = [0; BLOCK_BYTES];
        self.codec.encode(&header, &[], &mut bytes);
        self.disk.write_at(SHAPE.address(SEGMENT, block).offset().get(), &bytes);
    }

    fn make_unreadable(&self, block: u32) {
        let start = SHAPE.address(SEGMENT, block).offset().get();
        let place = start..start + BLOCK_BYTES as u64;
        self.disk.inject(Fault::fail(Errno::IO).on(Call::Read).within(place).always());
    }

    /// Returns the damage found, if records state more to be durable than was replayed.
    fn lost(&self) -> Option<String> {
        let mut superblock = Corrupter::new(small_image(Left::Closed).to_vec()).superblock();
        superblock.clean = false;
        let replay = Replay { next_sequence: Sequence::new(5), ..Replay::default() };
        let mut reader = Reader::open(&self.disk).unwrap();
        let mut medium =
            Medium { reader: &mut reader, shape: SHAPE, codec: self.codec, progress: None };
        medium.find_lost_tail(&superblock, &replay, &self.segments).unwrap().map(|flaw| flaw.what)
    }
}

#[test]
fn a_later_record_proves_a_loss_if_it_promises_what_was_not_replayed() {
    for (kind, durable, is_loss) in [
        (Kind::Writes, 5, false),
        (Kind::Writes, 6, true),
        // `durable` in records of copies proves nothing.
        (Kind::Relocated, 6, false),
        (Kind::Seal, 6, false),
    ] {
        for behind in [None, Some(1)] {
            let mut disk = Disk::new();
            disk.put(0, Kind::Writes, 5);
            disk.put(behind.unwrap_or(0), kind, durable);
            let found = disk.lost();
            assert_eq!(found.is_some(), is_loss, "{kind:?} {durable} {behind:?}: {found:?}");
            let replayed = Segment { pinned: true, ..Segment::default() };
            disk.segments.set(SEGMENT, replayed);
            assert_eq!(disk.lost(), None, "{kind:?} {durable}");
        }
    }
}

#[test]
fn all_blocks_are_asked_for_promises_where_one_cannot_be_read() {
    for (kind, at, is_loss) in [
        (Kind::Writes, 0, true),
        (Kind::Writes, 40, true),
        (Kind::Writes, 63, true),
        (Kind::Relocated, 0, false),
        (Kind::Seal, 63, false),
    ] {
        for bad in [0, 1] {
            let disk = Disk::new();
            disk.put(0, Kind::Writes, 5);
            disk.put(at, kind, 9);
            disk.make_unreadable(bad);
            let found = disk.lost();
            let expected = is_loss && bad != at;
            assert_eq!(found.is_some(), expected, "{kind:?} at {at}, {bad} is bad: {found:?}");
            assert!(found.is_none_or(|it| it.contains("before record 9 was durable")));
        }
    }
}
