//! What a layer tells the one above about its disk.

use crate::SectorCount;

/// The most zeroes that one request may ask for where a host has to write them: it waits for
/// nothing, and cannot be stopped half-way.
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
    /// Unit in which discarded space is really given back, in bytes.
    pub discard_granularity_bytes: u32,
    /// Whether discards do anything here; if not, the guest is not offered them.
    pub discards: bool,
    /// Whether writes are refused.
    pub readonly: bool,
    /// Whether zeroes cost what writes do: the host has no call for them. The guest is offered
    /// short ranges then, and has to write longer ones itself.
    pub zeroes_are_written: bool,
}

impl Geometry {
    /// The most zeroes that a request may ask for.
    pub const fn zeroes_max(&self) -> u64 {
        if self.zeroes_are_written { FILL_BYTES_MAX } else { u64::MAX }
    }

    /// A writable disk of `capacity` with 512-byte logical and 4 KiB physical blocks.
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
