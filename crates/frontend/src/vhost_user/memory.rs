//! Guest memory, mapped into the daemon, and the only way from a guest address to a host one.

mod nodes;
mod space;

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use flowstone_block::{Guarded, IoVec, is_any_broken};
use vm_memory::{FileOffset, MmapRegion};

pub use self::nodes::NodePages;
pub use self::space::expect_disks;
use self::space::{DiskSpace, Space};

/// Where a region of guest memory lies in the three address spaces that name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionAddresses {
    /// In the guest's physical memory: what descriptors hold.
    pub guest: u64,
    /// In the monitor's process: what ring addresses are given in.
    pub monitor: u64,
    /// Size in bytes.
    pub bytes: u64,
}

/// One mapped region.
struct Region {
    addresses: RegionAddresses,
    mapping: GuardedRegion,
}

/// A mapping of a monitor's file. The monitor may truncate it, or its file system be full.
pub(super) struct GuardedRegion {
    // Before the mapping: what is not mapped any more is not ours to replace.
    guard: Guarded,
    mapping: MmapRegion,
    _space: Option<Space>,
}

/// All memory of a guest at some time. Immutable: a change makes a new one that shares the
/// regions that stay, so a region is unmapped when the last user of it is gone.
#[derive(Default)]
pub struct GuestMemory {
    regions: Vec<Arc<Region>>,
    /// Of its disk, whose memory before and after this one counts too.
    space: Arc<DiskSpace>,
}

/// An address or a range that the guest's memory does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmapped;

impl GuestMemory {
    /// No memory, of the same disk.
    pub fn none(&self) -> Self {
        Self { regions: Vec::new(), space: Arc::clone(&self.space) }
    }

    /// This memory and one more region, which is mapped from `file` at `file_offset`.
    pub fn with_region(
        &self,
        addresses: RegionAddresses,
        file: File,
        file_offset: u64,
    ) -> io::Result<Self> {
        let end = |start: u64| start.checked_add(addresses.bytes);
        if addresses.bytes == 0
            || end(addresses.guest).is_none()
            || end(addresses.monitor).is_none()
        {
            return Err(io::Error::other("a memory region is empty or wraps around"));
        }
        if self.regions.iter().any(|region| overlaps(&region.addresses, &addresses)) {
            return Err(io::Error::other("two memory regions overlap"));
        }
        let bytes = usize::try_from(addresses.bytes).map_err(io::Error::other)?;
        let mapping = GuardedRegion::map(file, file_offset, bytes, Some(&self.space))?;
        let mut regions = self.regions.clone();
        regions.push(Arc::new(Region { addresses, mapping }));
        Ok(Self { regions, space: Arc::clone(&self.space) })
    }

    /// This memory without the region that begins at these addresses.
    pub fn without_region(&self, guest: u64, monitor: u64) -> Result<Self, Unmapped> {
        let mut regions = self.regions.clone();
        let before = regions.len();
        regions.retain(|region| {
            region.addresses.guest != guest || region.addresses.monitor != monitor
        });
        let space = Arc::clone(&self.space);
        if regions.len() == before { Err(Unmapped) } else { Ok(Self { regions, space }) }
    }

    /// Returns whether some of it has been lost: what is read there may be zeroes.
    #[inline]
    pub fn is_broken(&self) -> bool {
        is_any_broken() && self.regions.iter().any(|region| region.mapping.is_broken())
    }

    /// How many regions there are.
    pub fn region_count(&self) -> usize {
        self.regions.len()
    }

    /// How many bytes there are.
    pub fn bytes(&self) -> u64 {
        self.regions.iter().map(|region| region.addresses.bytes).sum()
    }

    /// The host address of a range of the monitor's address space that lies in one region.
    pub fn from_monitor(&self, address: u64, bytes: u64) -> Result<*mut u8, Unmapped> {
        self.find(address, bytes, |addresses| addresses.monitor)
    }

