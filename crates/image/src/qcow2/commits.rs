//! Commits: one serves all flushes that were waiting when it began.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use flowstone_block::{Clock, Errno, Outcome, SectorCount, mutant};

use crate::runtime::inbox::Inbox;

/// Work of the maintenance worker that has a reply.
#[derive(Clone, Copy, Debug)]
pub enum Command {
    /// Free clusters, if there are none.
    MakeRoom,
    /// The disk has another size.
    Resize(SectorCount),
    /// Put clusters in order.
    Compact,
}

/// The commit that will serve a flush. Each keeps its own outcome as long as a ticket is left, so a
/// failure is never forgotten.
#[derive(Clone, Debug, Default)]
pub struct Ticket(Arc<OnceLock<Outcome>>);

/// What the maintenance worker is asked to do, and what it has done.
#[derive(Default)]
pub struct Commits {
    pub inbox: Inbox<Command>,
    state: Mutex<State>,
    /// Wakes threads that wait for a commit.
    ended: Condvar,
    /// After a failed sync the content of the medium is unknown: nothing is promised any more.
    failed: AtomicBool,
    /// There is no maintenance worker any more.
    abandoned: AtomicBool,
    /// Something has changed since the last commit began.
    touched: AtomicBool,
    /// There will soon be no free clusters.
    lacks_room: AtomicBool,
}

#[derive(Default)]
struct State {
    /// The commit that is being made, and the one after it.
    current: Ticket,
    next: Ticket,
    /// The next one is waited for.
    wanted: bool,
}

impl Commits {
    /// Nothing has changed yet.
    pub fn new(clock: Clock) -> Self {
        Self { inbox: Inbox::new(clock), ..Self::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a commit that begins from now on.
    pub fn ask(&self) -> Ticket {
        let mut state = self.state();
        let calls = !std::mem::replace(&mut state.wanted, true);
        let ticket = state.next.clone();
        drop(state);
        if calls {
            self.inbox.schedule_pass();
        }
        ticket
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

    /// Asks for a commit that begins from now on, and waits for it.
    pub fn run(&self) -> Outcome {
        let ticket = self.ask();
        let mut state = self.state();
        loop {
            if let Some(outcome) = self.outcome(&ticket) {
                return outcome;
            }
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Asks for free clusters before there are none left; does not wait.
    pub fn hint_room(&self) {
        if !self.lacks_room.swap(true, Ordering::AcqRel) {
            self.inbox.schedule_pass();
        }
    }

    /// The map has changed: a commit is due some time after this.
    pub fn touch(&self) {
        if !self.touched.swap(true, Ordering::AcqRel) {
            self.inbox.schedule_pass();
        }
    }

    /// For the maintenance worker: whether a flush waits for a commit.
    pub fn is_wanted(&self) -> bool {
        self.state().wanted
    }

    /// For the maintenance worker: whether something has changed since the last commit began.
    pub fn is_touched(&self) -> bool {
        self.touched.load(Ordering::Acquire)
    }

    /// For the maintenance worker: whether it has been told that room is short since it was last
    /// asked.
    pub fn take_lacks_room(&self) -> bool {
        self.lacks_room.swap(false, Ordering::AcqRel)
    }

    /// For the maintenance worker: a commit begins. Tickets given out from now on are for the next
    /// one.
    pub fn begin(&self) {
        let mut state = self.state();
        state.current = std::mem::take(&mut state.next);
        state.wanted = false;
        // Before the map is looked at, so that no change goes unnoticed.
        self.touched.store(false, Ordering::Release);
    }

    /// For the maintenance worker: the commit has ended.
    pub fn end(&self, outcome: Outcome) {
        let ended = self.state().current.0.set(outcome);
        ended.expect("a commit ends once");
        self.ended.notify_all();
    }

    /// The maintenance worker is gone; all waiters fail with EIO.
    pub fn abandon(&self) {
        self.inbox.close();
        let _state = self.state();
        self.abandoned.store(true, Ordering::Release);
        self.ended.notify_all();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_serves_those_who_asked_before_it_began() {
        let commits = Commits::default();
        let early = commits.ask();
        assert!(commits.is_wanted());
        commits.begin();
        assert!(!commits.is_wanted());
        let late = commits.ask();
        commits.end(Err(Errno::NOSPC));
        assert_eq!(commits.outcome(&early), Some(Err(Errno::NOSPC)));
        assert_eq!(commits.outcome(&late), None);
        commits.begin();
        commits.end(Ok(()));
        assert_eq!(commits.outcome(&late), Some(Ok(())));
    }

    #[test]
    fn all_that_wait_fail_when_the_maintenance_worker_ends() {
        let commits = Commits::default();
        std::thread::scope(|scope| {
            let waits = [
                scope.spawn(|| commits.run()),
                scope.spawn(|| commits.inbox.ask(Command::MakeRoom).wait()),
            ];
            while !commits.is_wanted() || !commits.inbox.wait(None).pass {
                std::thread::yield_now();
            }
            commits.abandon();
            assert_eq!(waits.map(|wait| wait.join().unwrap()), [Err(Errno::IO); 2]);
        });
        assert_eq!(commits.run(), Err(Errno::IO), "too late");
    }
}
