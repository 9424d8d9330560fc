//! The VM of each disk, and the shares of each VM.

use flowstone_block::mutated;

use crate::names::BlockId;

/// Resources of a VM.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VmSize {
    /// Number of vCPUs.
    pub cpus: u32,
    /// Memory in bytes.
    pub memory: u64,
}

/// The shares of a VM in its host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VmShare {
    /// Its vCPUs as a fraction of those of all VMs: u / Σu.
    pub cpus: f64,
    /// Its memory as a fraction of that of all VMs: v / Σv.
    pub memory: f64,
    /// Number of VMs.
    pub vms: u32,
}

impl VmShare {
    /// Returns the share of one of `vms` equal VMs.
    fn mean(vms: usize) -> Self {
        let vms = vms.max(1);
        let part = 1.0 / vms as f64;
        Self { cpus: part, memory: part, vms: vms as u32 }
    }
}

/// VM number of a disk without a known VM.
const NOBODY: u16 = u16::MAX;

/// The VMs by number, and the VM of each disk.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vms {
    shares: Vec<VmShare>,
    /// Products of shares, as fractions of their sum.
    weights: Vec<f64>,
    of_disk: Vec<u16>,
}

impl Vms {
    /// Makes VMs of these sizes, numbered in order, and assigns disks to VM numbers. VMs beyond
    /// 65,535 are ignored.
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
            mutated("cache.vms.weigh-by-cpus-alone", share.cpus * share.memory, share.cpus)
        };
        let products: Vec<_> = shares.iter().map(product).collect();
        let sum: f64 = products.iter().sum();
        let weights = products.into_iter().map(|product| product / sum).collect();
        Self { shares, weights, of_disk }
    }

    /// Returns the number of VMs.
    pub fn len(&self) -> usize {
        self.shares.len()
    }

    /// Returns whether there are no VMs.
    pub fn is_empty(&self) -> bool {
        self.shares.is_empty()
    }

    /// Returns the number from which on disks belong to no VM.
    pub fn disks(&self) -> usize {
        self.of_disk.len()
    }

    /// Returns the number of the VM that a disk belongs to, if known.
    pub fn of_disk(&self, disk: usize) -> Option<usize> {
        let vm = *self.of_disk.get(disk)?;
        (vm != NOBODY).then_some(vm.into())
    }

    /// Returns the number of the VM that a block belongs to, if known.
    pub fn of(&self, block: BlockId) -> Option<usize> {
        self.of_disk(block.disk() as usize)
    }

    /// Returns the share of the VM that a block belongs to; the mean share if it is not known.
    pub fn share_of(&self, block: BlockId) -> VmShare {
        self.of(block).map_or_else(|| VmShare::mean(self.len()), |vm| self.shares[vm])
    }

    /// Returns a VM's guaranteed fraction of the cache: the product of its shares, as in
    /// MultiCache's rule, divided by the sum of those of all VMs.
    pub fn weight(&self, vm: usize) -> f64 {
        self.weights[vm]
    }
}

#[cfg(test)]
impl Vms {
    /// Makes VMs of these vCPUs, and as many GiB each; the first one has the first disk, and so on.
    pub fn of_sizes(sizes: &[u32]) -> std::sync::Arc<Self> {
        let size = |cpus: &u32| VmSize { cpus: *cpus, memory: u64::from(*cpus) << 30 };
        let sizes: Vec<_> = sizes.iter().map(size).collect();
        std::sync::Arc::new(Self::new(&sizes, (0..).zip(0..sizes.len())))
    }
}
