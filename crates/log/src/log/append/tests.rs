//! Tests of the append state alone: sequence numbers and places, without a file.

use std::time::Instant;

use flowstone_block::{Reactor, SectorCount};
use flowstone_log_format::{BLOCK_SECTORS, Header};
use flowstone_log_store::segments::{Segment, State};

use super::*;
use crate::log::reserve::{Demand, Reserve};
use crate::volume::map::{BlockMap, LEAF_BLOCKS};

/// The host was full just now.
fn just_now(errno: Errno) -> Full {
    Full { errno, at: Instant::now() }
}

const SHAPE: Shape = Shape { segment_blocks: 64, reserve_percent: 20, streams: 1 };
const BLOCKS: u64 = 4000;

/// An append state with one head, and an owner of records.
struct Log {
    state: AppendState,
    volume: Volume,
    owner: Arc<QueueWaker>,
    effects: Effects,
}

fn volume_of(blocks: u64) -> Volume {
    Volume::new(SectorCount::new(blocks * BLOCK_SECTORS), BlockMap::default())
}

impl Log {
    /// With `segments` segments besides segment 0, one of which is the head.
    fn with_segments(segments: u32) -> Self {
        let mut table = SegmentTable::new(SHAPE, segments + 1, 1);
        while let Some(free) = table.take_free() {
            table.make_ready(free);
        }
        let mut state = AppendState::new(SHAPE, table, Sequence::FIRST);
        let (segment, incarnation) = state.segments.open(0).unwrap();
        let place = HeadPlace { incarnation, segment, block: 0 };
        state.heads[0] = Head { place, has_space: true, for_trims: false };
        let owner = QueueWaker::new(&Reactor::new().unwrap());
        Self { state, volume: volume_of(BLOCKS), owner, effects: Effects::default() }
    }

    fn new() -> Self {
        Self::with_segments(60)
    }

    fn try_place(&mut self, entries: &[Entry]) -> Result<Place, PlaceError> {
        let payload_blocks = entries.iter().map(|entry| entry.payload_blocks()).sum();
        let only_trims = payload_blocks == 0;
        let draft = Draft { stream: 0, entries, payload_blocks, expected: &[], only_trims };
        let Self { state, volume, owner, effects } = self;
        state.place(&draft, volume, owner, effects)
    }

    fn place(&mut self, entries: &[Entry]) -> Place {
        self.try_place(entries).unwrap()
    }

    fn written(&mut self, placed: &Place, succeeded: bool) {
        let Self { state, volume, effects, .. } = self;
        if let Some((seal, _)) = &placed.seal {
            state.written(seal.header.sequence, succeeded, &volume.map, effects);
        }
        state.written(placed.record.header.sequence, succeeded, &volume.map, effects);
    }

    /// Appends and commits.
    fn append(&mut self, entries: &[Entry]) -> Place {
        let placed = self.place(entries);
        self.written(&placed, true);
        placed
    }

    fn demand(&self, in_flight: u64, replaces: bool) -> Reserve {
        let segments = &self.state.segments;
        Reserve::of(&Demand {
            shape: SHAPE,
            changed_leaves: self.volume.map.changed_count().into(),
            leaves: self.volume.map.leaf_count().into(),
            disk_leaves: self.volume.leaves(),
            open_for_data: segments.open_for_data() + u32::from(!replaces),
            in_flight,
            used: segments.used(),
            map_segments: segments.used_for_maps(),
        })
    }
}

fn data(blocks: Range<u64>) -> Vec<Entry> {
    blocks.map(|lba| Entry::Data { lba, checksum: 1 }).collect()
}

fn trim(lba: u64, count: u32) -> [Entry; 1] {
    [Entry::Trim { lba, count }]
}

