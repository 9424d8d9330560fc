//! What `stats` says of VMs.

use std::sync::Arc;

use flowstone_cache::DiskCacheReport;
use serde::Serialize;

use crate::disk::Disk;
use crate::guest_agent::Heard;
use crate::stack::VM_WEIGHT;
use crate::vms::{self, Vm};

/// A VM, as its disks show it.
#[derive(Serialize)]
pub struct VmReport {
    name: String,
    /// The process that runs it, if that is known.
    pid: Option<u32>,
    cpus: u32,
    memory_bytes: u64,
    /// Its part of what is shared, of 1.
    weight: f64,
    /// What it gets of a contended device beside other VMs, as the devices know it.
    device_weight: u32,
    /// Names of its disks.
    disks: Vec<String>,
    /// What the cache does for them all; absent without a cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    cache: Option<DiskCacheReport>,
    /// What its file cache said last; nothing if it has none that talks to us.
    guest_cache: Option<GuestCacheReport>,
}

/// The file cache in a guest.
#[derive(Serialize)]
struct GuestCacheReport {
    used_bytes: u64,
    /// What the host lets it have; nothing while it has not been told.
    grant_bytes: Option<u64>,
    /// What it lets itself have.
    limit_bytes: u64,
    hits: u64,
    misses: u64,
    /// When it said so.
    age_s: f64,
}

impl VmReport {
    /// The VMs that use `disks` now.
    pub fn of_all(disks: &[Arc<Disk>], heard: &[Heard]) -> Vec<Self> {
        let vms = vms::look(&vms::attached(disks));
        let shared = vms::share_out(&vms);
        let numbered = vms.into_iter().enumerate();
        numbered.map(|(number, vm)| Self::of(vm, shared.weight(number), disks, heard)).collect()
    }

    fn of(vm: Vm, weight: f64, disks: &[Arc<Disk>], heard: &[Heard]) -> Self {
        let is_its = |disk: &&Arc<Disk>| vm.disks.contains(&disk.number);
        let cached = disks.iter().filter(is_its).filter_map(|disk| disk.stack.cached.as_deref());
        let cache = cached.map(DiskCacheReport::of).reduce(|sum, disk| sum + disk);
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
