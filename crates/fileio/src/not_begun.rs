//! Requests that the ring has given back without having begun them.
//!
//! What would make the submitting thread wait is carried out by a thread of the kernel's. If the
//! kernel can start none, because a limit of processes is reached (`TasksMax=` of systemd, a
//! container's `pids.max`, `RLIMIT_NPROC`), it answers `ECANCELED`. Nothing has been done then, so
//! a sync that ends so has not failed: it is tried again after a while, and in the end given to the
//! pool, which does it on the queue's own thread if it can have no thread either.

use std::time::{Duration, Instant};

use flowstone_block::NextLook;

const FIRST_WAIT: Duration = Duration::from_millis(1);
/// So the ring is asked for about half a second.
const TRIES_MAX: u32 = 9;

/// Those of one channel, by their place among its requests in flight.
#[derive(Default)]
pub(crate) struct NotBegun {
    waiting: Vec<(Instant, usize)>,
}

impl NotBegun {
    /// Keeps a request until its next try, longer each time. Returns `false` if it has had enough
    /// of them.
    pub fn put_off(&mut self, index: usize, refusals: u32, now: Instant) -> bool {
        let goes_on = refusals <= TRIES_MAX;
        if goes_on {
            self.waiting.push((now + FIRST_WAIT * (1 << (refusals - 1)), index));
        }
        goes_on
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// One whose time has come.
    pub fn take_due(&mut self, now: Instant) -> Option<usize> {
        let due = self.waiting.iter().position(|(at, _)| *at <= now)?;
        Some(self.waiting.swap_remove(due).1)
    }

    /// One, whenever its time comes.
    pub fn take(&mut self) -> Option<usize> {
        self.waiting.pop().map(|(_, index)| index)
    }

    /// When the next one's time comes.
    pub fn next_look(&self) -> NextLook {
        let first = self.waiting.iter().map(|(at, _)| *at).min();
        first.map_or(NextLook::OnWake, NextLook::At)
    }
}
