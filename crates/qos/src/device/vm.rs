//! The VM of a disk, as devices know it.

/// The VM of a disk, at the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceVm {
    /// Disks with the same number are those of one VM.
    pub id: u32,
    /// What it gets beside other VMs, at least 1.
    pub weight: u32,
}

impl DeviceVm {
    /// The weight of one of which nothing is known: a vCPU and a GiB of memory.
    pub const UNKNOWN: u32 = 100;
}
