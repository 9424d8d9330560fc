//! The VMs whose disks are served: which disks belong to one VM, and the resources of each VM
//! (S5.6).
//!
//! A VM is the process that connects to its disks' sockets. Its vCPUs are counted from the KVM
//! descriptors of the process, and its memory is what the process shares. A disk's configuration
//! can override all of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use flowstone_block::{Peer, mutated};
use flowstone_cache::{VmSize, Vms};
use flowstone_host::VmProcess;

use crate::config::VmSpec;
use crate::disk::Disk;
use crate::memory_charge::guest_bytes_of;
use crate::stack::VM_WEIGHT;

/// A VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vm {
    /// Name in messages.
    pub name: String,
    /// The process that runs it, if known.
    pub peer: Option<Peer>,
    /// Number of vCPUs.
    pub cpus: u32,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Configured device weight, if any.
    pub weight: Option<u32>,
    /// Numbers of its disks.
    pub disks: Vec<u32>,
}

impl Vm {
    /// Returns the device weight: the configured one, or vCPUs times memory, normalized to 100 for
    /// one vCPU and one GiB.
    pub fn device_weight(&self) -> u32 {
        let cpus = mutated("daemon.vms.device-by-memory-alone", self.cpus.max(1), 1);
        let product = u128::from(cpus) * u128::from(self.memory_bytes);
        let discovered = (product * u128::from(VM_WEIGHT)) >> 30;
        let discovered = u32::try_from(discovered).unwrap_or(u32::MAX).max(1);
        self.weight.unwrap_or(discovered)
    }
}

/// A disk in use by a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    number: u32,
    name: String,
    spec: VmSpec,
    peer: Option<Peer>,
    memory_bytes: u64,
}

/// Key by which disks are grouped into VMs.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Identity {
    Called(String),
    Process(Peer),
    /// Unknown VM: a group for this disk alone.
    Disk(u32),
}

/// Returns those of `disks` that guests use now.
pub fn attached(disks: &[Arc<Disk>]) -> Vec<Attached> {
    let attach = |disk: &Arc<Disk>| {
        let guest = disk.shared.guest()?;
        Some(Attached {
            number: disk.number,
            name: disk.name.clone(),
            spec: disk.vm.clone(),
            peer: guest.monitor,
            memory_bytes: guest.memory_bytes,
        })
    };
    disks.iter().filter_map(attach).collect()
}

/// Returns the memory of the guests.
pub fn guest_bytes(attached: &[Attached]) -> u64 {
    guest_bytes_of(attached.iter().map(|disk| (disk.number, disk.peer, disk.memory_bytes)))
}

/// Tells disks and their devices which VM each belongs to. The VM's number is the lowest number of
/// its disks.
pub fn set_vms(vms: &[Vm], disks: &[Arc<Disk>]) {
    for vm in vms {
        let weight = vm.device_weight();
        let id = vm.disks.iter().copied().min().unwrap_or_default();
        for disk in disks.iter().filter(|disk| vm.disks.contains(&disk.number)) {
            disk.stack.set_vm(id, weight);
            disk.set_vm_name(&vm.name);
        }
    }
}

/// Returns the VMs of these disks.
pub fn look(attached: &[Attached]) -> Vec<Vm> {
    group(attached, VmProcess::look)
}

/// Returns the VMs' shares of the cache.
pub fn share_out(vms: &[Vm]) -> Vms {
    let sizes: Vec<_> =
        vms.iter().map(|vm| VmSize { cpus: vm.cpus, memory: vm.memory_bytes }).collect();
    let numbered = vms.iter().enumerate();
    let disks = numbered.flat_map(|(number, vm)| vm.disks.iter().map(move |disk| (*disk, number)));
    Vms::new(&sizes, disks)
}

fn group(attached: &[Attached], look: impl Fn(Peer) -> Option<VmProcess>) -> Vec<Vm> {
    let mut vms: BTreeMap<Identity, Vm> = BTreeMap::new();
    // Counting a process's vCPUs reads each of its descriptors: done once per process.
    let mut processes = BTreeMap::new();
    for disk in attached {
        let mut seen = |peer| processes.entry(peer).or_insert_with(|| look(peer)).clone();
        let process = disk.peer.and_then(&mut seen);
        let number = mutated("daemon.vms.hidden-ones-are-one", disk.number, 0);
        let identity = match (&disk.spec.name, disk.peer, &process) {
            (Some(name), ..) => Identity::Called(name.clone()),
            (None, Some(peer), Some(_)) => Identity::Process(peer),
            _ => Identity::Disk(number),
        };
        let found = process.unwrap_or_default();
        let vm: &mut Vm = vms.entry(identity).or_insert_with(|| Vm {
            name: disk.spec.name.clone().or(found.name).unwrap_or_else(|| disk.name.clone()),
            peer: disk.peer,
            cpus: found.cpus.unwrap_or(1),
            memory_bytes: 0,
            weight: None,
            disks: Vec::new(),
        });
        vm.cpus = disk.spec.cpus.unwrap_or(vm.cpus);
        // Each disk may see only a part: a monitor need not share all regions with each of them.
        let before = mutated("daemon.vms.memory-counts-for-each-disk", 0, vm.memory_bytes);
        vm.memory_bytes = vm.memory_bytes.max(before + disk.memory_bytes);
        vm.disks.push(disk.number);
    }
    let mut vms: Vec<Vm> = vms.into_values().collect();
    for vm in &mut vms {
        let of_vm = attached.iter().filter(|disk| vm.disks.contains(&disk.number));
        vm.weight = of_vm.clone().filter_map(|disk| disk.spec.weight).max();
        let configured = of_vm.filter_map(|disk| disk.spec.memory_bytes).max();
        let configured = mutated("daemon.vms.handed-over-above-configured", configured, None);
        vm.memory_bytes = configured.unwrap_or(vm.memory_bytes);
    }
    vms
}

#[cfg(test)]
mod tests;
