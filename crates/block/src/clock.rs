//! What time it is for a disk: the host's time, or that of a model which the disk lies on.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A source of time other than the host's.
pub trait TimeSource: Send + Sync {
    /// The time now. It never goes back.
    fn now(&self) -> Instant;

    /// Returns when so much time has passed. All else goes on meanwhile.
    fn sleep(&self, time: Duration);
}

/// Tells the time. What works on a disk asks this and never the host, so that on a model it does
/// the same each time.
#[derive(Clone, Default)]
pub struct Clock(Option<Arc<dyn TimeSource>>);

impl Clock {
    /// Shows the time of `source`; the default shows the host's.
    pub fn of(source: Arc<dyn TimeSource>) -> Self {
        Self(Some(source))
    }

    /// The time now.
    pub fn now(&self) -> Instant {
        self.0.as_ref().map_or_else(Instant::now, |source| source.now())
    }

    /// How long ago `earlier` was.
    pub fn since(&self, earlier: Instant) -> Duration {
        self.now().saturating_duration_since(earlier)
    }

    /// Returns when so much time has passed.
    pub fn sleep(&self, time: Duration) {
        match &self.0 {
            None => std::thread::sleep(time),
            Some(source) => source.sleep(time),
        }
    }

    /// The calendar's time, since 1 January 1970, UTC. A model has none: it is zero there.
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
