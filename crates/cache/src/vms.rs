//! Which VM each disk belongs to, and what part of the host each VM has.

use flowstone_block::mutant;

use crate::names::BlockId;

/// What a VM has of the host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VmSize {
    /// vCPUs.
    pub cpus: u32,
    /// Memory in bytes.
    pub memory: u64,
}

/// The share that a VM has of its host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VmShare {
    /// Its vCPUs, of those of all VMs: u / Σu.
    pub cpus: f64,
    /// Its memory, of that of all VMs: v / Σv.
    pub memory: f64,
    /// How many VMs there are.
    pub vms: u32,
}

impl VmShare {
    /// The only VM of a host.
    pub const ALONE: Self = Self { cpus: 1.0, memory: 1.0, vms: 1 };

    /// One of so many that are alike.
    fn mean(vms: usize) -> Self {
        let vms = vms.max(1);
        let part = 1.0 / vms as f64;
        Self { cpus: part, memory: part, vms: vms as u32 }
    }
}

/// A disk that no VM is known of.
const NOBODY: u16 = u16::MAX;

/// The VMs that there are, by number, and which of them each disk belongs to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vms {
    shares: Vec<VmShare>,
    /// Products of shares, as parts of their sum.
    weights: Vec<f64>,
    of_disk: Vec<u16>,
}

impl Vms {
    /// VMs of these sizes, numbered as they come, and disks with the numbers of their VMs. More
    /// than 65,535 VMs are not told apart.
    pub fn new(sizes: &[VmSize], disks: impl IntoIterator<Item = (u32, usize)>) -> Self {
        let sizes = &sizes[..sizes.len().min(NOBODY.into())];
        let cpus: f64 = sizes.iter().map(|size| f64::from(size.cpus.max(1))).sum();
        let memory: f64 = sizes.iter().map(|size| size.memory.max(1) as f64).sum();
        let share = |size: &VmSize| VmShare {
            cpus: f64::from(size.cpus.max(1)) / cpus,
            memory: size.memory.max(1) as f64 / memory,
            vms: sizes.len() as u32,
        };
        let shares: Vec<_> = sizes.iter().map(share).collect();
        let mut of_disk = Vec::new();
        for (disk, vm) in disks {
            if vm < shares.len() {
                let index = disk as usize;
                of_disk.resize(of_disk.len().max(index + 1), NOBODY);
                of_disk[index] = vm as u16;
            }
        }
        let product = |share: &VmShare| {
            if mutant("cache.vms.weigh-by-cpus-alone") {
                share.cpus
            } else {
                share.cpus * share.memory
            }
        };
        let products: Vec<_> = shares.iter().map(product).collect();
        let sum: f64 = products.iter().sum();
        let weights = products.into_iter().map(|product| product / sum).collect();
        Self { shares, weights, of_disk }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.shares.len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.shares.is_empty()
    }

    /// Disks from this number on belong to none.
    pub fn disks(&self) -> usize {
        self.of_disk.len()
    }

    /// The number of the VM that a disk belongs to, if it is known.
    pub fn of_disk(&self, disk: usize) -> Option<usize> {
        let vm = *self.of_disk.get(disk)?;
        (vm != NOBODY).then_some(vm.into())
    }

    /// The number of the VM that a block belongs to, if it is known.
    pub fn of(&self, block: BlockId) -> Option<usize> {
        self.of_disk(block.disk() as usize)
    }

    /// The share of the VM that a block belongs to; that of one like the others, if it is not
    /// known.
    pub fn share_of(&self, block: BlockId) -> VmShare {
        self.of(block).map_or_else(|| VmShare::mean(self.len()), |vm| self.shares[vm])
    }

    /// What part of the cache is to be a VM's, whatever the others do: the product of its shares,
    /// which the rule of MultiCache takes, of those of all.
    pub fn weight(&self, vm: usize) -> f64 {
        self.weights[vm]
    }
}

#[cfg(test)]
impl Vms {
    /// VMs of so many vCPUs, and as many GiB; the first one has the first disk, and so on.
    pub fn of_sizes(sizes: &[u32]) -> std::sync::Arc<Self> {
        let size = |cpus: &u32| VmSize { cpus: *cpus, memory: u64::from(*cpus) << 30 };
        let sizes: Vec<_> = sizes.iter().map(size).collect();
        std::sync::Arc::new(Self::new(&sizes, (0..).zip(0..sizes.len())))
    }
}
