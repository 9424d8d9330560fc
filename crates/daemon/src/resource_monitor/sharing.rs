//! Tracks the VMs that share the cache and the devices.

use std::sync::Arc;

use flowstone_block::{LogBudget, mutated};
use flowstone_cache::Vms;
use flowstone_memory::message::LEASE;
use flowstone_resources::{GuestCache, Heard};
use tracing::info;

use crate::disk::Disk;
use crate::vms::{self, Attached, Vm};

/// Looks after which vCPUs are counted again, even if no disk has changed.
const LOOKS: u32 = 20;

/// Detects VMs that come, go and change.
#[derive(Default)]
pub struct Sharing {
    attached: Vec<Attached>,
    vms: Vec<Vm>,
    shared: Vms,
    looks: u32,
    log: LogBudget,
}

impl Sharing {
    /// Returns the VMs that use `disks`, if they have changed.
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
        self.tell_of_new(&before, &shared);
        let tells = mutated("daemon.monitor.devices-hear-of-no-vms", true, false);
        if tells {
            vms::set_vms(&self.vms, disks);
        }
        self.shared = shared.clone();
        Some(shared)
    }

    /// Logs the weights of VMs that were not there before.
    fn tell_of_new(&mut self, before: &[Vm], shared: &Vms) {
        for (number, vm) in self.vms.iter().enumerate().filter(|(_, vm)| !before.contains(vm)) {
            // Rate-limited: a monitor may connect again and again.
            let Some(unsaid) = self.log.spend() else { continue };
            let percent = 100.0 * shared.weight(number);
            info!(
                vm = vm.name,
                cpus = vm.cpus,
                unsaid,
                device_weight = vm.device_weight(),
                "has a weight of {percent:.0} % of all VMs"
            );
        }
    }

    /// Returns the file caches of these VMs that have reported within a lease: a file cache that
    /// has ended in its VM leaves its port open.
    pub fn guest_caches(&self, heard: Vec<Heard>) -> Vec<GuestCache> {
        let of_vm = |heard: Heard| {
            if heard.age >= LEASE {
                return None;
            }
            let number = self.vms.iter().position(|vm| vm.peer == Some(heard.peer))?;
            let memory_bytes = self.vms[number].memory_bytes;
            Some(GuestCache { heard, weight: self.shared.weight(number), memory_bytes })
        };
        heard.into_iter().filter_map(of_vm).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use flowstone_memory::message::Report;

    use super::*;
    use flowstone_block::Peer;
    use flowstone_testkit::lines_logged;

    fn vm(pid: u32) -> Vm {
        Vm {
            name: String::new(),
            peer: Some(Peer { pid, start: Some(5) }),
            cpus: 1,
            memory_bytes: 1 << 30,
            weight: None,
            disks: vec![pid],
        }
    }

    #[test]
    fn vms_that_come_and_go_write_a_burst_of_lines() {
        let vms = vec![vm(1), vm(2)];
        let shared = vms::share_out(&vms);
        let mut sharing = Sharing { vms, ..Sharing::default() };
        let lines = lines_logged(|| sharing.tell_of_new(&[vm(1)], &shared));
        assert_eq!(lines, 1, "the other one is known");
        let lines = lines_logged(|| (0..1000).for_each(|_| sharing.tell_of_new(&[], &shared)));
        assert!((1..100).contains(&lines), "{lines}");
    }

    /// Regression: a silent guest kept its part for as long as its VM ran.
    #[test]
    fn a_guest_that_is_silent_for_a_lease_has_no_part() {
        let vms = vec![vm(1), vm(2)];
        let sharing = Sharing { shared: vms::share_out(&vms), vms, ..Sharing::default() };
        let heard_of = |peer, age| Heard { peer, report: Report::default(), age, grant: Some(7) };
        let heard = |pid, age| heard_of(Peer { pid, start: Some(5) }, age);
        let second = Duration::from_secs(1);
        // Its process has ended, and its PID was reused by the second VM's.
        let another = heard_of(Peer { pid: 2, start: Some(4) }, second);
        let heard = vec![heard(1, LEASE - second), heard(2, LEASE), heard(3, second), another];
        let parts = sharing.guest_caches(heard);
        let pids: Vec<u32> = parts.iter().map(|it| it.heard.peer.pid).collect();
        assert_eq!(pids, [1]);
    }
}
