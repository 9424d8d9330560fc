//! How one thread wakes a queue of an image.
//!
//! A queue's own I/O rings its own bell. This one is for what others do, e.g. a record of theirs that
//! ours waits behind has committed, a flush of theirs covers ours, the keeper has made room.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

use rustix::event::{EventfdFlags, eventfd};

/// A queue's bell.
pub struct Waker {
    event: OwnedFd,
    asleep: AtomicBool,
    rung: AtomicBool,
}

impl Waker {
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self {
            event: eventfd(0, flags)?,
            asleep: AtomicBool::new(false),
            rung: AtomicBool::new(false),
        })
    }

    /// Wakes the owner if it sleeps. What it will find must have been stored before.
    pub fn wake(&self) {
        // Pairs with the fence in `fall_asleep`: either we see it asleep, or it sees our news.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && !self.rung.swap(true, Ordering::AcqRel) {
            // The counter cannot be full: it is written once per sleep.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// To be followed by a last look for news, then the sleep, then `wake_up`.
    pub fn fall_asleep(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The owner is awake again.
    pub fn wake_up(&self) {
        self.asleep.store(false, Ordering::Relaxed);
        if self.rung.swap(false, Ordering::AcqRel) {
            let _ = rustix::io::read(&self.event, &mut [0; 8]);
        }
    }

    /// Readable when rung.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