#[test]
fn reserves_count_what_is_in_flight_and_the_segment_to_be_opened() {
    let mut log = Log::new();
    // A disk so large that each entry may change another leaf.
    log.volume = volume_of(LEAF_BLOCKS << 20);
    log.place(&data(0..3));
    log.place(&data(10..14));
    for replaces in [true, false] {
        assert_eq!(log.state.reserve(&log.volume, replaces), log.demand(7, replaces));
    }
    let [one_head, two_heads] =
        [true, false].map(|replaces| log.state.reserve(&log.volume, replaces));
    assert_eq!(two_heads.leaves - one_head.leaves, u64::from(SHAPE.segment_blocks));
    assert_eq!(log.state.kept_from_writes(&log.volume), one_head.left_by(Opener::Write));
    log.state.heads[0].for_trims = true;
    assert_eq!(log.state.trim_heads(), 1);
    assert_eq!(log.state.kept_from_writes(&log.volume), one_head.left_by(Opener::Write) - 1);
}

#[test]
fn records_follow_each_other_and_say_where_they_are() {
    let mut log = Log::new();
    (log.state.durable, log.state.generation) = (Sequence::new(7), 3);
    let first = log.place(&data(0..3));
    assert!(
        log.effects.wake_maintenance && log.state.accounting.has_changed(),
        "the first change since a checkpoint"
    );
    log.effects = Effects::default();
    let second = log.place(&trim(100, 50));
    assert!(!log.effects.wake_maintenance);
    let head = log.state.heads[0].place;
    for (placed, block, payload) in [(first, 0, 3), (second, 4, 0)] {
        assert!(placed.seal.is_none());
        assert_eq!(placed.record.address, SHAPE.address(head.segment, block));
        let Header { incarnation, durable, generation, position, payload_blocks, .. } =
            placed.record.header;
        assert_eq!((incarnation, position, payload_blocks), (head.incarnation, block, payload));
        assert_eq!((durable, generation), (Sequence::new(7), 3));
    }
    assert_eq!(second.record.header.sequence, first.record.header.sequence.next());
    assert_eq!(log.state.next_sequence(), second.record.header.sequence.next());
    assert_eq!((head.block, log.state.accounting.since_checkpoint()), (5, 5));
    assert_eq!(log.state.accounting.totals().appended_blocks, 5);
}

/// The last block of a segment is for its seal: a record goes there only if one is left behind it.
#[test]
fn a_record_that_leaves_no_block_for_the_seal_goes_into_the_next_segment() {
    let mut log = Log::new();
    let old = log.state.heads[0].place;
    let room = SHAPE.segment_blocks - 1;
    log.append(&data(0..u64::from(room) - 2));
    let fits = log.append(&trim(0, 1));
    assert!(fits.seal.is_none());
    assert_eq!(log.state.heads[0].place.block, room);
    log.effects = Effects::default();
    let next = log.place(&data(100..101));
    assert!(log.effects.wake_maintenance, "a ready segment has been used");
    let (Placed { header, address }, entry) = next.seal.unwrap();
    let new = log.state.heads[0].place;
    assert_ne!(new.segment, old.segment);
    assert_eq!(address, SHAPE.address(old.segment, room));
    assert_eq!((header.kind, header.position, header.payload_blocks), (Kind::Seal, room, 0));
    assert_eq!(header.incarnation, old.incarnation);
    assert_eq!(header.link, u64::from(new.segment.get()));
    assert_eq!(entry, Entry::Next { incarnation: new.incarnation });
    assert_eq!(next.record.header.sequence, header.sequence.next());
    assert_eq!(next.record.address, SHAPE.address(new.segment, 0));
    assert_eq!(log.state.accounting.totals().appended_blocks, u64::from(room) + 3);
    // Until both have committed, the heads are at the place of the seal.
    assert_eq!(log.state.committed_heads()[0], HeadPlace { block: room, ..old });
    log.written(&next, true);
    assert_eq!(log.state.committed_heads()[0], HeadPlace { block: 2, ..new });
    assert_eq!(log.state.segments.get(old.segment).state, State::Sealed);
}

