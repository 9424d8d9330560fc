//! The output of `stats --numa`: nodes of guests' memory and of queues, and advice on pinning
//! vCPUs.

use std::sync::Arc;

use flowstone_runner::{Node, PollerReport, Pollers, Topology};
use serde::Serialize;

use crate::disk::Disk;
use crate::vms;

/// The report; its shape is in docs/operating.md.
#[derive(Serialize)]
pub struct NumaReport {
    nodes: Vec<NodeReport>,
    disks: Vec<HomeReport>,
    pollers: Vec<PollerReport>,
    /// One line per VM.
    advice: Vec<String>,
}

#[derive(Serialize)]
struct NodeReport {
    node: u32,
    cpus: String,
}

/// Location of the memory of a disk's guest.
#[derive(Serialize)]
struct HomeReport {
    name: String,
    /// The node of more than half of the memory.
    home: Option<u32>,
    pages: Vec<PagesReport>,
}

/// Number of sampled pages on a node.
#[derive(Serialize)]
struct PagesReport {
    node: u32,
    pages: u32,
}

impl NumaReport {
    /// Samples the memory of all guests.
    pub fn of(disks: &[Arc<Disk>], pollers: &Pollers) -> Self {
        let topology = pollers.topology();
        let homes: Vec<(u32, HomeReport)> =
            disks.iter().filter_map(|disk| Some((disk.number, HomeReport::of(disk)?))).collect();
        let guests = vms::look(&vms::attached(disks));
        let advice = guests.iter().map(|vm| {
            let its = homes.iter().filter(|(number, _)| vm.disks.contains(number));
            let home = its.filter_map(|(_, disk)| disk.home).next();
            advise(&vm.name, vm.peer.map(|it| it.pid), home, topology)
        });
        let advice = advice.collect();
        let node = |it: &Node| NodeReport { node: it.number, cpus: it.cpus.to_string() };
        Self {
            nodes: topology.nodes().iter().map(node).collect(),
            disks: homes.into_iter().map(|(_, disk)| disk).collect(),
            pollers: pollers.report(),
            advice,
        }
    }
}

impl HomeReport {
    /// Returns `None` if no guest uses the disk.
    fn of(disk: &Disk) -> Option<Self> {
        let found = disk.shared.guest_memory()?.nodes();
        let pages = found.0.iter().map(|(node, pages)| PagesReport { node: *node, pages: *pages });
        Some(Self { name: disk.name.clone(), home: found.home(), pages: pages.collect() })
    }
}

/// Returns advice for the VM `name`, with its process and the node of its memory.
fn advise(name: &str, pid: Option<u32>, home: Option<u32>, topology: &Topology) -> String {
    if !topology.matters() {
        return format!(
            "{name}: the host has one node; keep its vCPUs off the CPUs of pinned pollers"
        );
    }
    let Some(home) = home else {
        return format!(
            "{name}: its memory is spread over several nodes; bind it to one (libvirt: <numatune>, QEMU: \
             -object memory-backend-memfd,host-nodes=N,policy=bind)"
        );
    };
    let cpus = topology.cpus_near(home);
    let command = pid.map_or_else(String::new, |pid| format!("taskset -apc {cpus} {pid}, or "));
    format!(
        "{name}: its memory is on node {home}; pin its vCPUs there ({command}libvirt: <vcpupin cpuset='{cpus}'/>)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_the_cpus_near_the_memory() {
        let host = |nodes: &[(u32, &str)]| {
            let node = |(number, cpus): &(u32, &str)| Node {
                number: *number,
                cpus: cpus.parse().unwrap(),
            };
            Topology::of(nodes.iter().map(node).collect())
        };
        let two = host(&[(0, "0-3"), (1, "4-7,12")]);
        let advise = |pid, home, host| advise("vm", pid, home, host);
        let far = advise(Some(77), Some(1), &two);
        assert!(far.contains("on node 1") && far.contains("taskset -apc 4-7,12 77, or"), "{far}");
        let hidden = advise(None, Some(0), &two);
        assert!(!hidden.contains("taskset") && hidden.contains("cpuset='0-3'"), "{hidden}");
        assert!(advise(None, None, &two).contains("bind it to one"));
        let one = host(&[(0, "0-3")]);
        assert!(advise(Some(1), Some(0), &one).contains("one node"));
    }
}
