//! Reports of limits, groups and weights.

use serde::Serialize;

use crate::device::Presence;
use crate::{DiskLimits, DiskShare, Group, Limit};

/// Limit and weight of a disk, and their effects.
#[derive(Serialize)]
pub struct QosReport {
    limit: Option<LimitReport>,
    weight: u32,
    group: Option<String>,
    /// Requests that had to wait for their limit.
    throttled: u64,
    throttled_s: f64,
    /// Requests to its files that had to wait for their turn at a contended device.
    held_back: u64,
    held_back_s: f64,
    device_share: DeviceShareReport,
}

/// A disk's share of the devices that hold its files.
#[derive(Serialize)]
struct DeviceShareReport {
    /// Weight among the disks of its VM.
    weight: u32,
    /// Requests and syncs that had to wait for their turn.
    held_back: u64,
    held_back_s: f64,
    /// Syncs of its files.
    syncs: u64,
    /// Requests in flight, and those that wait for their turn, now; 0 unless disks contend.
    in_flight: usize,
    waiting: usize,
    /// The device's limit of requests in flight of all disks that contend.
    depth: usize,
}

/// A group and its limit.
#[derive(Serialize)]
pub struct GroupReport {
    name: String,
    limit: Option<LimitReport>,
}

#[derive(Serialize)]
struct LimitReport {
    iops: Option<u64>,
    bytes_per_s: Option<u64>,
    burst_s: f64,
}

impl LimitReport {
    fn of(limit: Limit) -> Option<Self> {
        let Limit { iops, bytes_per_s, burst } = limit;
        let report = Self { iops, bytes_per_s, burst_s: burst.as_secs_f64() };
        (!limit.is_none()).then_some(report)
    }
}

impl QosReport {
    /// Reads the state of a disk.
    pub fn of(limits: &DiskLimits, share: &DiskShare) -> Self {
        let (throttled, time) = limits.throttled();
        let (held_back, held_back_time) = share.held_back();
        let Presence { in_flight, waiting, depth } = share.presence();
        Self {
            limit: LimitReport::of(limits.limit()),
            weight: limits.weight(),
            group: limits.group().map(str::to_owned),
            throttled,
            throttled_s: time.as_secs_f64(),
            held_back,
            held_back_s: held_back_time.as_secs_f64(),
            device_share: DeviceShareReport {
                weight: share.weight().get(),
                held_back,
                held_back_s: held_back_time.as_secs_f64(),
                syncs: share.syncs(),
                in_flight,
                waiting,
                depth,
            },
        }
    }
}

impl GroupReport {
    /// Reads the state of a group.
    pub fn of(name: &str, group: &Group) -> Self {
        Self { name: name.to_owned(), limit: LimitReport::of(group.limit()) }
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}
