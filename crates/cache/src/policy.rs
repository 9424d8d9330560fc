//! What a policy is asked, and what it answers.

pub mod adaptive;
pub mod lru;
pub mod multicache;
pub mod s3fifo;

/// A block of 4 KiB of one of the disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u64);

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
}

/// A block is read or written.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The block.
    pub block: BlockId,
    /// The share of the VM that asks for it.
    pub share: VmShare,
}

/// What becomes of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The cache holds it.
    Hit,
    /// The cache takes it in, and gives another one up if it is full.
    Inserted,
    /// The cache does not take it.
    Refused,
}

/// Decides which blocks are kept.
pub trait Policy {
    /// A block is read or written.
    fn access(&mut self, access: Access) -> Outcome;

    /// How many blocks are kept.
    fn len(&self) -> usize;

    /// Whether none is.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests;
