//! The use of the files in a folder.

/// From linux/fuse.h: requests bypass the kernel's page cache; it keeps cached pages of a reopened
/// file; it sends writes of a file in parallel.
const DIRECT_IO: u32 = 1;
const KEEP_CACHE: u32 = 1 << 1;
const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

/// The use of the files in a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// Images of disks.
    Images,
    /// Files of several users and writers: created files belong to their creator, and an open uses
    /// no pages of an earlier one.
    Source,
    /// Images on a device that sees each request.
    Device,
}

impl Holds {
    /// Returns the flags of an open file.
    pub const fn open_flags(self) -> u32 {
        match self {
            Self::Images => KEEP_CACHE,
            Self::Source => 0,
            Self::Device => DIRECT_IO | PARALLEL_DIRECT_WRITES,
        }
    }
}
