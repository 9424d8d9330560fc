//! The effect of one operation on a simulated disk, from submission to completion.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fastrand::Rng;
use flowstone_block::{Errno, Outcome};
use flowstone_fileio::FileOp;

use super::change::Change;
use super::faults::{Call, Effect, Faults, Landed, call_of};
use super::history::{History, OpId};
use super::medium::{Medium, PAGE_BYTES};
use super::schedule::Schedule;

/// Block size of the file in bytes: the alignment that direct I/O requires.
pub const BLOCK_BYTES: u32 = 512;

/// The state of a disk, shared by its handles and its channels.
#[derive(Clone)]
pub struct Shared(Arc<Mutex<State>>);

impl Shared {
    /// Shares a state.
    pub fn new(state: State) -> Self {
        Self(Arc::new(Mutex::new(state)))
    }

    /// Locks the state.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        // A panicked test may still want to look at the disk.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state of a disk, protected by its lock.
pub struct State {
    /// Contents as reads see them: everything completed.
    pub live: Medium,
    pub history: History,
    pub faults: Faults,
    /// Space limit of the file, in bytes.
    pub capacity: Option<u64>,
    pub schedule: Schedule,
    /// Generates the contents of discarded ranges; without it they are zeroes.
    pub garbage: Option<Rng>,
    /// Number of channels made so far.
    pub channels: u64,
}

/// An operation between its submission and its completion.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// Only answer.
    Answer(Outcome),
    /// Read this range, then answer.
    Read { at: u64, bytes: u64, answer: Outcome },
    /// Apply the operation of this number in the history, then answer.
    Change { op: OpId, answer: Outcome },
    /// Make durable what ended before this position, or fail to, then answer.
    Sync { begun: u64, done: bool, answer: Outcome },
}

impl State {
    /// Makes a disk that holds `live`, with its history.
    pub fn new(live: Medium, history: History) -> Self {
        let faults = Faults::default();
        Self {
            live,
            history,
            faults,
            capacity: None,
            schedule: Schedule::InOrder,
            garbage: None,
            channels: 0,
        }
    }

    /// Accepts an operation; `data` returns the data of a write.
    pub fn begin(&mut self, op: FileOp, data: impl FnOnce() -> Arc<[u8]>) -> Work {
        if let Err(errno) = admit(op) {
            return Work::Answer(Err(errno));
        }
        let (call, touched) = call_of(op);
        let effect = self.faults.strike(call, &touched);
        match (effect, op) {
            (Some(Effect::Lose), _) => Work::Answer(Ok(())),
            (effect, FileOp::Datasync) => {
                let begun = self.history.begin_sync();
                match effect {
                    Some(Effect::Fail(errno, landed)) => {
                        Work::Sync { begun, done: landed == Landed::Whole, answer: Err(errno) }
                    }
                    _ => Work::Sync { begun, done: true, answer: Ok(()) },
                }
            }
            (Some(Effect::Misdirect(target)), FileOp::Write { durable, .. }) => {
                let change = Change::Write { at: target.get(), data: data() };
                self.begin_change(change, durable, Ok(()))
            }
            (Some(Effect::Fail(errno, Landed::Nothing)), _) => Work::Answer(Err(errno)),
            (Some(Effect::Fail(errno, landed)), op) => {
                self.begin_some(op, touched, data, landed, Err(errno))
            }
            (None | Some(Effect::Misdirect(_)), op) => {
                self.begin_some(op, touched, data, Landed::Whole, Ok(()))
            }
        }
    }

