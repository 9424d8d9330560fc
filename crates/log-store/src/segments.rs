//! The segments of an image: state, use and number of live blocks of each.
//!
//! Segment states: Free -> Ready -> Open -> Sealed -> Dead -> Free. Dead -> Free requires that what
//! replaced its blocks is durable, or a crash would bring them back; and that a checkpoint has been
//! made since it was sealed, or replay would read its records. A dead segment is not written
//! before.

mod buckets;
mod dead;
mod free;
mod ready;
mod segment;
mod slots;
mod tally;

use std::collections::{BTreeMap, BTreeSet};

use flowstone_log_format::{Address, Incarnation, SegmentId, Shape};

use self::buckets::Buckets;
pub use self::buckets::Kind;
pub use self::dead::DeadSegments;
use self::free::FreeSegments;
use self::ready::ReadySegments;
pub use self::segment::{Segment, State};
pub use self::slots::LOOK_MOST;
use self::slots::Slots;
use self::tally::Tally;

/// All segments of an image.
pub struct SegmentTable {
    shape: Shape,
    segments: Slots,
    /// Number of segments that the image may use, including segment 0.
    limit: u32,
    free: FreeSegments,
    ready: ReadySegments,
    /// Those that are not free.
    taken: BTreeSet<SegmentId>,
    buckets: Buckets,
    /// Closed segments that only a checkpoint frees.
    pinned: Vec<SegmentId>,
    dead: DeadSegments,
    deaths: u64,
    tally: Tally,
    session: u64,
    incarnations: u32,
}

impl SegmentTable {
    /// The table of an image that may use `limit` segments, in a session, of which none has been
    /// used.
    pub fn new(shape: Shape, limit: u32, session: u64) -> Self {
        Self {
            shape,
            // Segment 0 holds the superblocks and never changes.
            segments: Slots::new(Segment { state: State::Open, ..Segment::default() }),
            limit,
            free: FreeSegments::default(),
            ready: ReadySegments::default(),
            taken: BTreeSet::new(),
            buckets: Buckets::new(shape),
            pinned: Vec::new(),
            dead: DeadSegments::default(),
            deaths: 0,
            tally: Tally::default(),
            session,
            incarnations: 0,
        }
    }

    /// Returns a segment.
    pub fn get(&self, segment: SegmentId) -> Segment {
        self.segments.get(segment)
    }

    /// Returns up to [`LOOK_MOST`] segments, beginning with `first`.
    pub fn few_from(&self, first: SegmentId) -> impl Iterator<Item = (SegmentId, Segment)> {
        let few = first.get()..self.segments.len().min(first.get() + LOOK_MOST as u32);
        SegmentId::range(few).map(|number| (number, self.get(number)))
    }

    /// Iterates over the segments that have been used, with their numbers. Not for use while others
    /// wait for the log's lock: there may be very many.
    pub fn iter(&self) -> impl Iterator<Item = (SegmentId, Segment)> {
        self.segments.iter().skip(1)
    }

    /// Returns the number of segments looked at since the last call.
    #[cfg(debug_assertions)]
    pub fn take_looks(&mut self) -> usize {
        self.segments.take_looks()
    }

    /// Recovery only: sets a segment to its state in the file.
    pub fn set(&mut self, number: SegmentId, segment: Segment) {
        self.change(number, |it| *it = segment);
    }

    /// Recovery only: rebuilds the lists from the segments, once all have been set and counted.
    pub fn rebuild_lists(&mut self) {
        self.free = FreeSegments::default();
        (self.dead, self.pinned) = (DeadSegments::default(), Vec::new());
        for number in SegmentId::range(1..self.segments.len()) {
            let segment = self.get(number);
            if segment.pinned && segment.is_closed() {
                self.pinned.push(number);
            }
            match segment.state {
                State::Free => self.free.add(number, self.limit),
                State::Sealed => self.bury(number),
                State::Dead => self.dead.add(number, &segment),
                State::Ready | State::Open => {}
            }
        }
    }

    /// Changes a segment; not what a commit changes, live blocks, seals and deaths.
    fn change(&mut self, number: SegmentId, change: impl FnOnce(&mut Segment)) {
        let segment = self.segments.get_mut(number);
        let before = *segment;
        change(segment);
        let after = *segment;
        self.note_change(number, &before, &after);
    }

    fn note_change(&mut self, number: SegmentId, before: &Segment, after: &Segment) {
        self.tally.change(before, after);
        self.buckets.change(number, before, after);
        match (before.state == State::Free, after.state == State::Free) {
            (true, false) => drop(self.taken.insert(number)),
            (false, true) => drop(self.taken.remove(&number)),
            _ => {}
        }
        let waits = |segment: &Segment| segment.pinned && segment.is_closed();
        if waits(after) && !waits(before) {
            self.pinned.push(number);
        }
    }

