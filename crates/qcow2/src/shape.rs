//! Sizes that follow from an image's header, and the two kinds of cluster number.

use flowstone_block::mutated;
use flowstone_fileio::FileIo;

/// Number of a cluster of the host file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostCluster(pub u64);

/// Number of a cluster of the guest's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestCluster(pub u64);

/// Smallest and largest cluster, as powers of two.
pub const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;
/// The cluster of a new image, in bytes.
pub const CLUSTER_DEFAULT_BYTES: u64 = 64 << 10;

/// Atomic unit of writes on the medium, in bytes: a sector is written whole or not at all.
pub const SECTOR_BYTES: usize = 512;

/// Unit in which metadata of this file is read and written, in bytes: 512, or the device's block
/// size. No cluster is smaller.
pub fn sector_bytes(file: &dyn FileIo) -> usize {
    mutated("qcow2.sectors.always-small", file.block_bytes() as usize, SECTOR_BYTES)
}

/// Sizes given by the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// 2 or 3; version 2 has no zero clusters.
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

    /// Returns the entries of an L2 table, which is one cluster.
    pub const fn l2_entries(self) -> u64 {
        self.cluster_bytes() / 8
    }

    /// Returns the refcounts in a refcount block, which is one cluster.
    pub const fn block_refcounts(self) -> u64 {
        (self.cluster_bytes() * 8) >> self.refcount_order
    }

    /// Returns the whole clusters that hold this many bytes.
    pub const fn clusters(self, bytes: u64) -> u64 {
        bytes.div_ceil(self.cluster_bytes())
    }

    /// Returns the L1 entries that a disk of this size needs.
    pub const fn l1_entries(self, disk_bytes: u64) -> u64 {
        self.clusters(disk_bytes).div_ceil(self.l2_entries())
    }

    /// Returns the index of the L2 table that maps the cluster.
    pub const fn l1_index(self, guest: GuestCluster) -> usize {
        (guest.0 / self.l2_entries()) as usize
    }

    /// Returns the index of the cluster in its L2 table.
    pub const fn l2_index(self, guest: GuestCluster) -> usize {
        (guest.0 % self.l2_entries()) as usize
    }

    /// Returns the cluster that holds this byte of the disk.
    pub const fn guest_at(self, position: u64) -> GuestCluster {
        GuestCluster(position >> self.cluster_bits)
    }

    /// Returns the cluster that holds this byte of the host file.
    pub const fn host_at(self, offset: u64) -> HostCluster {
        HostCluster(offset >> self.cluster_bits)
    }

    /// Returns the offset of the cluster in the host file.
    pub const fn offset(self, host: HostCluster) -> u64 {
        host.0 << self.cluster_bits
    }

    /// Returns the position of the cluster on the disk.
    pub const fn position(self, guest: GuestCluster) -> u64 {
        guest.0 << self.cluster_bits
    }
}
