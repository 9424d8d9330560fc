//! The VM of a disk, as devices see it.

/// The VM of a disk, as devices see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceVm {
    /// Number of the VM.
    pub id: u32,
    /// Weight relative to other VMs, at least 1.
    pub weight: u32,
}

impl DeviceVm {
    /// Weight of an unknown VM: that of one vCPU and 1 GiB of memory.
    pub const UNKNOWN: u32 = 100;
}
