//! Report of the cache's counters for a disk.

use std::ops::Add;

use flowstone_block::Class;
use serde::Serialize;

use crate::counters::CacheCount;
use crate::{BLOCK_BYTES, CachedDisk};

/// The cache's counters for one disk, in blocks of 4 KiB unless named otherwise.
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
    classes: ByClass,
}

#[derive(Serialize)]
struct ByClass {
    journal: CacheCount,
    metadata: CacheCount,
    data: CacheCount,
}

impl DiskCacheReport {
    /// Reads the current counters.
    pub fn of(disk: &CachedDisk) -> Self {
        let (counters, held) = (disk.counters(), disk.held());
        let counts =
            [Class::Journal, Class::Metadata, Class::Data].map(|class| counters.of_class(class));
        let [journal, metadata, data] = counts;
        let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
        Self {
            hits: counts.iter().map(|count| count.hits).sum(),
            misses: counts.iter().map(|count| count.misses).sum(),
            insertions: counters.insertions(),
            refusals: counters.refusals(),
            evictions: held.evictions,
            bypassed: counters.bypassed(),
            busy_s: counters.busy().as_secs_f64(),
            bytes: bytes(held.blocks),
            prefetched_bytes: bytes(held.prefetched),
            prefetch_used_bytes: bytes(held.prefetch_used),
            prefetch_wasted_bytes: bytes(held.prefetch_wasted),
            classes: ByClass { journal, metadata, data },
        }
    }
}

impl Add for DiskCacheReport {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            hits: self.hits + other.hits,
            misses: self.misses + other.misses,
            insertions: self.insertions + other.insertions,
            refusals: self.refusals + other.refusals,
            evictions: self.evictions + other.evictions,
            bypassed: self.bypassed + other.bypassed,
            busy_s: self.busy_s + other.busy_s,
            bytes: self.bytes + other.bytes,
            prefetched_bytes: self.prefetched_bytes + other.prefetched_bytes,
            prefetch_used_bytes: self.prefetch_used_bytes + other.prefetch_used_bytes,
            prefetch_wasted_bytes: self.prefetch_wasted_bytes + other.prefetch_wasted_bytes,
            classes: ByClass {
                journal: self.classes.journal + other.classes.journal,
                metadata: self.classes.metadata + other.classes.metadata,
                data: self.classes.data + other.classes.data,
            },
        }
    }
}

impl Add for CacheCount {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { hits: self.hits + other.hits, misses: self.misses + other.misses }
    }
}
