//! The geometry of a disk, as a layer reports it to the layer above.

use crate::SectorCount;

/// The longest write-zeroes request, in bytes, on a host that has to write the zeroes: the write
/// blocks and cannot be interrupted.
pub const FILL_BYTES_MAX: u64 = 4 << 20;

/// Size, block sizes and limits of a virtual disk, as the guest will see them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size of the disk.
    pub capacity: SectorCount,
    /// Smallest unit the guest may address, in bytes: 512 or 4096.
    pub logical_block_bytes: u32,
    /// Smallest unit the disk writes without reading first, in bytes.
    pub physical_block_bytes: u32,
    /// Unit in which discarded space is actually freed, in bytes.
    pub discard_granularity_bytes: u32,
    /// Discards free space; if not set, the guest is not offered them.
    pub discards: bool,
    /// Writes are refused.
    pub readonly: bool,
    /// Zeroing costs as much as writing, since the host has no call for it. The guest is then
    /// offered short ranges only, and has to write longer ones itself.
    pub zeroes_are_written: bool,
}

impl Geometry {
    /// Returns the longest write-zeroes request, in bytes.
    pub const fn zeroes_max(&self) -> u64 {
        if self.zeroes_are_written { FILL_BYTES_MAX } else { u64::MAX }
    }

    /// Makes a writable disk of `capacity` with 512-byte logical and 4 KiB physical blocks.
    pub const fn with_capacity(capacity: SectorCount) -> Self {
        Self {
            capacity,
            logical_block_bytes: 512,
            physical_block_bytes: 4096,
            discard_granularity_bytes: 4096,
            discards: true,
            readonly: false,
            zeroes_are_written: false,
        }
    }
}
