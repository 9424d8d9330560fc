//! What the cache did for the requests of a disk, in blocks of 4 KiB.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use flowstone_block::{Class, PerQueue};
use serde::Serialize;

/// Counters of one queue, which alone writes them.
#[derive(Debug, Default)]
pub struct QueueCounters {
    /// Blocks read from memory, by [`Class`].
    pub hits: [AtomicU64; Class::ALL.len()],
    /// Blocks read from below, by [`Class`].
    pub misses: [AtomicU64; Class::ALL.len()],
    /// Blocks that were taken in, by reads and writes.
    pub insertions: AtomicU64,
    /// Blocks that the policy did not take.
    pub refusals: AtomicU64,
    /// Blocks of journals, and of requests too large, which pass by.
    pub bypassed: AtomicU64,
    /// Nanoseconds that looking blocks up for reads and copying them took: of a sample, for all.
    pub busy_ns: AtomicU64,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CacheCount {
    /// Blocks read from memory.
    pub hits: u64,
    /// Blocks read from below.
    pub misses: u64,
}

/// Counters of all queues of a disk, which outlive these.
#[derive(Debug, Default)]
pub struct Counters(PerQueue<QueueCounters>);

impl Counters {
    /// Those of a queue.
    pub fn of_queue(&self, queue: u16) -> Arc<QueueCounters> {
        self.0.of_queue(queue)
    }

    /// Blocks of a class that were read.
    pub fn of_class(&self, class: Class) -> CacheCount {
        CacheCount {
            hits: self.0.sum(|queue| &queue.hits[class as usize]),
            misses: self.0.sum(|queue| &queue.misses[class as usize]),
        }
    }

    /// Blocks that were taken in.
    pub fn insertions(&self) -> u64 {
        self.0.sum(|queue| &queue.insertions)
    }

    /// Blocks that the policy did not take.
    pub fn refusals(&self) -> u64 {
        self.0.sum(|queue| &queue.refusals)
    }

    /// How long looking blocks up for reads and copying them took, by a sample.
    pub fn busy(&self) -> Duration {
        Duration::from_nanos(self.0.sum(|queue| &queue.busy_ns))
    }

    /// Blocks that passed by.
    pub fn bypassed(&self) -> u64 {
        self.0.sum(|queue| &queue.bypassed)
    }
}
