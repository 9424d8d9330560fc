//! Eventfds: kernel counters that one side increments and the other reads and resets.
//!
//! Non-blocking, as QEMU's are: the flag belongs to the open file and so applies to the backend
//! too.

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, Timespec};
use rustix::io::Errno;
use vmm_sys_util::eventfd::EventFd;

use crate::{Error, Result};

/// A non-blocking eventfd.
#[derive(Debug)]
pub struct Event(OwnedFd);

impl Event {
    /// Makes an unsignalled eventfd.
    pub fn new() -> Result<Self> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        rustix::event::eventfd(0, flags).map(Event).map_err(|e| Error::io("create an eventfd", e))
    }

    /// Returns another handle of the same counter.
    pub fn try_clone(&self) -> Result<Self> {
        self.0.try_clone().map(Event).map_err(|e| Error::io("clone an eventfd", e))
    }

    /// Increments the counter.
    #[inline]
    pub fn signal(&self) -> Result<()> {
        rustix::io::write(&self.0, &1_u64.to_ne_bytes())
            .map(drop)
            .map_err(|e| Error::io("signal an eventfd", e))
    }

    /// Reads and resets the counter; 0 if it was not signalled.
    #[inline]
    pub fn take(&self) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(&self.0, &mut count) {
            Ok(8) => u64::from_ne_bytes(count),
            _ => 0,
        }
    }

    /// Returns a handle of the wire crate's type.
    pub(super) fn to_wire(&self) -> Result<EventFd> {
        let fd = self.0.try_clone().map_err(|e| Error::io("clone an eventfd", e))?;
        // SAFETY: the descriptor was just cloned and is given away here, nowhere else.
        Ok(unsafe { EventFd::from_raw_fd(fd.into_raw_fd()) })
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sleeps until one of `fds` is ready. `false` on timeout.
pub(crate) fn wait_readable(fds: &mut [PollFd<'_>], timeout: Duration) -> Result<bool> {
    let deadline = Instant::now() + timeout;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).expect("timeouts are far below the end of time");
        match rustix::event::poll(fds, Some(&left)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(e) => return Err(Error::io("poll", e)),
        }
    }
}