#[test]
fn records_commit_in_order_and_wake_their_owners() {
    let mut log = Log::new();
    let [first, second, third] = [0, 1, 2].map(|lba| log.place(&data(lba..lba + 1)));
    log.written(&second, true);
    assert_eq!(log.state.committed(), first.record.header.sequence);
    assert!(log.effects.wake.is_empty() && log.volume.map.mapped() == 0);
    log.written(&first, true);
    assert_eq!(log.state.committed(), third.record.header.sequence);
    assert_eq!(
        (log.effects.wake.len(), log.volume.map.mapped(), log.state.accounting.clock()),
        (2, 2, 2)
    );
    assert_eq!(log.state.segments.get(log.state.heads[0].place.segment).live, 2);
    log.written(&third, true);
    assert_eq!(
        (log.effects.wake.len(), log.volume.map.mapped(), log.state.accounting.clock()),
        (3, 3, 3)
    );
}

/// The maintenance worker sleeps longer while nothing is dead.
#[test]
fn the_first_segment_that_dies_wakes_the_maintenance_worker_and_no_other_commit_does() {
    let mut log = Log::new();
    log.append(&data(0..62));
    log.append(&data(100..158)); // in the next segment
    let mut wakes = |entries: &[Entry]| {
        log.effects = Effects::default();
        log.append(entries);
        log.effects.wake_maintenance
    };
    assert!(!wakes(&data(1..2)) && !wakes(&trim(0, 61)), "one block is left");
    assert!(wakes(&trim(61, 1)));
    assert!(wakes(&data(200..201)), "a segment has been opened");
    assert!(!wakes(&trim(0, 160)), "one was dead already");
    assert_eq!(log.state.segments.dead().0, 2);
}

#[test]
fn what_a_record_in_flight_says_is_in_flight_until_it_commits() {
    let mut log = Log::new();
    let placed = [log.place(&data(10..12)), log.place(&trim(20, 5))];
    let in_flight = |log: &Log| -> Vec<u64> {
        (0..30).filter(|lba| log.state.order.mentions_any(*lba..lba + 1)).collect()
    };
    assert_eq!(in_flight(&log), [10, 11, 20, 21, 22, 23, 24]);
    let any = |log: &Log, range| log.state.is_any_in_flight(range);
    for (range, expected) in
        [(0..10, false), (0..11, true), (12..20, false), (24..30, true), (25..30, false)]
    {
        assert_eq!(any(&log, range.clone()), expected, "{range:?}");
    }
    log.written(&placed[0], true);
    assert_eq!(in_flight(&log), [20, 21, 22, 23, 24]);
    log.written(&placed[1], true);
    assert!(in_flight(&log).is_empty() && !any(&log, 0..30));
}

/// The rest of the block is about to change: the owner is told when, and retries.
#[test]
fn a_write_to_a_part_of_a_block_waits_for_the_record_that_changes_it() {
    let mut log = Log::new();
    let before = log.place(&data(5..6));
    let expected = [(5, MapEntry::default())];
    let entries = data(5..6);
    let draft = Draft {
        stream: 0,
        entries: &entries,
        payload_blocks: 1,
        expected: &expected,
        only_trims: false,
    };
    let other = QueueWaker::new(&Reactor::new().unwrap());
    let place = |log: &mut Log, draft: &Draft<'_>| {
        log.state.place(draft, &log.volume, &other, &mut log.effects).map(|_| ())
    };
    let committed = Some(log.state.committed());
    assert_eq!(place(&mut log, &draft), Err(PlaceError::Stale { lba: 5, in_flight: committed }));
    log.written(&before, true);
    assert_eq!(log.effects.wake.len(), 2, "the owner of the record, and who waited for it");
    assert!(Arc::ptr_eq(&log.effects.wake[1], &other));
    assert_eq!(place(&mut log, &draft), Err(PlaceError::Stale { lba: 5, in_flight: None }));
    let now = [(5, log.volume.map.get(5))];
    assert_eq!(place(&mut log, &Draft { expected: &now, ..draft }), Ok(()));
}

