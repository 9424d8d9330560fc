//! Guest memory, mapped into the daemon, and the only translation from guest to host addresses.

mod nodes;
mod space;

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use flowstone_block::{Guarded, IoVec, is_any_broken, mutated};
use flowstone_host::may_ask_a_server;
use vm_memory::{FileOffset, MmapRegion};

pub use self::nodes::NodePages;
pub use self::space::expect_disks;
use self::space::{DiskSpace, Space};

/// The addresses of a region of guest memory in the guest, in the monitor, and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionAddresses {
    /// Guest physical address, as in descriptors.
    pub guest: u64,
    /// Address in the monitor's process, as in ring addresses.
    pub monitor: u64,
    /// Size in bytes.
    pub bytes: u64,
}

/// One mapped region.
struct Region {
    addresses: RegionAddresses,
    mapping: GuardedRegion,
}

/// A mapping of a monitor's file. The monitor may truncate it, or its file system may be full.
pub(super) struct GuardedRegion {
    // Dropped before the mapping: pages of an unmapped range must not be replaced.
    guard: Guarded,
    mapping: MmapRegion,
    _space: Option<Space>,
}

/// All memory of a guest at one time. Immutable: a change makes a new object that shares the
/// unchanged regions, so a region is unmapped when its last user is gone.
#[derive(Default)]
pub struct GuestMemory {
    regions: Vec<Arc<Region>>,
    /// The address space of its disk, which earlier and later memory of the guest counts in, too.
    space: Arc<DiskSpace>,
}

/// An address or a range outside the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmapped;

impl GuestMemory {
    /// Returns empty memory of the same disk.
    pub fn none(&self) -> Self {
        Self { regions: Vec::new(), space: Arc::clone(&self.space) }
    }

    /// Returns this memory with one more region, mapped from `file` at `file_offset`.
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

    /// Returns this memory without the region that begins at these addresses.
    pub fn without_region(&self, guest: u64, monitor: u64) -> Result<Self, Unmapped> {
        let mut regions = self.regions.clone();
        let before = regions.len();
        regions.retain(|region| {
            region.addresses.guest != guest || region.addresses.monitor != monitor
        });
        let space = Arc::clone(&self.space);
        if regions.len() == before { Err(Unmapped) } else { Ok(Self { regions, space }) }
    }

    /// Returns whether part of it has been lost: reads there may return zeroes.
    #[inline]
    pub fn is_broken(&self) -> bool {
        is_any_broken() && self.regions.iter().any(|region| region.mapping.is_broken())
    }

    /// Returns the number of regions.
    pub fn region_count(&self) -> usize {
        self.regions.len()
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.regions.iter().map(|region| region.addresses.bytes).sum()
    }

    /// Returns the host address of a range of the monitor's address space that lies in one region.
    pub fn from_monitor(&self, address: u64, bytes: u64) -> Result<*mut u8, Unmapped> {
        self.find(address, bytes, |addresses| addresses.monitor)
    }

    /// Returns the host address of a range of guest memory that lies in one region.
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
            // Both comparisons are needed: the difference cannot underflow once the first one
            // holds.
            if offset < region.addresses.bytes && bytes <= region.addresses.bytes - offset {
                return Ok(region.at(offset));
            }
        }
        Err(Unmapped)
    }

    /// Calls `visit` with the host pieces of a range of guest memory, which may cross into an
    /// adjacent region.
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

    /// Returns the host's piece of guest memory that begins at `address` and ends with its region,
    /// or after `bytes_max` bytes.
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
    /// Maps a range of a file, which must not be shorter. The mapping counts as memory of a guest
    /// of `disk`, if given.
    pub fn map(
        file: File,
        offset: u64,
        bytes: usize,
        disk: Option<&Arc<DiskSpace>>,
    ) -> io::Result<Self> {
        refuse_file_of_a_server(&file)?;
        refuse_short_file(&file, offset, bytes as u64)?;
        let space = disk.map(|disk| Space::take(disk, bytes as u64)).transpose()?;
        // For a file of huge pages this is their size.
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

    /// Returns whether part of it has been lost.
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

/// Refuses a file whose server could stop: a thread that touches a page of it would wait for the
/// server, with all disks that it serves.
fn refuse_file_of_a_server(file: &File) -> io::Result<()> {
    let asks_server = may_ask_a_server(file);
    let asks_server = mutated("frontend.memory.maps-what-a-server-has", asks_server, false);
    if asks_server {
        return Err(io::Error::other(
            "guest memory is a file on FUSE, NFS or the like, whose server could stop; use \
             memory-backend-memfd, or a file on tmpfs, hugetlbfs or a local file system",
        ));
    }
    Ok(())
}

/// Refuses a range past the end of its file, which would fault when touched. A device has no size
/// to check.
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
