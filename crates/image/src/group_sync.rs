//! One `fdatasync` for all flushes that wait when it starts, whichever queues of an image they came
//! from.
//!
//! The queue that asks while none runs carries it out (it *leads*), and goes on for those who came
//! meanwhile. The others sleep until it is done.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use flowstone_block::{Completion, Outcome, mutant};
use flowstone_fileio::{FileOp, FileRequest, MemoryList};

/// The number of the sync that will serve a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// The syncs of one image.
#[derive(Default)]
pub struct GroupSync {
    state: Mutex<State>,
    finished: AtomicU64,
    /// After a failed sync the content of the medium is unknown: nothing is promised any more.
    failed: AtomicBool,
}

#[derive(Default)]
struct State {
    running: bool,
    started: u64,
    /// A flush waits for the sync after the one that runs.
    wanted: bool,
}

impl GroupSync {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a sync that starts from now on. With `true`, the caller is to carry it out.
    pub fn request(&self) -> (Ticket, bool) {
        let mut state = self.state();
        if state.running && mutant("image.group-sync.joins-one-that-has-begun") {
            return (Ticket(state.started), false);
        }
        if state.running {
            state.wanted = true;
            return (Ticket(state.started + 1), false);
        }
        state.running = true;
        state.started += 1;
        (Ticket(state.started), true)
    }

    /// The sync that the caller carried out has ended. With `true`, it is to carry out another,
    /// for flushes that came meanwhile.
    pub fn finish(&self, succeeded: bool) -> bool {
        if !succeeded {
            self.fail();
        }
        let mut state = self.state();
        self.finished.store(state.started, Ordering::Release);
        state.running = std::mem::take(&mut state.wanted);
        state.started += u64::from(state.running);
        state.running
    }

    /// Whether the flush has been served; `failed` tells how.
    pub fn is_served(&self, ticket: Ticket) -> bool {
        self.finished.load(Ordering::Acquire) >= ticket.0
    }

    /// Nothing can be promised from now on.
    pub fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }

    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }
}

/// The flushes of one queue. The queue starts a sync of the file when [`submit`](Self::submit) or
/// [`finish`](Self::finish) says so, and wakes all queues of the image after each `finish`.
#[derive(Default)]
pub struct Flushes {
    waiting: Vec<(Ticket, Completion)>,
    leading: bool,
}

impl Flushes {
    /// Takes a request that is done once everything that has completed by now is durable. With
    /// `true`, the caller is to start a sync.
    #[must_use]
    pub fn submit(&mut self, sync: &GroupSync, completion: Completion) -> bool {
        let (ticket, lead) = sync.request();
        self.waiting.push((ticket, completion));
        self.leading |= lead;
        lead
    }

    /// The sync that the caller started has ended. With `true`, it is to start another.
    #[must_use]
    pub fn finish(&mut self, sync: &GroupSync, outcome: Outcome) -> bool {
        self.leading = sync.finish(outcome.is_ok());
        self.leading
    }

    /// Moves what has been served to `completed`, with `outcome`.
    pub fn collect(&mut self, sync: &GroupSync, outcome: Outcome, completed: &mut Vec<Completion>) {
        let served = self.waiting.extract_if(.., |(ticket, _)| sync.is_served(*ticket));
        completed.extend(served.map(|(_, completion)| Completion { outcome, ..completion }));
    }

    /// Whether something has been served.
    pub fn can_advance(&self, sync: &GroupSync) -> bool {
        self.waiting.iter().any(|(ticket, _)| sync.is_served(*ticket))
    }

    /// Whether a sync of ours is on its way.
    pub fn is_leading(&self) -> bool {
        self.leading
    }
}

/// The request for a sync that a queue starts.
pub fn sync_request(tag: usize) -> FileRequest {
    FileRequest { op: FileOp::Datasync, memory: MemoryList::EMPTY, tag }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_come_while_a_sync_runs_share_the_next_one() {
        let sync = GroupSync::default();
        let (first, lead) = sync.request();
        assert!(lead);
        let (second, lead) = sync.request();
        assert!(!lead);
        assert_eq!(sync.request(), (second, false));
        assert!(sync.finish(true), "the leader goes on");
        assert!(sync.is_served(first) && !sync.is_served(second));
        assert!(!sync.finish(true));
        assert!(sync.is_served(second));
    }

    #[test]
    fn failure_is_remembered() {
        let sync = GroupSync::default();
        let (ticket, _) = sync.request();
        sync.finish(false);
        assert!(sync.is_served(ticket) && sync.has_failed());
        sync.request();
        sync.finish(true);
        assert!(sync.has_failed());
    }
}
