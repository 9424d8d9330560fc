//! The drive's time, and what goes on while somebody waits for it.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use flowstone_block::{Clock, TimeSource};

/// Who else uses drives on this thread.
enum Others {
    /// Nobody: whoever waits lets the time pass.
    None,
    /// Goes on, at most until this time, and says whether anything has happened.
    Waiting(Box<dyn FnMut(Option<Instant>) -> bool>),
    /// They are at work now, and the time is theirs.
    Working,
}

thread_local! {
    static OTHERS: RefCell<Others> = const { RefCell::new(Others::None) };
}

/// Runs `work`. Whenever it waits for a drive, `others` go on for a while: until the time they are
/// given at the latest, which is then the time now; without one, until anything has happened.
pub fn beside<T>(
    others: impl FnMut(Option<Instant>) -> bool + 'static,
    work: impl FnOnce() -> T,
) -> T {
    OTHERS.set(Others::Waiting(Box::new(others)));
    let done = work();
    OTHERS.set(Others::None);
    done
}

/// Runs `work`, which lets the time pass itself ([`ModelTime::advance`]).
pub fn in_charge<T>(work: impl FnOnce() -> T) -> T {
    let before = OTHERS.replace(Others::Working);
    let done = work();
    OTHERS.set(before);
    done
}

/// The time of a model. It stands still until somebody lets it pass.
pub struct ModelTime {
    start: Instant,
    /// Nanoseconds since.
    passed: AtomicU64,
}

impl ModelTime {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { start: Instant::now(), passed: AtomicU64::new(0) })
    }

    /// Nanoseconds since the beginning.
    pub fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }

    /// The time at which so many will have passed.
    pub fn at(&self, passed: u64) -> Instant {
        self.start + Duration::from_nanos(passed)
    }

    /// Lets the time pass until then.
    pub fn advance(&self, until: Instant) {
        let passed = until.saturating_duration_since(self.start).as_nanos() as u64;
        self.passed.fetch_max(passed, Ordering::Relaxed);
    }

    /// What shows it.
    pub fn clock(self: &Arc<Self>) -> Clock {
        Clock::of(Arc::<Self>::clone(self))
    }

    /// Somebody waits until then, or for what others do. Returns whether to look again at once.
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
