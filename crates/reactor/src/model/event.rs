//! Stand-in for an eventfd and the sleep in the kernel until it is readable.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use loom::sync::{Condvar, Mutex};

/// Models the guarantees of the kernel: `write` makes it readable and ends the sleep of waiting
/// threads; a sleep that begins while it is readable ends at once; `read` makes it unreadable; a
/// thread that reads, or is woken, sees what the writer did before (each of these takes the lock of
/// the eventfd's queue). Spurious wake-ups are possible.
#[derive(Default)]
pub struct Event {
    readable: Mutex<bool>,
    woken: Condvar,
}

impl Event {
    /// Makes an event that is not readable.
    pub fn new() -> io::Result<Self> {
        Ok(Self::default())
    }

    /// Makes it readable.
    pub fn ring(&self) {
        *self.readable.lock().expect("no thread of a model outlives a panic") = true;
        self.woken.notify_all();
    }

    /// Clears the event. Returns whether it was readable.
    pub fn take(&self) -> bool {
        std::mem::take(&mut *self.readable.lock().expect("as above"))
    }

    /// Returns whether a sleep would end at once.
    pub fn is_readable(&self) -> bool {
        *self.readable.lock().expect("as above")
    }

    /// Sleeps until it is readable, or for a moment.
    pub fn sleep_in_model(&self, for_a_moment: bool) -> bool {
        let mut readable = self.readable.lock().expect("as above");
        while !*readable && !for_a_moment {
            readable = self.woken.wait(readable).expect("as above");
        }
        true
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        unreachable!("a model sleeps without the kernel")
    }
}
