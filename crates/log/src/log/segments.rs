//! The segments of an image: state, use and number of live blocks of each.
//!
//! Segment states: Free -> Ready -> Open -> Sealed -> Dead -> Free. Dead -> Free requires that what
//! replaced its blocks is durable, or a crash would bring them back; and that a checkpoint has been
//! made since it was sealed, or replay would read its records. A dead segment is not written
//! before.

mod free;
mod ready;
mod segment;
mod tally;

use std::collections::{BTreeSet, VecDeque};

use flowstone_block::mutant;
use flowstone_log_format::{Address, Incarnation, SegmentId, Shape};

use self::ready::ReadySegments;
pub use self::segment::{Segment, State};
use self::tally::Tally;

/// Maximum number of segments looked at in one hold of the log's lock.
pub const LOOK_MOST: usize = 64;

/// All segments of an image.
pub struct SegmentTable {
    shape: Shape,
    /// By number; grows to the highest number ever used, so an empty image needs no memory for it.
    segments: Vec<Segment>,
    /// Number of segments that the image may use, including segment 0.
    limit: u32,
    /// In order of their release: reusing the oldest first lets neighbours die together.
    free: VecDeque<SegmentId>,
    ready: ReadySegments,
    dead: Vec<SegmentId>,
    /// Segments that only a checkpoint frees.
    pinned: BTreeSet<SegmentId>,
    tally: Tally,
    session: u64,
    incarnations: u32,
}

impl SegmentTable {
    pub fn new(shape: Shape, limit: u32, session: u64) -> Self {
        Self {
            shape,
            // Segment 0 holds the superblocks and never changes.
            segments: vec![Segment { state: State::Open, ..Segment::default() }],
            limit,
            free: VecDeque::new(),
            ready: ReadySegments::default(),
            dead: Vec::new(),
            pinned: BTreeSet::new(),
            tally: Tally::default(),
            session,
            incarnations: 0,
        }
    }

    pub fn get(&self, segment: SegmentId) -> Segment {
        self.segments.get(segment.index()).copied().unwrap_or_default()
    }

    /// Returns up to [`LOOK_MOST`] segments, beginning with `first`.
    pub fn few_from(&self, first: SegmentId) -> impl Iterator<Item = (SegmentId, Segment)> {
        let few = self.segments.get(first.index()..).unwrap_or_default();
        (first.get()..).map(SegmentId::new).zip(few.iter().copied()).take(LOOK_MOST)
    }

    /// Iterates over the segments that have been used, with their numbers. Not for use while others
    /// wait for the log's lock: there may be very many.
    pub fn iter(&self) -> impl Iterator<Item = (SegmentId, Segment)> {
        (0..)
            .map(SegmentId::new)
            .zip(&self.segments)
            .skip(1)
            .map(|(number, segment)| (number, *segment))
    }

    /// Recovery only: sets a segment to its state in the file.
    pub fn set(&mut self, number: SegmentId, segment: Segment) {
        self.change(number, |it| *it = segment);
    }

    /// Recovery only: rebuilds the lists from the segments, once all have been set and counted.
    pub fn rebuild_lists(&mut self) {
        self.free.clear();
        self.dead.clear();
        for number in SegmentId::range(1..self.segments.len() as u32) {
            let segment = self.get(number);
            match segment.state {
                State::Free if number.get() < self.limit => self.free.push_back(number),
                State::Sealed if segment.live == 0 => self.bury(number),
                State::Dead => self.dead.push(number),
                State::Free | State::Ready | State::Open | State::Sealed => {}
            }
        }
    }

    /// Every change of a segment goes through here, except those of its live blocks alone.
    fn change(&mut self, number: SegmentId, change: impl FnOnce(&mut Segment)) {
        while self.segments.len() <= number.index() {
            self.segments.push(Segment::default());
        }
        let segment = &mut self.segments[number.index()];
        let before = *segment;
        change(segment);
        self.tally.change(&before, segment);
        match (before.pinned, segment.pinned) {
            (false, true) => drop(self.pinned.insert(number)),
            (true, false) => drop(self.pinned.remove(&number)),
            _ => {}
        }
    }

