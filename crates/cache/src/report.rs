//! Report of the cache's counters for one or several disks.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use flowstone_block::Class;
use serde::Serialize;

use crate::counters::{CacheCount, QueueCounters};
use crate::{BLOCK_BYTES, CachedDisk, DiskUse};

/// The cache's counters for disks, in blocks of 4 KiB unless named otherwise.
#[derive(Serialize)]
pub struct DiskCacheReport {
    hits: u64,
    misses: u64,
    insertions: u64,
    refusals: u64,
    evictions: u64,
    bypassed: u64,
    /// Seconds spent looking blocks up for reads and copying them, estimated from a sample.
    busy_s: f64,
    /// Bytes held.
    bytes: u64,
    prefetched_bytes: u64,
    prefetch_used_bytes: u64,
    prefetch_wasted_bytes: u64,
    classes: BTreeMap<&'static str, CacheCount>,
}

impl DiskCacheReport {
    /// Reads the current counters of some disks, and adds them up.
    pub fn of(disks: &[&CachedDisk]) -> Self {
        let sum = |counter: fn(&QueueCounters) -> &AtomicU64| -> u64 {
            disks.iter().map(|disk| disk.counters().sum(counter)).sum()
        };
        let classes = Class::ALL.map(|class| {
            let hits = disks.iter().map(|disk| disk.of_class(class).hits).sum();
            let misses = disks.iter().map(|disk| disk.of_class(class).misses).sum();
            (class.name(), CacheCount { hits, misses })
        });
        let uses: Vec<DiskUse> = disks.iter().map(|disk| disk.held()).collect();
        let bytes = |blocks: fn(&DiskUse) -> u64| -> u64 {
            uses.iter().map(blocks).sum::<u64>() * BLOCK_BYTES as u64
        };
        Self {
            hits: classes.iter().map(|(_, count)| count.hits).sum(),
            misses: classes.iter().map(|(_, count)| count.misses).sum(),
            insertions: sum(|queue| &queue.insertions),
            refusals: sum(|queue| &queue.refusals),
            evictions: uses.iter().map(|it| it.evictions).sum(),
            bypassed: sum(|queue| &queue.bypassed),
            busy_s: Duration::from_nanos(sum(|queue| &queue.busy_ns)).as_secs_f64(),
            bytes: bytes(|it| it.blocks),
            prefetched_bytes: bytes(|it| it.prefetched),
            prefetch_used_bytes: bytes(|it| it.prefetch_used),
            prefetch_wasted_bytes: bytes(|it| it.prefetch_wasted),
            classes: classes.into(),
        }
    }
}
