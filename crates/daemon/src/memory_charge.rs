//! Accounting of guests' memory when the daemon is in a memory cgroup.
//!
//! A page of shared memory is charged to the cgroup of the process that touches it first. When a
//! guest reads its disk into memory it has never touched, the daemon is charged, and past the limit
//! the kernel kills the daemon and with it all disks. This module cannot prevent that; it warns,
//! and reports that memory separately.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, Weak};

use flowstone_block::{LogBudget, Peer, format_size, lock, mutated};
use flowstone_host::OwnProcess;
use serde::Serialize;
use tracing::warn;

use crate::config::{DiskConfig, VmSpec};
use crate::front_end::{Device, expect_disks};
use flowstone_memory::reading::{host_memory, memory_limit};

/// The daemon's memory in the output of `stats`.
#[derive(Debug, Serialize)]
pub struct MemoryReport {
    /// Resident memory, guests' memory included.
    resident_bytes: u64,
    /// Guests' memory touched by the daemon; charged to the cgroup of the first process to touch
    /// it.
    guest_resident_bytes: u64,
    /// Memory that the connected guests have shared.
    guest_bytes: u64,
    /// Lowest limit of the daemon's memory cgroups; `null` if there is none.
    cgroup_limit_bytes: Option<u64>,
}

impl MemoryReport {
    /// Reads the current state; `guest_bytes` is the memory shared by guests.
    pub fn of(guest_bytes: u64) -> Self {
        let process = OwnProcess::look();
        Self {
            resident_bytes: process.resident_bytes().unwrap_or(0),
            guest_resident_bytes: process.shared_resident_bytes().unwrap_or(0),
            guest_bytes,
            cgroup_limit_bytes: memory_limit(),
        }
    }
}

/// Reserves address space for the guest of each disk. Warns if the configured memory of all guests
/// exceeds the daemon's limit.
pub fn prepare(disks: &[DiskConfig]) {
    expect_disks(disks.len(), host_memory().unwrap_or(0));
    let vms = disks.iter().filter_map(|disk| disk.vm.as_ref());
    let whose = "the guests of this configuration";
    if let Some(line) = complaint(configured_bytes(vms), memory_limit(), whose) {
        warn!("{line}");
    }
}

/// Returns the configured memory of all VMs, from those of each disk. Disks of one name belong to
/// one VM, and a disk without a name to one of its own.
fn configured_bytes<'vm>(vms: impl Iterator<Item = &'vm VmSpec>) -> u64 {
    let mut named = BTreeMap::new();
    let mut all = 0_u64;
    for vm in vms {
        let bytes = vm.memory_bytes.unwrap_or(0);
        match &vm.name {
            // All of them say the same, or nothing.
            Some(name) => {
                let known = named.entry(name).or_insert(0);
                *known = bytes.max(*known);
            }
            None => all = all.saturating_add(bytes),
        }
    }
    named.into_values().fold(all, u64::saturating_add)
}

/// Records that a disk's guest is served with the memory that it has shared. Warns if the connected
/// guests have more memory than the daemon's limit.
pub fn guest_starts(disk: u32, device: &Arc<Device>) {
    static LIMIT: LazyLock<Option<u64>> = LazyLock::new(memory_limit);
    static GUESTS: Mutex<Guests> = Mutex::new(Guests { devices: BTreeMap::new(), said: 0 });
    static LOG: LazyLock<Mutex<LogBudget>> = LazyLock::new(Mutex::default);
    if LIMIT.is_none() {
        return;
    }
    let mut guests = lock(&GUESTS);
    guests.devices.insert(disk, Arc::downgrade(device));
    let bytes = guests.bytes();
    if let Some(line) = guests.complaint(bytes, *LIMIT)
        && let Some(unsaid) = lock(&LOG).spend()
    {
        warn!(unsaid, "{line}");
    }
}

/// Returns the memory of all guests, from the number, the process and the shared memory of each
/// disk. A process may share the same memory for each of its disks.
pub fn guest_bytes_of(disks: impl IntoIterator<Item = (u32, Option<Peer>, u64)>) -> u64 {
    let mut guests = BTreeMap::new();
    for (number, peer, handed_over) in disks {
        let alone = peer.is_none().then_some(number);
        let bytes = guests.entry((peer, alone)).or_insert(0);
        *bytes = handed_over.max(*bytes);
    }
    guests.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
}