    /// Changes the number of live blocks.
    fn change_live(&mut self, number: SegmentId, change: impl FnOnce(u32) -> u32) -> u32 {
        let segment = self.segments.of_commit(number);
        let before = *segment;
        segment.live = change(before.live);
        let after = *segment;
        if after.is_closed() {
            let closed_live = self.tally.closed_live + u64::from(after.live);
            self.tally.closed_live = closed_live - u64::from(before.live);
            self.buckets.change(number, &before, &after);
        }
        after.live
    }

    /// Returns the number of segments that the image may use, including segment 0.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns an incarnation that no use of a segment has had.
    pub fn new_incarnation(&mut self) -> Incarnation {
        self.incarnations += 1;
        Incarnation::new(self.session, self.incarnations)
    }

    /// Returns the number of allocated segments waiting for use.
    pub fn ready(&self) -> u32 {
        self.ready.count()
    }

    /// Returns the number of segments that can be made ready if the host has space.
    pub fn obtainable(&self) -> u32 {
        self.free.count() + self.limit.saturating_sub(self.segments.len())
    }

    /// Returns the number of segments that are ready or can be made so.
    pub fn ready_or_obtainable(&self) -> u32 {
        self.ready() + self.obtainable()
    }

    /// Makes a free segment ready: the host has allocated it, and it has not been written since.
    pub fn make_ready(&mut self, number: SegmentId) {
        assert_eq!(self.get(number).state, State::Free, "segment {number} is made ready");
        self.change(number, |segment| segment.state = State::Ready);
        self.ready.add_fresh(number);
    }

    /// Returns an open, empty segment to the end of the ready ones.
    pub fn give_back(&mut self, number: SegmentId) {
        self.change(number, |segment| *segment = Segment::default());
        self.make_ready(number);
    }

    /// Frees ready segments beyond `keep`, a few at a time, and returns them: their host space must
    /// be deallocated.
    pub fn release_ready(&mut self, keep: u32) -> Vec<SegmentId> {
        let surplus = self.ready().saturating_sub(keep).min(LOOK_MOST as u32);
        let released = self.ready.release(surplus);
        for number in &released {
            self.change(*number, |segment| *segment = Segment::default());
        }
        released
    }

    /// Opens a ready segment, with a new incarnation.
    pub fn open(&mut self, lifetime: u8) -> Option<(SegmentId, Incarnation)> {
        let number = self.ready.take()?;
        // Checked in release builds: two incarnations at once in one segment would lose data.
        assert_eq!(self.get(number).state, State::Ready, "segment {number} is opened");
        let incarnation = self.new_incarnation();
        let opened = Segment { lifetime, incarnation, pinned: true, ..Segment::default() };
        self.change(number, |segment| *segment = Segment { state: State::Open, ..opened });
        Some((number, incarnation))
    }

    /// Ends appending to a segment. All records in it have been applied to the map.
    pub fn seal(&mut self, number: SegmentId, clock: u64) {
        self.seal_copies(number, clock, clock);
    }

    /// Seals a segment of copies of blocks that guests had written by `birth`, on average.
    pub fn seal_copies(&mut self, number: SegmentId, clock: u64, birth: u64) {
        let segment = self.segments.of_commit(number);
        let before = *segment;
        let is_open = before.state == State::Open;
        assert!(number > SegmentId::SUPERBLOCKS && is_open, "only an open segment is sealed");
        (segment.birth, segment.sealed) = (birth, clock);
        segment.state = State::Sealed;
        let sealed = *segment;
        self.note_change(number, &before, &sealed);
        self.bury(number);
    }

    /// Adds `count` live blocks to the segment.
    pub fn gain(&mut self, number: SegmentId, count: u32) {
        self.change_live(number, |live| live + count);
    }

    /// Counts a block as dead.
    pub fn lose(&mut self, address: Address) {
        self.lose_many(self.shape.segment_of(address), 1);
    }

    /// Counts `count` blocks of the segment as dead.
    pub fn lose_many(&mut self, number: SegmentId, count: u32) {
        if self.change_live(number, |live| live - count) == 0 {
            self.bury(number);
        }
    }

    /// Notes that a block of the segment could not be read.
    pub fn mark_damaged(&mut self, number: SegmentId) {
        self.change(number, |segment| segment.damaged = true);
    }

    /// Returns the number of segments without live blocks whose host space still has old content:
    /// the drive treats it as live.
    pub fn untold(&self) -> u32 {
        self.dead_count() + self.ready.recycled()
    }

