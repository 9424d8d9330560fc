//! The changes of a simulated disk, in one order of events.
//!
//! Each operation has a position at which it began (was submitted) and one at which it ended, and
//! perhaps one from which on it was durable. A [`Moment`] is a place between two events. The
//! possible contents of the medium after a power cut at a moment are described by a [`Cut`]: a base
//! in which nothing is uncertain, and the steps that follow it.
//!
//! Operations become durable in the order of their ends (a datasync covers whatever ended before it
//! began), except for durable writes, which only make themselves durable. So the base is the
//! longest prefix of ended operations that are all durable.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::change::Change;
use super::medium::Medium;

/// A place in the order of events of one disk.
///
/// Moments of different disks, including a disk and its successor after a crash, are unrelated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub(super) u64);

/// Operations between two stored bases, so that any base is quickly rebuilt.
const CHECKPOINT_INTERVAL: usize = 32;

/// Index of an operation in a history.
pub type OpId = usize;

struct Op {
    change: Change,
    /// Whether it is a durable write.
    durable: bool,
    begin: u64,
    end: Option<u64>,
    durable_at: Option<u64>,
    /// Position at which a datasync that should have covered it failed: no later one will cover it.
    forsaken_at: Option<u64>,
    /// Whether the disk refused it, so that it has no effect.
    refused: bool,
    /// The oldest operation in flight when this one began.
    oldest_open: OpId,
}

/// The operations of a disk.
pub struct History {
    /// Operations in the order of their begins.
    ops: Vec<Op>,
    /// Operations in the order of their ends.
    ended: Vec<OpId>,
    open: BTreeSet<OpId>,
    /// Ended operations not covered by a datasync, in the order of their ends.
    unsynced: VecDeque<OpId>,
    /// Positions from which on a prefix of `ended` was durable, with the length of the prefix.
    durable_prefixes: Vec<(u64, usize)>,
    /// Media after prefixes of `ended`, by the length of the prefix.
    checkpoints: BTreeMap<usize, Medium>,
    /// Position of the next event.
    next: u64,
    /// First moment that belongs to this disk and not to its predecessor.
    start: u64,
}

/// Certainty about the survival of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// On the medium.
    Durable,
    /// Undecided; a datasync would make it durable.
    Unsynced,
    /// Undecided, and no datasync will make it durable.
    Forsaken,
}

/// An operation after the base of a [`Cut`].
pub struct Step {
    pub change: Change,
    pub standing: Standing,
    pub begin: u64,
    /// Absent if it was in flight.
    pub end: Option<u64>,
}

/// The certain and uncertain state of a disk at a moment.
pub struct Cut {
    pub base: Medium,
    /// First the ended operations, in that order, then those in flight, in the order of their
    /// begins.
    pub steps: Vec<Step>,
}

impl History {
    /// Makes an empty history, of a disk that durably holds `medium`.
    pub fn new(medium: Medium) -> Self {
        Self {
            ops: Vec::new(),
            ended: Vec::new(),
            open: BTreeSet::new(),
            unsynced: VecDeque::new(),
            durable_prefixes: Vec::new(),
            checkpoints: BTreeMap::from([(0, medium)]),
            next: 0,
            start: 0,
        }
    }

    /// Makes a history with initial operations of the given standing, from before its start.
    pub fn resumed(base: Medium, steps: impl Iterator<Item = (Change, Standing)>) -> Self {
        let mut history = Self::new(base);
        for (change, standing) in steps {
            let id = history.begin(change, standing == Standing::Durable);
            history.end(id);
            if standing == Standing::Forsaken {
                history.unsynced.pop_back();
                history.ops[id].forsaken_at = Some(history.next);
            }
        }
        history.start = history.next;
        history
    }

    /// Returns the moment after everything so far.
    pub fn now(&self) -> Moment {
        Moment(self.next)
    }

    /// Returns the first moment.
    pub fn start(&self) -> Moment {
        Moment(self.start)
    }

