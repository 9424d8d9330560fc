//! A user of a thread's ring.

use std::io;

use io_uring::squeue;

use crate::Reactor;
use crate::reactor::user_mark;

/// Submits to its reactor's ring and takes its own completions. Its owner must take all of them
/// before dropping it.
pub struct RingUser {
    reactor: Reactor,
    slot: usize,
    /// Submissions whose completions have not been taken.
    in_flight: usize,
}

impl RingUser {
    /// Makes a user with room for about `entries` submissions. Fails on a host without io_uring.
    pub fn new(reactor: &Reactor, entries: u32) -> io::Result<Self> {
        let slot = reactor.state().add_user(entries)?;
        Ok(Self { reactor: reactor.clone(), slot, in_flight: 0 })
    }

    /// Queues a submission, whose completion carries `mark`.
    ///
    /// # Safety
    /// The memory and the descriptor that the entry names must stay valid until its completion has
    /// been taken.
    pub unsafe fn push(&mut self, entry: squeue::Entry, mark: u32) {
        let entry = entry.user_data(user_mark(self.slot, mark));
        self.in_flight += 1;
        let mut state = self.reactor.state();
        state.uses += 1;
        // SAFETY: the caller vouches for it.
        unsafe { state.ring().push(&entry) };
    }

    /// Submits the thread's queued entries, if any, unless its reactor [gathers](Reactor::gather)
    /// them.
    pub fn submit(&mut self) {
        let _ = self.reactor.state().submit();
    }

    /// Returns the mark and the result of the next completion that has arrived. Does not enter the
    /// kernel.
    pub fn next_completion(&mut self) -> Option<(u32, i32)> {
        let mut state = self.reactor.state();
        let next = state.next_for(self.slot);
        state.uses += u64::from(next.is_some());
        drop(state);
        self.in_flight -= usize::from(next.is_some());
        next
    }

    /// Enters the kernel if it holds completions that only entering delivers, and its reactor does
    /// not [gather](Reactor::gather). Returns whether it did.
    pub fn bring_out(&mut self) -> bool {
        self.reactor.state().bring_out()
    }

    /// Returns whether another user has taken a completion of ours from the ring.
    pub fn has_mail(&self) -> bool {
        !self.reactor.state().mailboxes[self.slot].is_empty()
    }

    /// Waits for any completion in the ring: for a drop, which must wait for the kernel.
    pub fn wait(&mut self) {
        if !self.has_mail() {
            self.reactor.state().ring().enter(1, None);
        }
    }
}

impl Drop for RingUser {
    fn drop(&mut self) {
        let unseen = self.in_flight;
        debug_assert!(unseen == 0 || std::thread::panicking(), "{unseen} completions not taken");
        self.reactor.state().mailboxes.remove(self.slot);
    }
}
