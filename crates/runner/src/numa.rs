//! NUMA topology of the host: which CPUs and pollers are near a guest's memory (S2.8).

use std::fs;
use std::path::Path;

use crate::CpuList;
use crate::cpus::of_this_thread;

/// Kernel directory that describes the host's nodes.
const NODES: &str = "/sys/devices/system/node";

/// A NUMA node with CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The kernel's node number.
    pub number: u32,
    /// Its CPUs.
    pub cpus: CpuList,
}

/// The nodes of a host that have CPUs, in the order of their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    nodes: Vec<Node>,
    /// CPUs that the process may use, as its operator started it; empty: all.
    allowed: CpuList,
}

impl Topology {
    /// Reads the topology of this host. If the kernel does not describe it there are no nodes, and
    /// nothing is placed.
    pub fn of_host() -> Self {
        Self { allowed: of_this_thread(), ..Self::read(Path::new(NODES)) }
    }

    fn read(root: &Path) -> Self {
        let entries = fs::read_dir(root).into_iter().flatten().flatten();
        let node = |entry: fs::DirEntry| {
            let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            let cpus = fs::read_to_string(entry.path().join("cpulist")).ok()?;
            Some(Node { number, cpus: cpus.trim().parse().ok()? })
        };
        Self::of(entries.filter_map(node).collect())
    }

    /// Makes a topology of these nodes.
    pub fn of(mut nodes: Vec<Node>) -> Self {
        nodes.sort_by_key(|node| node.number);
        Self { nodes, allowed: CpuList::default() }
    }

    /// Returns all nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns whether placement matters: the host has several nodes.
    pub fn matters(&self) -> bool {
        self.nodes.len() > 1
    }

    /// Returns the CPUs of a node; empty if it has none.
    pub fn cpus_near(&self, node: u32) -> CpuList {
        let node = self.nodes.iter().find(|it| it.number == node);
        node.map(|node| node.cpus.clone()).unwrap_or_default()
    }

    /// Returns the CPUs for a thread near a node: its own, of those that the process may use;
    /// empty (anywhere) if there are none.
    pub fn threads_near(&self, node: u32) -> CpuList {
        let may_use = |cpu: &usize| self.allowed.is_empty() || self.allowed.contains(*cpu);
        self.cpus_near(node).iter().filter(may_use).collect()
    }

    /// Returns the default CPUs of thread number `index`: those near a node, the nodes in turn;
    /// empty (anywhere) if placement does not matter.
    pub fn spread(&self, index: usize) -> CpuList {
        if self.matters() {
            self.threads_near(self.nodes[index % self.nodes.len()].number)
        } else {
            CpuList::default()
        }
    }

    /// Returns the node that all these CPUs belong to, if there is one.
    pub fn node_of_all(&self, cpus: &CpuList) -> Option<u32> {
        let node_of = |cpu| self.nodes.iter().find(|node| node.cpus.contains(cpu));
        let mut nodes = cpus.iter().map(|cpu| node_of(cpu).map(|node| node.number));
        let first = nodes.next()??;
        nodes.all(|node| node == Some(first)).then_some(first)
    }

    /// A host with these nodes, for tests.
    #[cfg(test)]
    pub fn fake(nodes: &[(u32, &str)]) -> Self {
        let node =
            |(number, cpus): &(u32, &str)| Node { number: *number, cpus: cpus.parse().unwrap() };
        Self { nodes: nodes.iter().map(node).collect(), allowed: CpuList::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> CpuList {
        text.parse().unwrap()
    }

    #[test]
    fn nodes_are_read_as_the_kernel_describes_them() {
        let root = tempfile::tempdir().unwrap();
        for (name, cpus) in [("node10", "8-11\n"), ("node0", "0-3,16\n"), ("node2", "\n")] {
            fs::create_dir(root.path().join(name)).unwrap();
            fs::write(root.path().join(name).join("cpulist"), cpus).unwrap();
        }
        fs::write(root.path().join("possible"), "0-10\n").unwrap();
        let host = Topology::read(root.path());
        // Node 2 has memory only.
        assert_eq!(host, Topology::fake(&[(0, "0-3,16"), (10, "8-11")]));
        let node_of = |cpu: usize| host.node_of_all(&cpu.into());
        assert_eq!([node_of(16), node_of(9), node_of(5)], [Some(0), Some(10), None]);
        assert_eq!([host.cpus_near(10), host.cpus_near(2)], [list("8-11"), CpuList::default()]);
        assert_eq!(host.node_of_all(&list("1-2")), Some(0));
        assert_eq!(
            [host.node_of_all(&list("1,8")), host.node_of_all(&CpuList::default())],
            [None; 2]
        );
    }

    #[test]
    fn threads_are_spread_over_nodes_only_where_there_are_several() {
        let two = Topology::fake(&[(0, "0-1"), (1, "2-3")]);
        assert_eq!(
            [two.spread(0), two.spread(1), two.spread(2)],
            [list("0-1"), list("2-3"), list("0-1")]
        );
        for one in [Topology::fake(&[(0, "0-1")]), Topology::read(Path::new("/nowhere"))] {
            assert!(!one.matters() && one.spread(0).is_empty());
        }
    }

    /// Regression: `taskset` and `CPUAffinity=` meant nothing on hosts with several nodes.
    #[test]
    fn threads_stay_on_the_cpus_that_the_process_may_use() {
        let mut two = Topology::fake(&[(0, "0-1"), (1, "2-3")]);
        two.allowed = list("1,5");
        assert_eq!([two.spread(0), two.spread(1)], [list("1"), CpuList::default()]);
        assert_eq!(two.cpus_near(0), list("0-1"), "what guests may use is not the daemon's");
    }

    #[test]
    fn this_host_has_a_node_or_says_nothing() {
        let host = Topology::of_host();
        assert!(host.nodes().iter().all(|node| !node.cpus.is_empty()));
        assert!(!host.allowed.is_empty() && host.allowed == of_this_thread());
    }
}
