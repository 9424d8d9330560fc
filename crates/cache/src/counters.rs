//! Counters of the cache for the requests of a disk, in blocks of 4 KiB.

use std::sync::atomic::AtomicU64;

use flowstone_block::{Class, Metric, MetricKind, PerQueue};
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

impl QueueCounters {
    /// Metrics of a disk's queues.
    pub const METRICS: &[Metric<PerQueue<Self>>] = &[
        Metric::each(
            MetricKind::Counter,
            "flowstone_cache_hit_blocks_total",
            "class",
            "Blocks of 4 KiB read from the cache",
            |queues, add| by_class(queues, |it| &it.hits, add),
        ),
        Metric::each(
            MetricKind::Counter,
            "flowstone_cache_miss_blocks_total",
            "class",
            "Blocks of 4 KiB read from the image below the cache",
            |queues, add| by_class(queues, |it| &it.misses, add),
        ),
    ];
}

fn by_class(
    queues: &PerQueue<QueueCounters>,
    counters: fn(&QueueCounters) -> &[AtomicU64; Class::ALL.len()],
    add: &mut dyn FnMut(&str, f64),
) {
    for class in Class::ALL {
        add(class.name(), queues.sum(|queue| &counters(queue)[class as usize]) as f64);
    }
}

/// Blocks read, by source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CacheCount {
    /// Blocks read from memory.
    pub hits: u64,
    /// Blocks read from below.
    pub misses: u64,
}
