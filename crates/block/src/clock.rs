//! The clock of a disk: the host's time, or the simulated time of the model that the disk is on.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A source of time other than the host's.
pub trait TimeSource: Send + Sync {
    /// Returns the current time. It is monotonic.
    fn now(&self) -> Instant;

    /// Blocks the caller for `time`. Other threads and simulated devices go on meanwhile.
    fn sleep(&self, time: Duration);
}

/// Tells the time. Code that works on a disk asks this clock and never the host's, so that a run on
/// a model is deterministic.
#[derive(Clone, Default)]
pub struct Clock(Option<Arc<dyn TimeSource>>);

impl Clock {
    /// Makes a clock of `source`; the default clock is the host's.
    pub fn of(source: Arc<dyn TimeSource>) -> Self {
        Self(Some(source))
    }

    /// Returns the current time.
    pub fn now(&self) -> Instant {
        self.0.as_ref().map_or_else(Instant::now, |source| source.now())
    }

    /// Returns the time since `earlier`; zero if that is in the future.
    pub fn since(&self, earlier: Instant) -> Duration {
        self.now().saturating_duration_since(earlier)
    }

    /// Blocks the caller for `time`.
    pub fn sleep(&self, time: Duration) {
        match &self.0 {
            None => std::thread::sleep(time),
            Some(source) => source.sleep(time),
        }
    }

    /// Returns the wall-clock time since 1 January 1970, UTC; zero on a model, which has none.
    pub fn calendar(&self) -> Duration {
        match &self.0 {
            None => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            Some(_) => Duration::ZERO,
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Clock of a model" } else { "Clock of the host" })
    }
}
