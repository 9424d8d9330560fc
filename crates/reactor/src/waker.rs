//! The waker of a thread, by which any other thread ends its sleep.

use std::io;

use crate::event::Event;
use crate::mutated;
use crate::sync::atomic::{AtomicBool, Ordering, fence};

/// Ends the sleep of one thread. Costs a fence and a load while that thread is awake.
pub struct Waker {
    event: Event,
    asleep: AtomicBool,
    rung: AtomicBool,
}

impl Waker {
    /// Makes the waker of a thread that is awake.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            event: Event::new()?,
            asleep: AtomicBool::new(false),
            rung: AtomicBool::new(false),
        })
    }

    /// Wakes the thread if it sleeps. The data that it is to find must have been stored before.
    pub fn wake(&self) {
        // Pairs with the fence in `fall_asleep`: either we see that it sleeps, or its last check
        // sees what we have stored.
        let fences = mutated("reactor.waker.wakes-without-fence", true, false);
        if fences {
            fence(Ordering::SeqCst);
        }
        if self.asleep.load(Ordering::Relaxed) && !self.rung.swap(true, Ordering::AcqRel) {
            self.event.ring();
        }
    }

    /// Announces a sleep. Must be followed by a last check, then the sleep, then `wake_up`.
    pub(crate) fn fall_asleep(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        let fences = mutated("reactor.waker.falls-asleep-without-fence", true, false);
        if fences {
            fence(Ordering::SeqCst);
        }
    }

    /// Announces that the thread is awake again.
    pub(crate) fn wake_up(&self) {
        self.asleep.store(false, Ordering::Relaxed);
        // `wake` sets the mark before it writes the event. The mark stays until the event has
        // arrived; otherwise a late event would never be read, and would end every sleep from then
        // on.
        if self.rung.load(Ordering::Acquire) {
            let arrived = self.event.take();
            let arrived = mutated("reactor.waker.forgets-an-event-that-comes-late", arrived, true);
            if arrived {
                // An exchange, so that the stores of threads that found the mark set are visible
                // from here on.
                self.rung.swap(false, Ordering::AcqRel);
            }
        }
    }

    /// Returns the event, which is readable after a wake-up.
    pub(crate) fn event(&self) -> &Event {
        &self.event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(waker: &Waker) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(&waker.event, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    }

    #[test]
    fn a_sleep_is_ended_once() {
        let waker = Waker::new().unwrap();
        waker.fall_asleep();
        waker.wake();
        waker.wake();
        assert!(is_readable(&waker));
        waker.wake_up();
        assert!(!is_readable(&waker));
        waker.wake();
        assert!(!is_readable(&waker), "the owner is awake");
    }

    /// The owner woke up by itself between the two steps of a wake-up. The event stayed readable,
    /// and the owner never slept again.
    #[test]
    fn an_event_that_comes_late_ends_one_sleep_and_no_more() {
        let waker = Waker::new().unwrap();
        waker.fall_asleep();
        assert!(!waker.rung.swap(true, Ordering::AcqRel));
        waker.wake_up();
        waker.event.ring();
        for sleep in 0..3 {
            waker.fall_asleep();
            assert!(sleep == 0 || !is_readable(&waker), "sleep {sleep} ends at once");
            waker.wake_up();
        }
        waker.fall_asleep();
        waker.wake();
        assert!(is_readable(&waker));
    }
}