    /// Changes the number of live blocks.
    fn change_live(&mut self, number: SegmentId, change: impl FnOnce(u32) -> u32) -> u32 {
        let segment = &mut self.segments[number.index()];
        let before = segment.live;
        segment.live = change(before);
        if segment.is_closed() {
            let closed_live = self.tally.closed_live + u64::from(segment.live);
            self.tally.closed_live = closed_live - u64::from(before);
        }
        segment.live
    }

    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Sets the limit. Free segments beyond it are no longer handed out; those that come within it
    /// are.
    pub fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
        self.free.retain(|number| number.get() < limit);
        let listed: BTreeSet<SegmentId> = self.free.iter().copied().collect();
        let known = limit.min(self.segments.len() as u32);
        let is_free = |number: &SegmentId| {
            !listed.contains(number) && self.segments[number.index()].state == State::Free
        };
        self.free.extend(SegmentId::range(1..known).filter(is_free));
    }

    /// Raises the limit, up to `most`, until `wanted` segments are ready or obtainable. `compact`
    /// may have left all of the others in use.
    pub fn raise_limit_for(&mut self, wanted: u32, most: u32) {
        if self.ready_or_obtainable() >= wanted {
            return;
        }
        self.set_limit(self.limit.max((self.segments.len() as u32).min(most)));
        let short = wanted.saturating_sub(self.ready_or_obtainable());
        self.set_limit(self.limit.max(self.limit.saturating_add(short).min(most)));
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
        self.free.len() as u32 + self.limit.saturating_sub(self.segments.len() as u32)
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

    /// Frees ready segments beyond `keep`, and returns them: their host space must be deallocated.
    pub fn release_ready(&mut self, keep: u32) -> Vec<SegmentId> {
        let surplus = self.ready().saturating_sub(keep);
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
        let is_open = self.get(number).state == State::Open;
        assert!(number > SegmentId::SUPERBLOCKS && is_open, "only an open segment is sealed");
        self.change(number, |segment| {
            (segment.birth, segment.sealed) = (birth, clock);
            segment.state = State::Sealed;
        });
        self.bury(number);
    }

    fn bury(&mut self, number: SegmentId) {
        let segment = self.get(number);
        if segment.live == 0 && segment.state == State::Sealed {
            self.change(number, |segment| segment.state = State::Dead);
            self.dead.push(number);
        }
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

    pub fn mark_damaged(&mut self, number: SegmentId) {
        self.change(number, |segment| segment.damaged = true);
    }

    /// Returns the number of segments without live blocks whose host space still has old content:
    /// the drive treats it as live.
    pub fn untold(&self) -> u32 {
        self.dead_count() + self.ready.recycled()
    }

    /// Returns the number of dead segments.
    pub fn dead_count(&self) -> u32 {
        self.dead.len() as u32
    }

    /// Returns the number of dead segments, and how many of them need no checkpoint.
    pub fn dead(&self) -> (u32, u32) {
        let freeable = self.dead.iter().filter(|number| !self.get(**number).pinned).count();
        (self.dead_count(), freeable as u32)
    }

    /// Takes the segments that are dead now, for a checkpoint that begins now.
    pub fn take_dead(&mut self) -> Vec<SegmentId> {
        std::mem::take(&mut self.dead)
    }

    /// Takes the dead segments that are free once everything written until now is durable.
    pub fn take_freeable(&mut self) -> Vec<SegmentId> {
        let segments = &self.segments;
        let all = mutant("log.free.ignores-pins");
        self.dead.extract_if(.., |number| all || !segments[number.index()].pinned).collect()
    }

    /// Pins a segment: only a checkpoint frees it from now on.
    pub fn pin(&mut self, number: SegmentId) {
        self.change(number, |segment| segment.pinned = true);
    }

    /// Returns the pinned segments that are closed: a checkpoint that begins now covers them.
    pub fn pinned_and_closed(&self) -> Vec<SegmentId> {
        let closed = |number: &SegmentId| self.get(*number).is_closed();
        self.pinned.iter().copied().filter(closed).collect()
    }

    /// Unpins segments: the checkpoint that covers them is durable.
    pub fn unpin(&mut self, numbers: &[SegmentId]) {
        for number in numbers {
            self.change(*number, |segment| segment.pinned = false);
        }
    }

    /// Puts dead segments back: the checkpoint did not become durable.
    pub fn keep_dead(&mut self, numbers: Vec<SegmentId>) {
        self.dead.extend(numbers);
    }

    /// Frees dead segments after a durable checkpoint. They become ready for reuse, with their
    /// space, until `keep` of those exist; the others are returned, to be deallocated on the host.
    pub fn release_dead(&mut self, mut numbers: Vec<SegmentId>, keep: u32) -> Vec<SegmentId> {
        for number in &numbers {
            assert_eq!(self.get(*number).state, State::Dead, "segment {number} is freed");
        }
        let kept = keep.saturating_sub(self.ready.recycled()).min(numbers.len() as u32);
        let released = numbers.split_off(kept as usize);
        for number in numbers {
            let ready = Segment { state: State::Ready, ..Segment::default() };
            self.change(number, |segment| *segment = ready);
            self.ready.add_recycled(number);
        }
        for number in &released {
            self.change(*number, |segment| *segment = Segment::default());
        }
        released
    }

    /// Adds segments whose host space has been deallocated to the free ones. Those beyond the limit
    /// were borrowed: they are not used again.
    pub fn add_free(&mut self, numbers: &[SegmentId]) {
        self.free.extend(numbers.iter().filter(|number| number.get() < self.limit));
    }

    /// Returns the lowest segment that has never been used, as far as the image knows.
    pub fn never_used(&self) -> SegmentId {
        SegmentId::new(self.segments.len() as u32)
    }

    /// Returns the highest segment in use.
    pub fn highest_used(&self) -> SegmentId {
        let highest = self.segments.iter().rposition(|segment| segment.state != State::Free);
        highest.map_or(SegmentId::SUPERBLOCKS, |number| SegmentId::new(number as u32))
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

    /// Returns the number of segments that hold parts of the map.
    pub fn used_for_maps(&self) -> u32 {
        self.tally.maps
    }

    /// Returns the number of segments in use, heads included.
    pub fn used(&self) -> u32 {
        self.tally.used
    }

    /// Debug builds: checks the running counts against the segments.
    pub fn audit(&self) {
        assert_eq!(self.tally, Tally::counted(self.segments.iter().skip(1)), "segments by kind");
        let pinned = self.iter().filter(|(_, segment)| segment.pinned).map(|(number, _)| number);
        assert!(pinned.eq(self.pinned.iter().copied()), "pinned segments");
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
        assert_eq!(table.take_freeable(), []);
        assert_eq!(table.get(number).state, State::Dead);
        let ready = table.ready();
        let dead = table.take_dead();
        assert_eq!(table.ready(), ready);
        assert_eq!(table.release_dead(dead, 0), [number]);
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
        table.unpin(&table.pinned_and_closed());
        assert_eq!(table.take_freeable(), [number]);
    }

    #[test]
    fn free_segments_beyond_a_lower_limit_are_kept_for_a_higher_one() {
        let mut table = table();
        let all = table.release_ready(0);
        table.add_free(&all);
        table.set_limit(5);
        assert_eq!((table.obtainable(), table.limit()), (4, 5));
        let taken: Vec<SegmentId> = std::iter::from_fn(|| table.take_free()).collect();
        assert_eq!(taken, [1, 2, 3, 4].map(SegmentId::new));
        taken.iter().for_each(|number| table.make_ready(*number));
        table.set_limit(9);
        assert_eq!(table.obtainable(), 4);
        table.set_limit(5);
        table.raise_limit_for(10, 20);
        assert_eq!((table.ready_or_obtainable(), table.limit()), (10, 11));
        table.raise_limit_for(100, 12);
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