    /// Frees dead segments after a durable checkpoint. They become ready for reuse, with their
    /// space, until `keep` of those exist; the others are returned, to be deallocated on the host.
    pub fn release_dead<'a>(&mut self, numbers: &'a [SegmentId], keep: u32) -> &'a [SegmentId] {
        for number in numbers {
            assert_eq!(self.get(*number).state, State::Dead, "segment {number} is freed");
        }
        let kept = keep.saturating_sub(self.ready.recycled()).min(numbers.len() as u32);
        let (kept, released) = numbers.split_at(kept as usize);
        for number in kept {
            let ready = Segment { state: State::Ready, ..Segment::default() };
            self.change(*number, |segment| *segment = ready);
            self.ready.add_recycled(*number);
        }
        for number in released {
            self.change(*number, |segment| *segment = Segment::default());
        }
        released
    }

    /// Returns the lowest segment that has never been used, as far as the image knows.
    pub fn never_used(&self) -> SegmentId {
        SegmentId::new(self.segments.len())
    }

    /// Returns the highest segment in use.
    pub fn highest_used(&self) -> SegmentId {
        self.taken.last().copied().unwrap_or(SegmentId::SUPERBLOCKS)
    }

    /// Returns the number of segments that blocks of guests are being appended to.
    pub fn open_for_data(&self) -> u32 {
        self.tally.open_for_data
    }

    /// Returns the blocks of closed segments that are not live: old versions, and the headers of
    /// records.
    pub fn garbage_blocks(&self) -> u64 {
        u64::from(self.tally.closed) * u64::from(self.shape.segment_blocks) - self.tally.closed_live
    }

    /// Returns the number of closed segments with blocks of the disk.
    pub fn closed_of_data(&self) -> u32 {
        self.tally.closed_of_data
    }

    /// Returns the number of segments that hold parts of the map.
    pub fn used_for_maps(&self) -> u32 {
        self.tally.maps
    }

    /// Returns the number of segments in use, heads included.
    pub fn used(&self) -> u32 {
        self.tally.used
    }

    /// Debug builds: checks the running counts and the lists against the segments.
    pub fn audit(&self) {
        let all: BTreeMap<SegmentId, Segment> = self.iter().collect();
        assert_eq!(self.tally, Tally::counted(all.values()), "segments by kind");
        let numbers = |fits: &dyn Fn(&Segment) -> bool| -> BTreeSet<SegmentId> {
            all.iter().filter(|(_, segment)| fits(segment)).map(|(number, _)| *number).collect()
        };
        let pinned: BTreeSet<SegmentId> = self.pinned.iter().copied().collect();
        assert_eq!(pinned, numbers(&|it| it.pinned && it.is_closed()), "pinned segments");
        assert_eq!(
            self.taken,
            numbers(&|it| it.state != State::Free),
            "segments that are not free"
        );
        assert_eq!(self.free.all(), numbers(&|it| it.state == State::Free), "free segments");
        self.dead.audit(|number| all[&number]);
        self.buckets.audit(self.iter());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { segment_blocks: 64, reserve_percent: 20, streams: 1 };

    fn table() -> SegmentTable {
        let mut table = SegmentTable::new(SHAPE, 8, 3);
        while let Some(number) = table.take_free() {
            table.make_ready(number);
        }
        table
    }

    #[test]
    fn a_dead_segment_is_used_again_only_after_a_checkpoint() {
        let mut table = table();
        let (number, incarnation) = table.open(0).unwrap();
        assert_eq!(incarnation.session(), 3);
        table.gain(number, 2);
        table.seal(number, 10);
        table.lose(SHAPE.address(number, 1));
        assert_eq!(table.dead(), (0, 0));
        table.lose(SHAPE.address(number, 5));
        assert_eq!(table.dead(), (1, 0));
        assert_eq!(table.take_freeable().in_order(), []);
        assert_eq!(table.get(number).state, State::Dead);
        let ready = table.ready();
        let dead = table.take_dead().in_order();
        assert_eq!(table.ready(), ready);
        assert_eq!(table.release_dead(&dead, 0), [number]);
        table.add_free(&[number]);
        assert_eq!(table.take_free(), Some(number));
    }

    #[test]
    fn an_open_segment_does_not_die() {
        let mut table = table();
        let (number, _) = table.open(0).unwrap();
        table.gain(number, 1);
        table.lose(SHAPE.address(number, 1));
        assert_eq!((table.get(number).state, table.dead().0), (State::Open, 0));
        table.seal(number, 0);
        assert_eq!(table.dead(), (1, 0));
        let covered = table.take_pinned();
        table.unpin(&covered);
        assert_eq!(table.take_freeable().in_order(), [number]);
    }

    #[test]
    fn free_segments_beyond_a_lower_limit_are_kept_for_a_higher_one() {
        let mut table = table();
        let all = table.release_ready(0);
        table.add_free(&all);
        assert!(table.move_limit(5));
        assert_eq!((table.obtainable(), table.limit()), (4, 5));
        let taken: Vec<SegmentId> = std::iter::from_fn(|| table.take_free()).collect();
        assert_eq!(taken, [1, 2, 3, 4].map(SegmentId::new));
        taken.iter().for_each(|number| table.make_ready(*number));
        assert!(table.move_limit(9));
        assert_eq!(table.obtainable(), 4);
        assert!(table.move_limit(5));
        while !table.raise_limit_for(10, 20) {}
        assert_eq!((table.ready_or_obtainable(), table.limit()), (10, 11));
        while !table.raise_limit_for(100, 12) {}
        assert_eq!(table.limit(), 12);
    }

    #[test]
    fn the_limit_holds() {
        let mut table = table();
        assert_eq!((table.ready(), table.obtainable(), table.take_free()), (7, 0, None));
    }
}

#[cfg(test)]
mod lists;