/// The disks used by guests, and the total of guest memory at the last check.
struct Guests {
    devices: BTreeMap<u32, Weak<Device>>,
    said: u64,
}

impl Guests {
    /// Returns the memory shared by the connected guests.
    fn bytes(&mut self) -> u64 {
        self.devices.retain(|_, device| device.strong_count() > 0);
        let guest = |(disk, device): (&u32, &Weak<Device>)| {
            let guest = device.upgrade()?.guest()?;
            Some((*disk, guest.monitor, guest.memory_bytes))
        };
        guest_bytes_of(self.devices.iter().filter_map(guest))
    }

    /// Returns a warning whenever the total has grown since the last check and exceeds the limit.
    fn complaint(&mut self, bytes: u64, limit: Option<u64>) -> Option<String> {
        let is_more = bytes > self.said;
        self.said = bytes;
        let line = complaint(bytes, limit, "the guests that are connected");
        let is_more = mutated("daemon.memory.counts-no-guests-together", is_more, false);
        line.filter(|_| is_more)
    }
}

fn complaint(bytes: u64, limit: Option<u64>, whose: &str) -> Option<String> {
    let limit = limit.filter(|limit| *limit < bytes)?;
    Some(format!(
        "the memory cgroup of the daemon is limited to {}, and the memory of {whose}, {}, may be charged \
         to it; raise the limit, or have guests' memory touched by their monitors (prealloc=on)",
        format_size(limit),
        format_size(bytes)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a daemon in a cgroup of 256 MiB was killed for lack of memory without a warning
    /// when a guest of 2 GiB read its disk into untouched memory. Later: each guest had less than
    /// the cgroup's limit, but all together had more.
    #[test]
    fn guests_that_have_more_together_are_said_once_for_each_change() {
        let mut guests = Guests { devices: BTreeMap::new(), said: 0 };
        let mut says = |gib: u64| guests.complaint(gib << 30, Some(4 << 30)).is_some();
        // Each queue that starts triggers a check.
        assert_eq!([3, 4, 5, 5, 5, 6].map(&mut says), [false, false, true, false, false, true]);
        assert_eq!([2, 5, 5].map(says), [false, true, false]);
    }

    #[test]
    fn configured_vms_are_added_each_of_a_name_once() {
        let vm = |name: &str, gib: Option<u64>| VmSpec {
            name: (!name.is_empty()).then(|| name.into()),
            memory_bytes: gib.map(|gib| gib << 30),
            ..VmSpec::default()
        };
        let gib = |vms: &[VmSpec]| configured_bytes(vms.iter()) >> 30;
        assert_eq!(gib(&[]), 0);
        assert_eq!(gib(&[vm("a", Some(2)), vm("b", Some(3)), vm("a", Some(2))]), 5);
        // A disk that says only whose it is, before and after the one that says how much.
        assert_eq!(gib(&[vm("a", None), vm("a", Some(2)), vm("a", None)]), 2);
        assert_eq!(gib(&[vm("", Some(2)), vm("", Some(2)), vm("a", Some(2)), vm("", None)]), 6);
        let most = vm("", Some(u64::MAX >> 30));
        assert_eq!(gib(&[most.clone(), most]), u64::MAX >> 30);
        let vms = [vm("a", Some(3)), vm("b", Some(2))];
        let bytes = configured_bytes(vms.iter());
        let line = complaint(bytes, Some(4 << 30), "its guests").unwrap();
        assert!(line.contains("5 GiB") && line.contains("its guests"), "{line}");
        assert_eq!(complaint(bytes, Some(5 << 30), "its guests"), None);
    }

    #[test]
    fn more_guest_memory_than_the_cgroup_has_is_said() {
        let line = complaint(2 << 30, Some(256 << 20), "a guest").unwrap();
        assert!(line.contains("256 MiB") && line.contains("2 GiB"), "{line}");
        assert_eq!(complaint(2 << 30, Some(2 << 30), "a guest"), None);
        assert_eq!(complaint(2 << 30, None, "a guest"), None);
        let report = MemoryReport::of(5);
        assert!(report.resident_bytes > 0 && report.guest_bytes == 5);
    }
}
