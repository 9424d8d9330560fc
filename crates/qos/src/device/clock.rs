//! The clock of a device: nanoseconds since some moment. Tests have one that they move themselves.

#[cfg(test)]
use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// See the module.
#[derive(Clone)]
pub enum Clock {
    Host(Instant),
    #[cfg(test)]
    Manual(Arc<AtomicU64>),
}

impl Default for Clock {
    fn default() -> Self {
        Self::Host(Instant::now())
    }
}

impl Clock {
    pub fn now(&self) -> u64 {
        match self {
            Self::Host(start) => u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX),
            #[cfg(test)]
            Self::Manual(now) => now.load(Ordering::Relaxed),
        }
    }

    /// When it will show this.
    pub fn instant(&self, ns: u64) -> Instant {
        let left = Duration::from_nanos(ns.saturating_sub(self.now()));
        Instant::now() + left
    }
}