#[test]
fn nothing_beyond_the_end_of_the_disk_gets_into_the_log() {
    let mut log = Log::new();
    assert!(log.try_place(&data(BLOCKS - 1..BLOCKS)).is_ok());
    let stale = |lba| Err(PlaceError::Stale { lba, in_flight: None });
    assert_eq!(log.try_place(&data(BLOCKS..BLOCKS + 1)).map(|_| ()), stale(BLOCKS));
    assert_eq!(log.try_place(&trim(BLOCKS - 2, 3)).map(|_| ()), stale(BLOCKS - 2));
}

/// Trims free space: they do not wait for copies.
#[test]
fn trims_do_not_pay_for_cleaning() {
    let mut log = Log::new();
    log.state.rate.set_room(0, 4 * u64::from(SHAPE.segment_blocks));
    log.append(&data(0..3));
    log.state.rate.begin();
    assert_eq!(log.try_place(&data(3..4)).unwrap_err(), PlaceError::Wait);
    assert!(log.state.rate.is_holding());
    log.append(&trim(0, 2));
    assert!(log.state.rate.end());
    log.append(&data(3..4));
}

/// Trims may open segments that writes must leave. A head that they have opened takes no writes
/// until there is room, and is found again when the image is opened.
#[test]
fn a_head_that_trims_opened_is_for_trims_until_there_is_room() {
    let mut log = Log::new();
    let kept = log.state.reserve(&log.volume, true).left_by(Opener::Write);
    while log.state.segments.ready() > kept {
        log.state.segments.open(1);
    }
    assert!(!log.state.may_open_head(Opener::Write, &log.volume));
    assert!(log.state.may_open_head(Opener::Trim, &log.volume));
    log.state.heads[0].place.block = SHAPE.segment_blocks - 1;
    assert_eq!(log.try_place(&data(0..1)).map(|_| ()), Err(PlaceError::Wait));
    assert!(log.state.writes.starved && !log.state.trims.starved && log.state.wants_room());
    assert!(log.append(&trim(0, 1)).seal.is_some());
    assert!(log.state.heads[0].for_trims);
    assert_eq!(log.try_place(&data(0..1)).map(|_| ()), Err(PlaceError::Wait));
    assert!(log.append(&trim(0, 1)).seal.is_none(), "trims go on in it");
    // As after a restart.
    log.state.heads[0].for_trims = false;
    log.state.find_trim_heads(&log.volume);
    assert!(log.state.heads[0].for_trims);
    let head = log.state.heads[0].place.segment;
    log.state.segments.gain(head, 1);
    log.state.find_trim_heads(&log.volume);
    assert!(!log.state.heads[0].for_trims, "something lives in it");
    // There is room again.
    let live = Segment { live: 0, ..log.state.segments.get(head) };
    log.state.segments.set(head, live);
    log.state.find_trim_heads(&log.volume);
    while !log.state.segments.move_limit(200) {}
    while let Some(free) = log.state.segments.take_free() {
        log.state.segments.make_ready(free);
    }
    assert!(log.append(&data(0..1)).seal.is_none());
    assert!(!log.state.heads[0].for_trims);
}

#[test]
fn a_host_that_was_full_just_now_is_full_and_later_it_is_asked_again() {
    let mut log = Log::new();
    log.state.heads[0].has_space = false;
    assert_eq!(log.try_place(&data(0..1)).map(|_| ()), Err(PlaceError::Wait));
    assert!(log.effects.wake_maintenance);
    log.state.writes.full = Some(just_now(Errno::NOSPC));
    assert_eq!(log.try_place(&data(0..1)).map(|_| ()), Err(PlaceError::Full(Errno::NOSPC)));
    // Trims are tried independently.
    assert_eq!(log.try_place(&trim(0, 1)).map(|_| ()), Err(PlaceError::Wait));
    let long_ago = Instant::now().checked_sub(2 * FULL_RETRY).unwrap();
    log.state.writes =
        Want { starved: false, full: Some(Full { errno: Errno::NOSPC, at: long_ago }) };
    assert_eq!(log.try_place(&data(0..1)).map(|_| ()), Err(PlaceError::Wait));
    assert!(log.state.writes.starved);
    log.state.writes = Want::default();
    assert!(log.state.trims.starved && log.state.wants_room());
    log.state.trims = Want { starved: false, full: Some(just_now(Errno::NOSPC)) };
    assert!(log.state.wants_room());
    log.state.trims = Want::default();
    assert!(!log.state.wants_room());
}

