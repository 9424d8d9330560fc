//! Commits: one serves all flushes that wait when it begins.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use flowstone_block::{Clock, Errno, Outcome, SectorCount, lock, mutated};
use flowstone_image::runtime::inbox::Inbox;

/// Commands of the maintenance worker, which have a reply.
#[derive(Clone, Copy, Debug)]
pub enum Command {
    /// Free clusters, if none are left.
    MakeRoom,
    /// Change the size of the disk.
    Resize(SectorCount),
    /// Put clusters in the order of the disk.
    Compact,
}

/// Identifies the commit that will serve a flush. Each commit keeps its own outcome as long as a
/// ticket exists, so a failure is never lost.
#[derive(Clone, Debug, Default)]
pub struct Ticket(Arc<OnceLock<Outcome>>);

/// Requests to the maintenance worker, and the outcomes of its commits.
#[derive(Default)]
pub struct Commits {
    pub inbox: Inbox<Command>,
    state: Mutex<State>,
    /// Wakes threads that wait for a commit.
    ended: Condvar,
    /// After a failed sync the content of the medium is unknown: all later flushes fail.
    failed: AtomicBool,
    /// The maintenance worker has ended.
    abandoned: AtomicBool,
    /// Something has changed since the last commit began.
    touched: AtomicBool,
    /// Free clusters are running out.
    lacks_room: AtomicBool,
}

#[derive(Default)]
struct State {
    /// The running commit, and the one after it.
    current: Ticket,
    next: Ticket,
    /// A flush waits for the next commit.
    wanted: bool,
}

impl Commits {
    /// No changes, and no requests.
    pub fn new(clock: Clock) -> Self {
        Self { inbox: Inbox::new(clock), ..Self::default() }
    }

    /// Requests a commit that begins from now on.
    pub fn ask(&self) -> Ticket {
        let mut state = lock(&self.state);
        let calls = !std::mem::replace(&mut state.wanted, true);
        let ticket = state.next.clone();
        drop(state);
        if calls {
            self.inbox.schedule_pass();
        }
        ticket
    }

    /// Returns the outcome of the commit; `None` if it has not ended.
    pub fn outcome(&self, ticket: &Ticket) -> Option<Outcome> {
        let waits = mutated("qcow2.flush.answered-before-the-commit", true, false);
        if !waits {
            return Some(Ok(()));
        }
        // In this order: a commit that ended before the maintenance worker did has an outcome of
        // its own.
        let is_abandoned = self.is_abandoned();
        ticket.0.get().copied().or_else(|| is_abandoned.then_some(Err(Errno::IO)))
    }

    /// Requests a commit that begins from now on, and waits for it.
    pub fn run(&self) -> Outcome {
        let ticket = self.ask();
        let mut state = lock(&self.state);
        loop {
            if let Some(outcome) = self.outcome(&ticket) {
                return outcome;
            }
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Asks for free clusters before they run out; does not block.
    pub fn hint_room(&self) {
        if !self.lacks_room.swap(true, Ordering::AcqRel) {
            self.inbox.schedule_pass();
        }
    }

    /// Notes a change of the map: a commit is due some time later.
    pub fn touch(&self) {
        if !self.touched.swap(true, Ordering::AcqRel) {
            self.inbox.schedule_pass();
        }
    }

    /// For the maintenance worker: returns whether a flush waits for a commit.
    pub fn is_wanted(&self) -> bool {
        lock(&self.state).wanted
    }

    /// For the maintenance worker: returns whether something has changed since the last commit
    /// began.
    pub fn is_touched(&self) -> bool {
        self.touched.load(Ordering::Acquire)
    }

    /// For the maintenance worker: returns whether a shortage of clusters was reported since the
    /// last call.
    pub fn take_lacks_room(&self) -> bool {
        self.lacks_room.swap(false, Ordering::AcqRel)
    }

    /// For the maintenance worker: begins a commit. Tickets issued from now on are for the next
    /// one.
    pub fn begin(&self) {
        let mut state = lock(&self.state);
        state.current = std::mem::take(&mut state.next);
        state.wanted = false;
        // Before the map is read, so that no change is missed.
        self.touched.store(false, Ordering::Release);
    }

    /// For the maintenance worker: ends the commit.
    pub fn end(&self, outcome: Outcome) {
        let ended = lock(&self.state).current.0.set(outcome);
        ended.expect("a commit ends once");
        self.ended.notify_all();
    }

    /// Marks the maintenance worker as ended; all waiting requests fail with EIO.
    pub fn abandon(&self) {
        self.inbox.close();
        let _state = lock(&self.state);
        self.abandoned.store(true, Ordering::Release);
        self.ended.notify_all();
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// Makes all later flushes fail.
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
