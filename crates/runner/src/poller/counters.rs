//! Counters of a poller, written by its thread only and read by any.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::histogram::{Histogram, add, nanos};

/// The counters of one poller.
#[derive(Default)]
pub struct PollerCounters {
    /// Queues on the poller.
    pub queues: AtomicU64,
    /// Passes over its queues.
    pub turns: AtomicU64,
    /// Sleeps for lack of work.
    pub sleeps: AtomicU64,
    /// Nanoseconds in turns that found work.
    pub busy_ns: AtomicU64,
    /// Nanoseconds spent polling for work.
    pub looking_ns: AtomicU64,
    /// Nanoseconds of rest because the daemon had used its CPU budget.
    pub resting_ns: AtomicU64,
    /// Time of each move to this poller: from the last completion on the old poller until the queue
    /// could submit on this one.
    pub moves: Histogram,
}

impl PollerCounters {
    /// Adds a duration to a counter of nanoseconds.
    pub fn add_time(counter: &AtomicU64, time: Duration) {
        add(counter, nanos(time));
    }

    /// Sets the number of queues.
    pub fn set_queues(&self, count: usize) {
        self.queues.store(count as u64, Ordering::Relaxed);
    }

    /// Returns a counter of nanoseconds in seconds.
    pub fn seconds(counter: &AtomicU64) -> f64 {
        counter.load(Ordering::Relaxed) as f64 / 1e9
    }
}
