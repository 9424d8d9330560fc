//! What `stats` says of the cache.

use std::ops::Add;

use flowstone_block::Class;
use flowstone_cache::{BLOCK_BYTES, Cache, CacheCount, CachedDisk};
use serde::Serialize;

use crate::resource_monitor::pool::in_words;
use crate::resource_monitor::{Decision, ResourceMonitor};
use flowstone_memory::sizer::{Change, Limits};

/// Points of the miss-ratio curve up to the largest size.
const CURVE_POINTS: u64 = 8;

/// The cache that all disks share.
#[derive(Serialize)]
pub struct CacheReport {
    /// Held.
    bytes: u64,
    /// That may be held now.
    target_bytes: u64,
    /// Between what and what the monitor chooses that.
    min_bytes: u64,
    max_bytes: u64,
    /// Memory that it has for data, blocks on their way included.
    resident_bytes: u64,
    policy: &'static str,
    /// Blocks that the policy remembers without their data.
    ghosts: u64,
    /// What part of the accesses of late caches of other sizes would have answered; empty while
    /// there were too few.
    curve: Vec<CurvePoint>,
    /// The resource monitor's last ones, the oldest first.
    decisions: Vec<DecisionReport>,
}

#[derive(Serialize)]
struct CurvePoint {
    bytes: u64,
    hit_ratio: f64,
}

#[derive(Serialize)]
struct DecisionReport {
    /// Since the daemon started.
    at_s: f64,
    from_bytes: u64,
    to_bytes: u64,
    reason: String,
}

/// What it does for one disk, in blocks of 4 KiB.
#[derive(Serialize)]
pub struct DiskCacheReport {
    hits: u64,
    misses: u64,
    insertions: u64,
    refusals: u64,
    evictions: u64,
    bypassed: u64,
    /// Seconds that looking blocks up for reads and copying them took, by a sample.
    busy_s: f64,
    /// Held.
    bytes: u64,
    prefetched_bytes: u64,
    prefetch_used_bytes: u64,
    prefetch_wasted_bytes: u64,
    classes: ByClass,
}

#[derive(Serialize)]
struct ByClass {
    journal: ClassReport,
    metadata: ClassReport,
    data: ClassReport,
}

#[derive(Serialize)]
struct ClassReport {
    hits: u64,
    misses: u64,
}

impl CacheReport {
    /// As it is now.
    pub fn of(cache: &Cache, monitor: &ResourceMonitor) -> Self {
        let Limits { min, max } = monitor.limits();
        Self {
            bytes: cache.bytes(),
            target_bytes: cache.target_bytes(),
            min_bytes: min,
            max_bytes: max,
            resident_bytes: cache.resident_bytes(),
            policy: cache.kind().name(),
            ghosts: cache.ghosts(),
            curve: curve(cache, max),
            decisions: monitor.decisions().into_iter().map(DecisionReport::from).collect(),
        }
    }
}

/// Of up to twice the largest size, so that it shows whether more memory would help.
fn curve(cache: &Cache, max: u64) -> Vec<CurvePoint> {
    let sizes = (1..=2 * CURVE_POINTS).map(|eighths| max * eighths / CURVE_POINTS);
    let point = |bytes| Some(CurvePoint { bytes, hit_ratio: cache.hit_ratio_of(bytes)? });
    sizes.filter_map(point).collect()
}

impl DiskCacheReport {
    /// As counted so far.
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
            classes: ByClass {
                journal: journal.into(),
                metadata: metadata.into(),
                data: data.into(),
            },
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

impl Add for ClassReport {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { hits: self.hits + other.hits, misses: self.misses + other.misses }
    }
}

impl From<Decision> for DecisionReport {
    fn from(Decision { at, change }: Decision) -> Self {
        let reason = in_words(&change);
        let Change { from, to, .. } = change;
        Self { at_s: at.as_secs_f64(), from_bytes: from, to_bytes: to, reason }
    }
}

impl From<CacheCount> for ClassReport {
    fn from(CacheCount { hits, misses }: CacheCount) -> Self {
        Self { hits, misses }
    }
}