    /// The host address of a range of guest memory that lies in one region.
    pub fn from_guest(&self, address: u64, bytes: u64) -> Result<*mut u8, Unmapped> {
        self.find(address, bytes, |addresses| addresses.guest)
    }

    fn find(
        &self,
        address: u64,
        bytes: u64,
        start: impl Fn(&RegionAddresses) -> u64,
    ) -> Result<*mut u8, Unmapped> {
        for region in &self.regions {
            let offset = address.wrapping_sub(start(&region.addresses));
            // Both comparisons are needed: the sum cannot overflow once the first one holds.
            if offset < region.addresses.bytes && bytes <= region.addresses.bytes - offset {
                return Ok(region.at(offset));
            }
        }
        Err(Unmapped)
    }

    /// Calls `visit` with the host pieces of a range of guest memory, which may cross from one
    /// region into a neighbouring one.
    #[inline]
    pub fn pieces(
        &self,
        address: u64,
        bytes: u32,
        mut visit: impl FnMut(IoVec),
    ) -> Result<(), Unmapped> {
        let mut at = address;
        let mut left = u64::from(bytes);
        while left > 0 {
            let piece = self.piece(at, left)?;
            visit(piece);
            left -= piece.bytes() as u64;
            at = at.wrapping_add(piece.bytes() as u64);
        }
        Ok(())
    }

    /// The host's piece of guest memory that begins at `address` and ends with its region, or after
    /// so many bytes.
    #[inline]
    fn piece(&self, address: u64, bytes_max: u64) -> Result<IoVec, Unmapped> {
        for region in &self.regions {
            let offset = address.wrapping_sub(region.addresses.guest);
            if offset < region.addresses.bytes {
                let bytes = bytes_max.min(region.addresses.bytes - offset);
                // SAFETY: the piece lies in the region, and the queue that asks keeps this memory
                // until nothing is in flight (VirtQueue).
                return Ok(unsafe { IoVec::new(region.at(offset), bytes as usize) });
            }
        }
        Err(Unmapped)
    }
}

impl GuardedRegion {
    /// Maps a range of a file that is as long. It counts as memory of a guest of `disk`, if that is
    /// given.
    pub fn map(
        file: File,
        offset: u64,
        bytes: usize,
        disk: Option<&Arc<DiskSpace>>,
    ) -> io::Result<Self> {
        refuse_short_file(&file, offset, bytes as u64)?;
        let space = disk.map(|disk| Space::take(disk, bytes as u64)).transpose()?;
        // Of a file of huge pages it is their size.
        let page_bytes = file.metadata()?.blksize() as usize;
        let mapping = MmapRegion::from_file(FileOffset::new(file, offset), bytes)
            .map_err(io::Error::other)?;
        // SAFETY: the mapping is ours alone, and lives longer than its guard; all users of it look
        // whether it is broken.
        let guard = unsafe { Guarded::new(mapping.as_ptr(), bytes, page_bytes.max(4096)) };
        Ok(Self { guard, mapping, _space: space })
    }

    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_ptr()
    }

    pub fn size(&self) -> usize {
        self.mapping.size()
    }

    /// Returns whether some of it has been lost.
    pub fn is_broken(&self) -> bool {
        self.guard.is_broken()
    }
}

impl Region {
    #[inline]
    fn at(&self, offset: u64) -> *mut u8 {
        debug_assert!(offset < self.addresses.bytes);
        // SAFETY: callers checked that the offset lies in the mapping.
        unsafe { self.mapping.as_ptr().add(offset as usize) }
    }
}

/// Touching memory behind the end of its file would kill us. A device has no size to look at.
fn refuse_short_file(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let metadata = file.metadata()?;
    let end = offset.checked_add(bytes);
    if metadata.is_file() && end.is_none_or(|end| end > metadata.len()) {
        return Err(io::Error::other("a memory region is longer than its file"));
    }
    Ok(())
}

fn overlaps(a: &RegionAddresses, b: &RegionAddresses) -> bool {
    a.guest < b.guest + b.bytes && b.guest < a.guest + a.bytes
}

#[cfg(test)]
mod tests;
