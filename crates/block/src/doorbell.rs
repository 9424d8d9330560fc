//! What ends a sleep from outside: file descriptors that become readable.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The descriptors a sleeping queue listens to, and when it must wake up anyway.
#[derive(Clone, Copy, Debug)]
pub struct Doorbells<'fd> {
    /// Readable means wake up. A channel is given the same descriptors, in the same order, every
    /// time: engines keep polls armed between sleeps.
    pub fds: &'fd [BorrowedFd<'fd>],
    /// Wake up at this time even if nothing happened.
    pub deadline: Option<Instant>,
}

impl<'fd> Doorbells<'fd> {
    /// The same doorbells with the earlier of the two deadlines.
    #[must_use]
    pub fn no_later_than(self, other: Option<Instant>) -> Self {
        let deadline = match (self.deadline, other) {
            (Some(mine), Some(theirs)) => Some(mine.min(theirs)),
            (mine, theirs) => mine.or(theirs),
        };
        Self { fds: self.fds, deadline }
    }
}

/// Sleeps until a doorbell or `own`, an engine's completion descriptor, is readable.
///
/// May return early; callers look again at everything they wait for.
pub fn poll_doorbells(doorbells: &Doorbells<'_>, own: Option<BorrowedFd<'_>>) {
    let mut fds: Vec<PollFd<'_>> = doorbells
        .fds
        .iter()
        .chain(own.as_ref())
        .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
        .collect();
    let timeout =
        doorbells.deadline.map(|at| timespec(at.saturating_duration_since(Instant::now())));
    // An interrupted or failed poll is an early wake-up: the caller looks again.
    let _ = poll(&mut fds, timeout.as_ref());
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}
