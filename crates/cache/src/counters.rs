//! Counters of the cache for the requests of a disk, in blocks of 4 KiB.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use flowstone_block::{Class, PerQueue};
use serde::Serialize;

/// Counters of one queue, written by that queue only.
#[derive(Debug, Default)]
pub struct QueueCounters {
    /// Blocks read from memory, by [`Class`].
    pub hits: [AtomicU64; Class::ALL.len()],
    /// Blocks read from below, by [`Class`].
    pub misses: [AtomicU64; Class::ALL.len()],
    /// Blocks taken in, by reads and writes.
    pub insertions: AtomicU64,
    /// Blocks refused by the policy.
    pub refusals: AtomicU64,
    /// Blocks that bypassed the cache: of journals, and of requests that are too large.
    pub bypassed: AtomicU64,
    /// Nanoseconds spent looking blocks up for reads and copying them, extrapolated from a sample.
    pub busy_ns: AtomicU64,
}

/// Blocks read, by source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CacheCount {
    /// Blocks read from memory.
    pub hits: u64,
    /// Blocks read from below.
    pub misses: u64,
}

/// Counters of all queues of a disk; they outlive the queues.
#[derive(Debug, Default)]
pub struct Counters(PerQueue<QueueCounters>);

impl Counters {
    /// Returns those of a queue.
    pub fn of_queue(&self, queue: u16) -> Arc<QueueCounters> {
        self.0.of_queue(queue)
    }

    /// Returns the blocks read of a class.
    pub fn of_class(&self, class: Class) -> CacheCount {
        CacheCount {
            hits: self.0.sum(|queue| &queue.hits[class as usize]),
            misses: self.0.sum(|queue| &queue.misses[class as usize]),
        }
    }

    /// Returns the blocks taken in.
    pub fn insertions(&self) -> u64 {
        self.0.sum(|queue| &queue.insertions)
    }

    /// Returns the blocks refused by the policy.
    pub fn refusals(&self) -> u64 {
        self.0.sum(|queue| &queue.refusals)
    }

    /// Returns the time spent looking blocks up for reads and copying them, estimated from a
    /// sample.
    pub fn busy(&self) -> Duration {
        Duration::from_nanos(self.0.sum(|queue| &queue.busy_ns))
    }

    /// Returns the blocks that bypassed the cache.
    pub fn bypassed(&self) -> u64 {
        self.0.sum(|queue| &queue.bypassed)
    }
}
