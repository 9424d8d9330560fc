//! Everything that has changed a simulated disk, in one order of events.
//!
//! Each operation has a position at which it began (was submitted) and one at which it ended, and
//! perhaps one from which on it was durable. A [`Moment`] is a place between two events. What can
//! be on the medium when power is cut at a moment is a [`Cut`]: a base in which nothing is
//! uncertain, and the steps that follow it.
//!
//! Durability comes in the order of endings (a datasync covers whatever ended before it began),
//! except for durable writes, which look after themselves only. So the base is the longest run of
//! ended operations, from the first one on, that are all durable.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::change::Change;
use super::medium::Medium;

/// A place in the order of events of one disk: some have happened before it, the rest after.
///
/// Moments of different disks, a disk and its crashed-into successor among them, have nothing to
/// do with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub(super) u64);

/// Bases are kept this many operations apart, so that any of them is soon rebuilt.
const CHECKPOINT_INTERVAL: usize = 32;

/// Which operation of a history.
pub type OpId = usize;

struct Op {
    change: Change,
    /// Whether it asked to be durable by itself.
    durable: bool,
    begin: u64,
    end: Option<u64>,
    durable_at: Option<u64>,
    /// When a datasync that should have covered it failed: no later one will.
    forsaken_at: Option<u64>,
    /// The disk refused it: it never was.
    refused: bool,
    /// The oldest operation that was in flight when this one began.
    oldest_open: OpId,
}

/// The operations of a disk.
pub struct History {
    /// In the order in which they began.
    ops: Vec<Op>,
    /// In the order in which they ended.
    ended: Vec<OpId>,
    open: BTreeSet<OpId>,
    /// Ended and waiting for a datasync, in the order in which they ended.
    unsynced: VecDeque<OpId>,
    /// From which position on how many of `ended`, counted from the first, were all durable.
    durable_prefixes: Vec<(u64, usize)>,
    /// What the first so many of `ended` have made of the disk.
    checkpoints: BTreeMap<usize, Medium>,
    /// Position of the next event.
    next: u64,
    /// The first moment that belongs to this disk and not to one before it.
    start: u64,
}

/// What is known about the survival of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is on the medium.
    Durable,
    /// It may be; a datasync would make it so.
    Unsynced,
    /// It may be, and no datasync will change that.
    Forsaken,
}

/// An operation that comes after the base of a [`Cut`].
pub struct Step {
    pub change: Change,
    pub standing: Standing,
    pub begin: u64,
    /// Absent while it was in flight.
    pub end: Option<u64>,
}

/// What there is to decide about a disk that stops at a moment.
pub struct Cut {
    pub base: Medium,
    /// First what had ended, in that order, then what was in flight, in the order of beginning.
    pub steps: Vec<Step>,
}

impl History {
    /// A history without operations, of a disk that holds `medium`, durably.
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

    /// A history whose first operations, not yet of its own time, have the given standing.
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

    /// The moment after everything so far.
    pub fn now(&self) -> Moment {
        Moment(self.next)
    }

    /// The first moment.
    pub fn start(&self) -> Moment {
        Moment(self.start)
    }

    fn tick(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// An operation is submitted.
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

    /// What an operation does.
    pub fn change(&self, id: OpId) -> &Change {
        &self.ops[id].change
    }

    /// The operation has been done.
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

    /// The operation has failed and left nothing.
    pub fn refuse(&mut self, id: OpId) {
        self.open.remove(&id);
        self.ops[id].refused = true;
    }

    /// A datasync is submitted; returns its position, to end it with.
    pub fn begin_sync(&mut self) -> u64 {
        self.tick()
    }

    /// The datasync that began at this position is done.
    pub fn end_sync(&mut self, begun: u64) {
        let at = self.tick();
        while let Some(id) = self.next_covered(begun) {
            self.ops[id].durable_at = Some(at);
        }
        self.note_durable(at);
    }

    /// The datasync that began at this position has failed. As with a kernel, which drops what it
    /// could not write and reports that once, later ones do not make up for it.
    pub fn fail_sync(&mut self, begun: u64) {
        let at = self.tick();
        while let Some(id) = self.next_covered(begun) {
            self.ops[id].forsaken_at = Some(at);
        }
    }

    /// Takes out the next operation that ended before `begun` and waits for a datasync.
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

    /// What there is to decide if the disk stops at `moment`.
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

    /// The disk after the first `count` ended operations.
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

    /// The operation as it looked at a moment.
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
