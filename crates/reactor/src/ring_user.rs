//! A share of a thread's ring.

use std::io;

use io_uring::squeue;

use crate::Reactor;
use crate::reactor::user_mark;

/// Submits to its reactor's ring and takes its own completions. Its owner takes all of them before
/// it drops this.
pub struct RingUser {
    reactor: Reactor,
    slot: usize,
    /// Submissions whose completions have not been taken.
    in_flight: usize,
}

impl RingUser {
    /// With room for about so many submissions at once. Fails where the host offers no io_uring.
    pub fn new(reactor: &Reactor, entries: u32) -> io::Result<Self> {
        let slot = reactor.state().add_user(entries)?;
        Ok(Self { reactor: reactor.clone(), slot, in_flight: 0 })
    }

    /// Queues a submission. Its completion carries `mark`.
    ///
    /// # Safety
    /// What the entry names, memory and descriptor, must stay valid until its completion has been
    /// taken.
    pub unsafe fn push(&mut self, entry: squeue::Entry, mark: u32) {
        let entry = entry.user_data(user_mark(self.slot, mark));
        self.in_flight += 1;
        // SAFETY: the caller vouches for it.
        unsafe { self.reactor.state().ring().push(&entry) };
    }

    /// Starts what the thread has queued, if anything.
    pub fn submit(&mut self) {
        self.reactor.state().submit();
    }

    /// The mark and the result of the next completion that has come. Does not enter the kernel.
    pub fn next_completion(&mut self) -> Option<(u32, i32)> {
        let next = self.reactor.state().next_for(self.slot);
        self.in_flight -= usize::from(next.is_some());
        next
    }

    /// Enters the kernel if that holds completions which only entering brings out. Returns whether
    /// it did.
    pub fn bring_out(&mut self) -> bool {
        let mut state = self.reactor.state();
        let inside = state.ring().has_more_inside();
        if inside {
            state.ring().enter(0, None);
        }
        inside
    }

    /// Returns whether another user's look has brought out a completion of ours.
    pub fn has_mail(&self) -> bool {
        !self.reactor.state().mailboxes[self.slot].is_empty()
    }

    /// Waits for a completion of anything in the ring: for a drop, which cannot leave before the
    /// kernel has.
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
