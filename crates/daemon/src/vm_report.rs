//! VMs in the output of `stats`.

use std::sync::Arc;

use flowstone_cache::DiskCacheReport;
use flowstone_resources::Heard;
use serde::Serialize;

use crate::disk::Disk;
use crate::stack::VM_WEIGHT;
use crate::vms::{self, Vm};

/// A VM, derived from its disks.
#[derive(Serialize)]
pub struct VmReport {
    name: String,
    /// PID of its process, if known.
    pid: Option<u32>,
    cpus: u32,
    memory_bytes: u64,
    /// Its fraction of all VMs' weights, at most 1.
    weight: f64,
    /// Its weight on contended devices, as the devices have it.
    device_weight: u32,
    /// Names of its disks.
    disks: Vec<String>,
    /// Sum of its disks' cache counters; absent without a cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    cache: Option<DiskCacheReport>,
    /// Last report of its file cache; `null` if none is connected.
    guest_cache: Option<GuestCacheReport>,
}

/// The file cache of a guest.
#[derive(Serialize)]
struct GuestCacheReport {
    used_bytes: u64,
    /// Bytes granted by the host; `null` before the first grant.
    grant_bytes: Option<u64>,
    /// Limit that the file cache applies.
    limit_bytes: u64,
    hits: u64,
    misses: u64,
    /// Age of the report.
    age_s: f64,
}

impl VmReport {
    /// Returns the VMs that use `disks` now.
    pub fn of_all(disks: &[Arc<Disk>], heard: &[Heard]) -> Vec<Self> {
        let vms = vms::look(&vms::attached(disks));
        let shared = vms::share_out(&vms);
        let numbered = vms.into_iter().enumerate();
        numbered.map(|(number, vm)| Self::of(vm, shared.weight(number), disks, heard)).collect()
    }

    fn of(vm: Vm, weight: f64, disks: &[Arc<Disk>], heard: &[Heard]) -> Self {
        let is_its = |disk: &&Arc<Disk>| vm.disks.contains(&disk.number);
        let cached = disks.iter().filter(is_its).filter_map(|disk| disk.stack.cached.as_deref());
        let cached: Vec<_> = cached.collect();
        let cache = (!cached.is_empty()).then(|| DiskCacheReport::of(&cached));
        let known = disks.iter().find(is_its).map(|disk| disk.stack.share.vm().weight);
        let device_weight = known.unwrap_or(VM_WEIGHT);
        let disks = disks.iter().filter(is_its).map(|disk| disk.name.clone()).collect();
        let of_vm = heard.iter().find(|heard| vm.peer == Some(heard.peer));
        let guest_cache = of_vm.map(GuestCacheReport::of);
        let Vm { name, peer, cpus, memory_bytes, .. } = vm;
        let pid = peer.map(|it| it.pid);
        Self { name, pid, cpus, memory_bytes, weight, device_weight, disks, cache, guest_cache }
    }
}

impl GuestCacheReport {
    fn of(heard: &Heard) -> Self {
        Self {
            used_bytes: heard.report.used_bytes,
            grant_bytes: heard.grant,
            limit_bytes: heard.report.limit_bytes,
            hits: heard.report.hits,
            misses: heard.report.misses,
            age_s: heard.age.as_secs_f64(),
        }
    }
}
