//! Who waits for the keeper, and for what.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use flowstone_block::{Errno, Outcome, SectorCount, mutant};

/// The commit that will serve a flush. Each keeps its own outcome for as long as anyone may ask, so
/// a failure is never forgotten.
#[derive(Clone, Debug, Default)]
pub struct Ticket(Arc<OnceLock<Outcome>>);

/// What the keeper is asked, and how far it has come.
#[derive(Default)]
pub struct Commits {
    state: Mutex<State>,
    /// Rings for the keeper.
    bell: Condvar,
    /// Rings for those who have asked for room, a new size or order.
    answered: Condvar,
    /// After a failed sync nobody knows what is on the medium: nothing is promised any more.
    failed: AtomicBool,
    /// There is no keeper any more.
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
    wishes: Wishes,
    rooms_asked: u64,
    rooms_made: u64,
    /// Of the last new size, or `compact`.
    answer: Option<Outcome>,
}

/// What the keeper is to do next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    pub commit: bool,
    pub room: bool,
    pub resize: Option<SectorCount>,
    pub compact: bool,
    /// Something has changed for the first time since the last commit began.
    pub touched: bool,
    pub stop: bool,
}

/// How often progress is told.
const PROGRESS_PERIOD: Duration = Duration::from_millis(100);

impl Commits {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a commit that begins from now on.
    pub fn ask(&self) -> Ticket {
        let mut state = self.state();
        state.wishes.commit = true;
        self.bell.notify_one();
        state.next.clone()
    }

    /// How the commit has ended; `None` if it has not.
    pub fn outcome(&self, ticket: &Ticket) -> Option<Outcome> {
        if mutant("qcow2.flush.answered-before-the-commit") {
            return Some(Ok(()));
        }
        // In this order: a commit that ended before the keeper did has its own outcome.
        let is_abandoned = self.is_abandoned();
        ticket.0.get().copied().or_else(|| is_abandoned.then_some(Err(Errno::IO)))
    }

    /// Asks for free clusters and waits until there are some, or will be none.
    pub fn ask_for_room(&self) {
        let mut state = self.state();
        state.rooms_asked += 1;
        let ours = state.rooms_asked;
        state.wishes.room = true;
        self.bell.notify_one();
        while state.rooms_made < ours && !state.wishes.stop && !self.is_abandoned() {
            state = self.answered.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Asks for free clusters before there are none left; does not wait.
    pub fn hint_room(&self) {
        let mut state = self.state();
        if !state.wishes.room {
            state.wishes.room = true;
            self.bell.notify_one();
        }
    }

    /// Asks for another size and waits for the outcome.
    pub fn ask_for_size(&self, capacity: SectorCount) -> Outcome {
        self.ask_and_wait(|wishes| wishes.resize = Some(capacity), &mut |_, _| {})
    }

    /// Asks for order in the file and waits for the outcome. `progress` is told how many clusters of
    /// how many have been moved.
    pub fn ask_for_order(&self, progress: &mut dyn FnMut(u64, u64)) -> Outcome {
        self.ask_and_wait(|wishes| wishes.compact = true, progress)
    }

    fn ask_and_wait(
        &self,
        wish: impl FnOnce(&mut Wishes),
        progress: &mut dyn FnMut(u64, u64),
    ) -> Outcome {
        let mut state = self.state();
        state.answer = None;
        wish(&mut state.wishes);
        self.bell.notify_one();
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
            self.state().wishes.touched = true;
            self.bell.notify_one();
        }
    }

    /// The keeper is to end.
    pub fn stop(&self) {
        self.state().wishes.stop = true;
        self.bell.notify_one();
    }

    /// For the keeper: what to do next; nothing, if nobody wants anything for so long.
    pub fn next(&self, patience: Option<Duration>) -> Wishes {
        let mut state = self.state();
        if state.wishes == Wishes::default() {
            state = match patience {
                Some(patience) => {
                    let woken = self.bell.wait_timeout(state, patience);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.bell.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        let stop = state.wishes.stop;
        std::mem::replace(&mut state.wishes, Wishes { stop, ..Wishes::default() })
    }

    /// For the keeper: a commit begins. Those who ask from now on mean the next one.
    pub fn begin(&self) {
        let mut state = self.state();
        state.current = std::mem::take(&mut state.next);
        state.wishes.commit = false;
        // Before the map is looked at, so that no change goes unnoticed.
        self.touched.store(false, Ordering::Release);
    }

    /// For the keeper: the commit has ended.
    pub fn end(&self, outcome: Outcome) {
        let ended = self.state().current.0.set(outcome);
        ended.expect("a commit ends once");
    }

    /// For the keeper: the request for room that it has just heard of has been served.
    pub fn made_room(&self) {
        let mut state = self.state();
        state.rooms_made = state.rooms_asked;
        self.answered.notify_all();
    }

    /// For the keeper: how far it has come with putting clusters in order.
    pub fn compacted(&self, done: u64, all: u64) {
        self.compacted[0].store(done, Ordering::Relaxed);
        self.compacted[1].store(all, Ordering::Relaxed);
    }

    /// For the keeper: how the change of size, or `compact`, has ended.
    pub fn answer(&self, outcome: Outcome) {
        self.state().answer = Some(outcome);
        self.answered.notify_all();
    }

    /// There is no keeper any more: whoever waits for it is told so.
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
