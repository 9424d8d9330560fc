//! The time in nanoseconds since some moment, by a disk's clock: what limits and shares count in.

use std::time::{Duration, Instant};

use flowstone_block::Clock;

/// See the module.
#[derive(Clone)]
pub struct Nanoseconds {
    clock: Clock,
    start: Instant,
}

impl Default for Nanoseconds {
    fn default() -> Self {
        Self::of(Clock::default())
    }
}

impl Nanoseconds {
    /// Since now.
    pub fn of(clock: Clock) -> Self {
        Self { start: clock.now(), clock }
    }

    pub fn now(&self) -> u64 {
        u64::try_from(self.clock.since(self.start).as_nanos()).unwrap_or(u64::MAX)
    }

    /// When the clock will show this.
    pub fn instant(&self, ns: u64) -> Instant {
        self.start + Duration::from_nanos(ns)
    }
}
