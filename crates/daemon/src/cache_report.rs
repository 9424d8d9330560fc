//! The cache in the output of `stats`.

use flowstone_cache::Cache;
use serde::Serialize;

use crate::resource_monitor::{Decision, ResourceMonitor};
use flowstone_memory::sizer::Limits;

/// Points of the miss-ratio curve up to the largest size.
const CURVE_POINTS: u64 = 8;

/// The cache shared by all disks.
#[derive(Serialize)]
pub struct CacheReport {
    /// Bytes held.
    bytes: u64,
    /// Bytes that may be held now.
    target_bytes: u64,
    /// Limits between which the resource monitor sizes the cache.
    min_bytes: u64,
    max_bytes: u64,
    /// Resident memory for data, fills included.
    resident_bytes: u64,
    policy: &'static str,
    /// Ghost entries of the policy: blocks it remembers without their data.
    ghosts: u64,
    /// VMs that the cache knows.
    vms: usize,
    /// Estimated hit ratio of caches of other sizes, from recent accesses; empty until enough are
    /// sampled.
    curve: Vec<CurvePoint>,
    /// The resource monitor's latest decisions, oldest first.
    decisions: Vec<Decision>,
}

#[derive(Serialize)]
struct CurvePoint {
    bytes: u64,
    hit_ratio: f64,
}

impl CacheReport {
    /// Reads the current state.
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
            decisions: monitor.decisions(),
        }
    }
}

/// Returns the curve up to twice the largest size, so that it shows whether more memory would help.
fn curve(cache: &Cache, max: u64) -> Vec<CurvePoint> {
    let sizes = (1..=2 * CURVE_POINTS).map(|eighths| max * eighths / CURVE_POINTS);
    let point = |bytes| Some(CurvePoint { bytes, hit_ratio: cache.hit_ratio_of(bytes)? });
    sizes.filter_map(point).collect()
}