    fn tick(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Records the submission of an operation.
    pub fn begin(&mut self, change: Change, durable: bool) -> OpId {
        let begin = self.tick();
        let id = self.ops.len();
        self.open.insert(id);
        self.ops.push(Op {
            change,
            durable,
            begin,
            end: None,
            durable_at: None,
            forsaken_at: None,
            refused: false,
            oldest_open: *self.open.first().expect("just inserted"),
        });
        id
    }

    /// Returns the change of an operation.
    pub fn change(&self, id: OpId) -> &Change {
        &self.ops[id].change
    }

    /// Records the completion of an operation.
    pub fn end(&mut self, id: OpId) {
        let at = self.tick();
        self.open.remove(&id);
        self.ended.push(id);
        let op = &mut self.ops[id];
        op.end = Some(at);
        if op.durable {
            op.durable_at = Some(at);
        } else {
            self.unsynced.push_back(id);
        }
        self.note_durable(at);
    }

    /// Records that an operation has failed without effect.
    pub fn refuse(&mut self, id: OpId) {
        self.open.remove(&id);
        self.ops[id].refused = true;
    }

    /// Records the submission of a datasync. Returns its position, which identifies it.
    pub fn begin_sync(&mut self) -> u64 {
        self.tick()
    }

    /// Records the completion of a datasync.
    pub fn end_sync(&mut self, begun: u64) {
        let at = self.tick();
        while let Some(id) = self.next_covered(begun) {
            self.ops[id].durable_at = Some(at);
        }
        self.note_durable(at);
    }

    /// Records the failure of a datasync. As with a kernel, which drops data it could not write and
    /// reports that once, later ones do not make up for it.
    pub fn fail_sync(&mut self, begun: u64) {
        let at = self.tick();
        while let Some(id) = self.next_covered(begun) {
            self.ops[id].forsaken_at = Some(at);
        }
    }

    /// Removes the next operation that ended before `begun` and was not covered by a datasync.
    fn next_covered(&mut self, begun: u64) -> Option<OpId> {
        let first = *self.unsynced.front()?;
        if !self.ops[first].ended_before(begun) {
            return None;
        }
        self.unsynced.pop_front()
    }

    fn note_durable(&mut self, at: u64) {
        let before = self.durable_prefixes.last().map_or(0, |(_, count)| *count);
        let durable = |id: &&OpId| self.ops[**id].durable_at.is_some();
        let more = self.ended[before..].iter().take_while(durable).count();
        if more > 0 {
            self.durable_prefixes.push((at, before + more));
        }
    }

    /// Returns the state of the disk at `moment`.
    pub fn cut(&mut self, moment: Moment) -> Cut {
        let Moment(moment) = moment;
        let durable_prefixes = self.durable_prefixes.partition_point(|(at, _)| *at < moment);
        let first = durable_prefixes.checked_sub(1).map_or(0, |last| self.durable_prefixes[last].1);
        let last = self.ended.partition_point(|id| self.ops[*id].ended_before(moment));
        let base = self.base(first);
        let ended = self.ended[first..last].iter().map(|id| &self.ops[*id]);
        let in_flight = self.in_flight_at(moment);
        let steps = ended.chain(in_flight).map(|op| op.step(moment)).collect();
        Cut { base, steps }
    }

    fn in_flight_at(&self, moment: u64) -> impl Iterator<Item = &Op> {
        let begun = self.ops.partition_point(|op| op.begin < moment);
        let first = begun.checked_sub(1).map_or(0, |last| self.ops[last].oldest_open);
        self.ops[first..begun].iter().filter(move |op| !op.refused && !op.ended_before(moment))
    }

    /// Returns the disk after the first `count` ended operations.
    fn base(&mut self, count: usize) -> Medium {
        let (&from, nearest) =
            self.checkpoints.range(..=count).next_back().expect("the first checkpoint is at 0");
        let mut medium = nearest.clone();
        for id in &self.ended[from..count] {
            self.ops[*id].change.apply(&mut medium);
        }
        if count - from >= CHECKPOINT_INTERVAL {
            self.checkpoints.insert(count, medium.clone());
        }
        medium
    }
}

impl Op {
    fn ended_before(&self, moment: u64) -> bool {
        self.end.is_some_and(|end| end < moment)
    }

    /// Returns the operation as of a moment.
    fn step(&self, moment: u64) -> Step {
        let before = |at: Option<u64>| at.filter(|at| *at < moment);
        let standing = match (before(self.durable_at), before(self.forsaken_at)) {
            (Some(_), _) => Standing::Durable,
            (None, Some(_)) => Standing::Forsaken,
            (None, None) => Standing::Unsynced,
        };
        let change = self.change.clone();
        Step { change, standing, begin: self.begin, end: before(self.end) }
    }
}
