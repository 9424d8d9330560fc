//! Requests that the ring has returned unstarted.
//!
//! Work that would block the submitting thread is done by a kernel worker thread. If the kernel
//! cannot start one because a limit of processes is reached (`TasksMax=` of systemd, a container's
//! `pids.max`, `RLIMIT_NPROC`), it answers `ECANCELED`. Nothing has been done then, so a sync that
//! ends so has not failed: it is retried after a delay, and finally passed to the pool, which does
//! it on the poller's thread if it cannot start a thread either.

use std::time::{Duration, Instant};

use flowstone_block::NextLook;

const FIRST_WAIT: Duration = Duration::from_millis(1);
/// About half a second of retries in total.
const TRIES_MAX: u32 = 9;

/// The unstarted requests of one channel, by their index among its requests in flight.
#[derive(Default)]
pub(crate) struct NotBegun {
    waiting: Vec<(Instant, usize)>,
}

impl NotBegun {
    /// Keeps a request until its next try, with growing delays. Returns `false` after [`TRIES_MAX`]
    /// tries.
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

    /// Takes a request whose retry is due.
    pub fn take_due(&mut self, now: Instant) -> Option<usize> {
        let due = self.waiting.iter().position(|(at, _)| *at <= now)?;
        Some(self.waiting.swap_remove(due).1)
    }

    /// Takes any request, due or not.
    pub fn take(&mut self) -> Option<usize> {
        self.waiting.pop().map(|(_, index)| index)
    }

    /// Returns when the next retry is due.
    pub fn next_look(&self) -> NextLook {
        let first = self.waiting.iter().map(|(at, _)| *at).min();
        first.map_or(NextLook::OnWake, NextLook::At)
    }
}
