//! What `stats` says of the cache.

use flowstone_block::Class;
use flowstone_cache::{Cache, CacheCount, CachedDisk};
use serde::Serialize;

use crate::resource_monitor::pool::in_words;
use crate::resource_monitor::{Decision, ResourceMonitor};
use flowstone_memory::sizer::{Change, Limits};

/// Points of the miss-ratio curve up to the largest size.
const CURVE_POINTS: u64 = 8;

/// Blocks of a disk that were read from memory and from below, by class. Takes no lock of the data
/// path.
pub fn blocks_read(disk: &CachedDisk) -> impl Iterator<Item = (&'static str, u64, u64)> {
    [("journal", Class::Journal), ("metadata", Class::Metadata), ("data", Class::Data)]
        .map(|(name, class)| {
            let CacheCount { hits, misses } = disk.counters().of_class(class);
            (name, hits, misses)
        })
        .into_iter()
}

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
    /// How many VMs it has been told of.
    vms: usize,
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
            vms: cache.vms(),
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

impl From<Decision> for DecisionReport {
    fn from(Decision { at, change }: Decision) -> Self {
        let reason = in_words(&change);
        let Change { from, to, .. } = change;
        Self { at_s: at.as_secs_f64(), from_bytes: from, to_bytes: to, reason }
    }
}