    /// Begins an operation of which `landed` will be done.
    fn begin_some(
        &mut self,
        op: FileOp,
        touched: Range<u64>,
        data: impl FnOnce() -> Arc<[u8]>,
        landed: Landed,
        answer: Outcome,
    ) -> Work {
        let (change, durable) = match op {
            FileOp::Read { bytes, .. } => return Work::Read { at: touched.start, bytes, answer },
            FileOp::Datasync => unreachable!("taken in by begin"),
            FileOp::Write { durable, .. } => {
                (Change::Write { at: touched.start, data: data() }, durable)
            }
            FileOp::Punch { .. } => (Change::Punch(touched), false),
            FileOp::Discard { .. } => (self.discard(touched), false),
            FileOp::Clear { .. } | FileOp::Zero { .. } => (Change::Zero(touched), false),
            FileOp::Allocate { .. } => (Change::Allocate(touched), false),
        };
        if landed == Landed::Whole {
            return self.begin_change(change, durable, answer);
        }
        let part = landed.part_of(change.range(), change.unit());
        if part.is_empty() {
            return Work::Answer(answer);
        }
        self.begin_change(change.part(part), durable, answer)
    }

    fn discard(&mut self, range: Range<u64>) -> Change {
        let Some(random) = &mut self.garbage else { return Change::Punch(range) };
        let data =
            std::iter::repeat_with(|| random.u8(..)).take((range.end - range.start) as usize);
        Change::Write { at: range.start, data: data.collect() }
    }

    fn begin_change(&mut self, change: Change, durable: bool, answer: Outcome) -> Work {
        Work::Change { op: self.history.begin(change, durable), answer }
    }

    /// Executes an operation; `deliver` receives the data of a read.
    pub fn complete(&mut self, work: Work, deliver: impl FnOnce(&[u8])) -> Outcome {
        match work {
            Work::Answer(outcome) => outcome,
            Work::Read { at, bytes, answer } => {
                if at.saturating_add(bytes) > self.live.size() {
                    return Err(Errno::IO);
                }
                let mut found = vec![0; bytes as usize];
                self.live.read(at, &mut found);
                deliver(&found);
                answer
            }
            Work::Change { op, answer } => {
                let change = self.history.change(op).clone();
                if !self.has_space_for(&change) {
                    self.history.refuse(op);
                    return Err(Errno::NOSPC);
                }
                change.apply(&mut self.live);
                self.history.end(op);
                answer
            }
            Work::Sync { begun, done, answer } => {
                match done {
                    true => self.history.end_sync(begun),
                    false => self.history.fail_sync(begun),
                }
                answer
            }
        }
    }

    fn has_space_for(&self, change: &Change) -> bool {
        let missing = change.missing_pages(&self.live) * PAGE_BYTES;
        let room = |capacity| self.live.allocated_bytes() + missing <= capacity;
        missing == 0 || self.capacity.is_none_or(room)
    }

    /// Sets the size, which is durable after the next datasync.
    pub fn set_size(&mut self, bytes: u64) -> Outcome {
        match self.faults.strike(Call::SetSize, &(0..0)) {
            None | Some(Effect::Misdirect(_)) => {
                self.at_once(Change::SetSize(bytes), false);
                Ok(())
            }
            Some(Effect::Lose) => Ok(()),
            Some(Effect::Fail(errno, landed)) => {
                if landed == Landed::Whole {
                    self.at_once(Change::SetSize(bytes), false);
                }
                Err(errno)
            }
        }
    }

    /// Applies an instantaneous change.
    pub fn at_once(&mut self, change: Change, durable: bool) {
        let op = self.history.begin(change, durable);
        self.history.change(op).apply(&mut self.live);
        self.history.end(op);
    }
}

/// Refuses what a file with direct I/O would refuse, and what no file could do.
fn admit(op: FileOp) -> Outcome {
    let (call, touched) = call_of(op);
    let whole_blocks = [touched.start, touched.end]
        .iter()
        .all(|position| position.is_multiple_of(u64::from(BLOCK_BYTES)));
    match call {
        _ if touched.end > i64::MAX as u64 => Err(Errno::FBIG),
        Call::Read | Call::Write if !whole_blocks => Err(Errno::INVAL),
        Call::Punch | Call::Zero | Call::Allocate if touched.is_empty() => Err(Errno::INVAL),
        _ => Ok(()),
    }
}