#[test]
fn after_a_failed_record_nothing_is_placed_and_nothing_commits_before_all_know() {
    let mut log = Log::new();
    let [good, bad, behind] = [0, 1, 2].map(|lba| log.place(&data(lba..lba + 1)));
    log.written(&good, true);
    log.effects = Effects::default();
    log.written(&bad, false);
    assert_eq!(log.state.health, Health::Restarting);
    assert!(log.effects.wake_maintenance);
    assert_eq!(log.effects.wake.len(), 2, "those behind it must stop waiting");
    log.written(&behind, true);
    assert_eq!((log.state.committed(), log.volume.map.mapped()), (bad.record.header.sequence, 1));
    log.effects = Effects::default();
    assert_eq!(log.try_place(&data(5..6)).map(|_| ()), Err(PlaceError::Wait));
    assert!(!log.effects.wake_maintenance);
    log.state.restart_full = Some(just_now(Errno::NOSPC));
    assert_eq!(log.try_place(&data(5..6)).map(|_| ()), Err(PlaceError::Full(Errno::NOSPC)));
    assert!(log.effects.wake_maintenance, "with each request the host is asked again");
    log.state.give_up(behind.record.header.sequence);
    assert!(!log.state.all_given_up());
    log.state.give_up(bad.record.header.sequence);
    assert!(log.state.all_given_up());
    log.state.forget();
    assert_eq!(log.state.committed(), log.state.next_sequence());
    assert!(!log.state.is_any_in_flight(0..BLOCKS));
    log.state.health = Health::Stopped;
    assert_eq!(log.try_place(&data(5..6)).map(|_| ()), Err(PlaceError::Full(Errno::IO)));
}

/// A record whose write is still in flight may yet reach the file: the log does not restart before
/// it has ended.
#[test]
fn a_record_that_is_still_being_written_has_not_been_given_up() {
    let mut log = Log::new();
    let [bad, behind] = [0, 1].map(|lba| log.place(&data(lba..lba + 1)));
    log.written(&bad, false);
    log.state.give_up(bad.record.header.sequence);
    log.state.give_up(behind.record.header.sequence);
    assert!(!log.state.all_given_up());
    log.written(&behind, true);
    assert!(log.state.all_given_up());
}

#[test]
fn a_seal_that_failed_closes_its_segment_all_the_same() {
    let mut log = Log::new();
    let old = log.state.heads[0].place.segment;
    log.append(&data(0..1));
    log.state.heads[0].place.block = SHAPE.segment_blocks - 1;
    let next = log.place(&data(1..2));
    log.written(&next, false);
    assert_eq!(log.state.segments.get(old).state, State::Open);
    log.state.forget();
    assert_eq!(log.state.segments.get(old).state, State::Sealed);
}

/// Replaced and trimmed blocks are losses of their segments; the death of a segment wakes the
/// maintenance worker.
#[test]
fn what_a_record_replaces_dies_where_it_was() {
    let mut log = Log::new();
    let old = log.state.heads[0].place.segment;
    log.append(&data(0..4));
    log.state.heads[0].place.block = SHAPE.segment_blocks - 1;
    log.append(&[data(1..3), trim(3, 10).to_vec()].concat());
    assert_eq!(log.state.segments.get(old).live, 1);
    let new = log.state.heads[0].place.segment;
    assert_eq!(log.state.segments.get(new).live, 2);
    assert_eq!(log.volume.map.get(2).address(), SHAPE.address(new, 2));
    assert!(!log.volume.map.get(3).is_mapped());
    log.effects = Effects::default();
    log.append(&trim(0, 1));
    assert_eq!((log.state.segments.get(old).state, log.state.segments.dead().0), (State::Dead, 1));
    assert!(log.effects.wake_maintenance, "the first dead segment");
}
