//! What a poller's thread counts about itself. Written by that thread only, read by any.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::histogram::{Histogram, add, nanos};

/// The counters of one poller.
#[derive(Default)]
pub struct PollerCounters {
    /// Queues that it runs.
    pub queues: AtomicU64,
    /// Passes over its queues.
    pub turns: AtomicU64,
    /// Times it slept for want of work.
    pub sleeps: AtomicU64,
    /// Nanoseconds in turns that found work.
    pub busy_ns: AtomicU64,
    /// Nanoseconds it looked for work.
    pub looking_ns: AtomicU64,
    /// Nanoseconds it rested because the daemon had used its CPU budget.
    pub resting_ns: AtomicU64,
    /// From the last drained completion of a queue on another poller until it could submit on this
    /// one.
    pub moves: Histogram,
}

impl PollerCounters {
    /// Adds a time to a counter of nanoseconds.
    pub fn add_time(counter: &AtomicU64, time: Duration) {
        add(counter, nanos(time));
    }

    /// It runs so many queues now.
    pub fn set_queues(&self, count: usize) {
        self.queues.store(count as u64, Ordering::Relaxed);
    }

    /// A counter of nanoseconds, in seconds.
    pub fn seconds(counter: &AtomicU64) -> f64 {
        counter.load(Ordering::Relaxed) as f64 / 1e9
    }
}
