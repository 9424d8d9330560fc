//! The drive's time, and cooperative scheduling while something waits for it.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use flowstone_block::{Clock, TimeSource};

/// Other users of drives on this thread.
enum Others {
    /// There are none: a waiting caller advances the time.
    None,
    /// Runs the others, at most until this time, and returns whether anything has happened.
    Waiting(Box<dyn FnMut(Option<Instant>) -> bool>),
    /// They are running now, and advance the time.
    Working,
}

thread_local! {
    static OTHERS: RefCell<Others> = const { RefCell::new(Others::None) };
}

/// Runs `work`. Whenever it waits for a drive, `others` run for a while: until the given time at
/// the latest, to which they advance the time; without one, until anything has happened.
pub fn beside<T>(
    others: impl FnMut(Option<Instant>) -> bool + 'static,
    work: impl FnOnce() -> T,
) -> T {
    OTHERS.set(Others::Waiting(Box::new(others)));
    let done = work();
    OTHERS.set(Others::None);
    done
}

/// Runs `work`, which advances the time itself ([`ModelTime::advance`]).
pub fn in_charge<T>(work: impl FnOnce() -> T) -> T {
    let before = OTHERS.replace(Others::Working);
    let done = work();
    OTHERS.set(before);
    done
}

/// The time of a model. It stands still until it is advanced.
pub struct ModelTime {
    start: Instant,
    /// Nanoseconds since `start`.
    passed: AtomicU64,
}

impl ModelTime {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { start: Instant::now(), passed: AtomicU64::new(0) })
    }

    /// Returns the nanoseconds since the beginning.
    pub fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }

    /// Converts nanoseconds since the beginning.
    pub fn at(&self, passed: u64) -> Instant {
        self.start + Duration::from_nanos(passed)
    }

    /// Advances the time to `until`.
    pub fn advance(&self, until: Instant) {
        let passed = until.saturating_duration_since(self.start).as_nanos() as u64;
        self.passed.fetch_max(passed, Ordering::Relaxed);
    }

    /// Returns a clock that shows this time.
    pub fn clock(self: &Arc<Self>) -> Clock {
        Clock::of(Arc::<Self>::clone(self))
    }

    /// Waits until `until`, or for the others. Returns whether to look again at once.
    pub(crate) fn wait(&self, until: Option<Instant>) -> bool {
        match OTHERS.replace(Others::Working) {
            Others::None => {
                OTHERS.set(Others::None);
                until.inspect(|until| self.advance(*until)).is_some()
            }
            Others::Waiting(mut others) => {
                let has_happened = others(until);
                OTHERS.set(Others::Waiting(others));
                has_happened
            }
            Others::Working => false,
        }
    }
}

impl TimeSource for ModelTime {
    fn now(&self) -> Instant {
        self.at(self.passed())
    }

    fn sleep(&self, time: Duration) {
        let until = self.now() + time;
        while self.now() < until && self.wait(Some(until)) {}
    }
}
