//! Tells the threads that watch the load when a poller wakes up; they sleep while no poller has.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Thread, current, park_timeout};
use std::time::Duration;

/// Longest sleep. A wake-up just before the sleep is missed if its poller then never sleeps, so the
/// sleep has a timeout.
const SLEEP_MAX: Duration = Duration::from_secs(10);

/// Shared by all pollers and the threads that watch their load.
#[derive(Default)]
pub struct Activity {
    /// Whether a thread sleeps here.
    asleep: AtomicBool,
    sleepers: Mutex<Vec<Thread>>,
}

impl Activity {
    fn sleepers(&self) -> MutexGuard<'_, Vec<Thread>> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until a poller wakes up, this thread is unparked, or [`SLEEP_MAX`] has passed.
    /// Returns whether a poller woke up.
    pub fn wait(&self) -> bool {
        {
            let mut sleepers = self.sleepers();
            sleepers.push(current());
            self.asleep.store(true, Ordering::Release);
        }
        park_timeout(SLEEP_MAX);
        let this = current().id();
        let mut sleepers = self.sleepers();
        let before = sleepers.len();
        // `woke` removes the threads that it unparks from the list.
        sleepers.retain(|thread| thread.id() != this);
        sleepers.len() == before
    }

    /// Called when a poller wakes up. Costs one load while no thread sleeps here.
    pub(crate) fn woke(&self) {
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::AcqRel) {
            self.sleepers().drain(..).for_each(|thread| thread.unpark());
        }
    }
}

#[cfg(test)]
impl Activity {
    /// Returns whether a thread sleeps, or is about to.
    pub fn has_sleepers(&self) -> bool {
        self.asleep.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn all_that_sleep_are_woken() {
        let activity = Arc::new(Activity::default());
        let wait = |_| {
            let activity = Arc::clone(&activity);
            std::thread::spawn(move || activity.wait())
        };
        let threads: Vec<_> = (0..3).map(wait).collect();
        flowstone_testkit::wait_until("none sleeps on", || {
            activity.woke();
            threads.iter().all(|thread| thread.is_finished())
        });
        // None has ended by itself.
        assert!(threads.into_iter().all(|thread| thread.join().unwrap()));
    }
}
