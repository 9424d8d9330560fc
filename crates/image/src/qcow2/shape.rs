//! Sizes that follow from an image's header, and the two kinds of cluster number.

use flowstone_block::mutant;
use flowstone_fileio::FileIo;

/// A cluster of the host file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostCluster(pub u64);

/// A cluster of the guest's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestCluster(pub u64);

/// Smallest and largest cluster, as powers of two.
pub const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;
/// The cluster of a new image, in bytes.
pub const CLUSTER_DEFAULT_BYTES: u64 = 64 << 10;

/// The least unit of change on the medium, in bytes: a sector is written whole or not at all.
pub const SECTOR_BYTES: usize = 512;

/// The unit in which metadata of this file is read and written, in bytes: 512, or what the device
/// insists on. No cluster is smaller.
pub fn sector_bytes(file: &dyn FileIo) -> usize {
    if mutant("qcow2.sectors.always-small") { SECTOR_BYTES } else { file.block_bytes() as usize }
}

/// What the header says about sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// 2 or 3; version 2 has no clusters that are zero by themselves.
    pub version: u32,
    /// Bytes of a cluster, as a power of two.
    pub cluster_bits: u32,
    /// Bits of a refcount, as a power of two.
    pub refcount_order: u32,
}

impl Shape {
    pub const fn cluster_bytes(self) -> u64 {
        1 << self.cluster_bits
    }

    /// Entries of an L2 table, which is one cluster.
    pub const fn l2_entries(self) -> u64 {
        self.cluster_bytes() / 8
    }

    /// Refcounts in a refcount block, which is one cluster.
    pub const fn block_refcounts(self) -> u64 {
        (self.cluster_bytes() * 8) >> self.refcount_order
    }

    /// Whole clusters that hold this many bytes.
    pub const fn clusters(self, bytes: u64) -> u64 {
        bytes.div_ceil(self.cluster_bytes())
    }

    /// L1 entries that a disk of this size needs.
    pub const fn l1_entries(self, disk_bytes: u64) -> u64 {
        self.clusters(disk_bytes).div_ceil(self.l2_entries())
    }

    /// Which L2 table maps the cluster.
    pub const fn l1_index(self, guest: GuestCluster) -> usize {
        (guest.0 / self.l2_entries()) as usize
    }

    /// Where in its L2 table the cluster is.
    pub const fn l2_index(self, guest: GuestCluster) -> usize {
        (guest.0 % self.l2_entries()) as usize
    }

    /// The cluster that holds this byte of the disk.
    pub const fn guest_at(self, position: u64) -> GuestCluster {
        GuestCluster(position >> self.cluster_bits)
    }

    /// The cluster that holds this byte of the host file.
    pub const fn host_at(self, offset: u64) -> HostCluster {
        HostCluster(offset >> self.cluster_bits)
    }

    /// Where the cluster begins in the host file.
    pub const fn offset(self, host: HostCluster) -> u64 {
        host.0 << self.cluster_bits
    }

    /// Where the cluster begins on the disk.
    pub const fn position(self, guest: GuestCluster) -> u64 {
        guest.0 << self.cluster_bits
    }
}
