//! What the maintenance worker is asked to do, and its answers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use flowstone_block::{Errno, Outcome, SectorCount, mutant};

/// The commit that will serve a flush. Each keeps its own outcome as long as a ticket is left, so a
/// failure is never forgotten.
#[derive(Clone, Debug, Default)]
pub struct Ticket(Arc<OnceLock<Outcome>>);

/// What the maintenance worker is asked to do, and what it has done.
#[derive(Default)]
pub struct Commits {
    state: Mutex<State>,
    /// Wakes the maintenance worker.
    wakeup: Condvar,
    /// Wakes threads that wait for room, a new size or `compact`.
    answered: Condvar,
    /// After a failed sync the content of the medium is unknown: nothing is promised any more.
    failed: AtomicBool,
    /// There is no maintenance worker any more.
    abandoned: AtomicBool,
    /// Something has changed since the last commit began.
    touched: AtomicBool,
    /// How far `compact` has come: clusters that it has moved, and all that it moves.
    compacted: [AtomicU64; 2],
}

#[derive(Default)]
struct State {
    /// The commit that is being made, and the one after it.
    current: Ticket,
    next: Ticket,
    pending_work: PendingWork,
    rooms_asked: u64,
    rooms_made: u64,
    /// Of the last new size, or `compact`.
    answer: Option<Outcome>,
}

/// What the maintenance worker is to do next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingWork {
    pub commit: bool,
    pub room: bool,
    pub resize: Option<SectorCount>,
    pub compact: bool,
    /// Something has changed for the first time since the last commit began.
    pub touched: bool,
    pub stop: bool,
}

/// How often progress is reported.
const PROGRESS_PERIOD: Duration = Duration::from_millis(100);

impl Commits {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a commit that begins from now on.
    pub fn ask(&self) -> Ticket {
        let mut state = self.state();
        state.pending_work.commit = true;
        self.wakeup.notify_one();
        state.next.clone()
    }

    /// How the commit has ended; `None` if it has not.
    pub fn outcome(&self, ticket: &Ticket) -> Option<Outcome> {
        if mutant("qcow2.flush.answered-before-the-commit") {
            return Some(Ok(()));
        }
        // In this order: a commit that ended before the maintenance worker did has its own outcome.
        let is_abandoned = self.is_abandoned();
        ticket.0.get().copied().or_else(|| is_abandoned.then_some(Err(Errno::IO)))
    }

    /// Asks for free clusters and waits until there are some, or will be none.
    pub fn ask_for_room(&self) {
        let mut state = self.state();
        state.rooms_asked += 1;
        let ours = state.rooms_asked;
        state.pending_work.room = true;
        self.wakeup.notify_one();
        while state.rooms_made < ours && !state.pending_work.stop && !self.is_abandoned() {
            state = self.answered.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Asks for free clusters before there are none left; does not wait.
    pub fn hint_room(&self) {
        let mut state = self.state();
        if !state.pending_work.room {
            state.pending_work.room = true;
            self.wakeup.notify_one();
        }
    }

    /// Asks for another size and waits for the outcome.
    pub fn ask_for_size(&self, capacity: SectorCount) -> Outcome {
        self.ask_and_wait(|pending_work| pending_work.resize = Some(capacity), &mut |_, _| {})
    }

    /// Asks for `compact` and waits for the outcome. `progress` is called with the number of
    /// clusters that have been moved, and of all that move.
    pub fn ask_for_compact(&self, progress: &mut dyn FnMut(u64, u64)) -> Outcome {
        self.ask_and_wait(|pending_work| pending_work.compact = true, progress)
    }

    fn ask_and_wait(
        &self,
        set: impl FnOnce(&mut PendingWork),
        progress: &mut dyn FnMut(u64, u64),
    ) -> Outcome {
        let mut state = self.state();
        state.answer = None;
        set(&mut state.pending_work);
        self.wakeup.notify_one();
        loop {
            if let Some(outcome) = state.answer.take() {
                return outcome;
            }
            if self.is_abandoned() {
                return Err(Errno::IO);
            }
            let woken = self.answered.wait_timeout(state, PROGRESS_PERIOD);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
            let [done, all] = &self.compacted;
            progress(done.load(Ordering::Relaxed), all.load(Ordering::Relaxed));
        }
    }

    /// The map has changed: a commit is due some time after this.
    pub fn touch(&self) {
        if !self.touched.swap(true, Ordering::AcqRel) {
            self.state().pending_work.touched = true;
            self.wakeup.notify_one();
        }
    }

    /// Asks the maintenance worker to end.
    pub fn stop(&self) {
        self.state().pending_work.stop = true;
        self.wakeup.notify_one();
    }

    /// For the maintenance worker: what to do next; nothing, if no work comes for so long.
    pub fn next(&self, patience: Option<Duration>) -> PendingWork {
        let mut state = self.state();
        if state.pending_work == PendingWork::default() {
            state = match patience {
                Some(patience) => {
                    let woken = self.wakeup.wait_timeout(state, patience);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.wakeup.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        let stop = state.pending_work.stop;
        std::mem::replace(&mut state.pending_work, PendingWork { stop, ..PendingWork::default() })
    }

    /// For the maintenance worker: a commit begins. Tickets given out from now on are for the next
    /// one.
    pub fn begin(&self) {
        let mut state = self.state();
        state.current = std::mem::take(&mut state.next);
        state.pending_work.commit = false;
        // Before the map is looked at, so that no change goes unnoticed.
        self.touched.store(false, Ordering::Release);
    }

    /// For the maintenance worker: the commit has ended.
    pub fn end(&self, outcome: Outcome) {
        let ended = self.state().current.0.set(outcome);
        ended.expect("a commit ends once");
    }

    /// For the maintenance worker: the request for room that it has just taken has been served.
    pub fn made_room(&self) {
        let mut state = self.state();
        state.rooms_made = state.rooms_asked;
        self.answered.notify_all();
    }

    /// For the maintenance worker: how far it has come with putting clusters in order.
    pub fn compacted(&self, done: u64, all: u64) {
        self.compacted[0].store(done, Ordering::Relaxed);
        self.compacted[1].store(all, Ordering::Relaxed);
    }

    /// For the maintenance worker: how the change of size, or `compact`, has ended.
    pub fn answer(&self, outcome: Outcome) {
        self.state().answer = Some(outcome);
        self.answered.notify_all();
    }

    /// The maintenance worker is gone; all waiters fail with EIO.
    pub fn abandon(&self) {
        let _state = self.state();
        self.abandoned.store(true, Ordering::Release);
        self.answered.notify_all();
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// Nothing can be promised from now on.
    pub fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }

    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }
}
