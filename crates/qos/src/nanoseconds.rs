//! A clock in nanoseconds since its start, derived from a disk's clock: the time base of limits and
//! shares.

use std::time::{Duration, Instant};

use flowstone_block::Clock;

/// A clock in nanoseconds.
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
    /// Starts a clock now.
    pub fn of(clock: Clock) -> Self {
        Self { start: clock.now(), clock }
    }

    pub fn now(&self) -> u64 {
        u64::try_from(self.clock.since(self.start).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns the instant at which the clock will show `ns`.
    pub fn instant(&self, ns: u64) -> Instant {
        self.start + Duration::from_nanos(ns)
    }
}
