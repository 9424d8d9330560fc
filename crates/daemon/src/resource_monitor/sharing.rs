//! Which VMs share the cache.

use std::sync::Arc;

use flowstone_block::LogBudget;
use flowstone_cache::Vms;
use tracing::info;

use super::pool::GuestCache;
use crate::disk::Disk;
use crate::guest_agent::Heard;
use crate::vms::{self, Attached, Vm};

/// A VM's vCPUs are counted again after so many looks even if no disk has come or gone.
const LOOKS: u32 = 20;

/// Notices when VMs come, go and change.
#[derive(Default)]
pub struct Sharing {
    attached: Vec<Attached>,
    vms: Vec<Vm>,
    shared: Vms,
    looks: u32,
    log: LogBudget,
}

impl Sharing {
    /// The VMs that use `disks`, if these are not the same as before.
    pub fn look(&mut self, disks: &[Arc<Disk>]) -> Option<Vms> {
        let attached = vms::attached(disks);
        self.looks += 1;
        if attached == self.attached && self.looks < LOOKS {
            return None;
        }
        self.looks = 0;
        let vms = vms::look(&attached);
        self.attached = attached;
        if vms == self.vms {
            return None;
        }
        let before = std::mem::replace(&mut self.vms, vms);
        let shared = vms::share_out(&self.vms);
        for (number, vm) in self.vms.iter().enumerate().filter(|(_, vm)| !before.contains(vm)) {
            // A monitor that connects again and again is not to fill the log.
            let Some(unsaid) = self.log.spend() else { continue };
            let percent = 100.0 * shared.weight(number);
            info!(
                vm = vm.name,
                cpus = vm.cpus,
                unsaid,
                "has a weight of {percent:.0} % in the cache"
            );
        }
        self.shared = shared.clone();
        Some(shared)
    }

    /// The file caches of these VMs, of those that were heard.
    pub fn guest_caches(&self, heard: Vec<Heard>) -> Vec<GuestCache> {
        let of_vm = |heard: Heard| {
            let number = self.vms.iter().position(|vm| vm.pid == Some(heard.pid))?;
            let memory_bytes = self.vms[number].memory_bytes;
            Some(GuestCache { heard, weight: self.shared.weight(number), memory_bytes })
        };
        heard.into_iter().filter_map(of_vm).collect()
    }
}
