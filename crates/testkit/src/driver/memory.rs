//! Guest memory: memfd-backed regions that a backend can map, and slices of them.
//!
//! Guest-physical addresses are unlike the mapping's own addresses, so that a backend which mixes
//! the two up fails at once. Memory is handed out by bump allocation and never taken back; it is
//! unmapped when the last slice is gone. How the bytes are accessed is `slice`'s business; it knows
//! nothing of rings.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

use super::Slice;
use crate::{Error, Result};

/// Where the first region lies for the guest.
const GUEST_BASE: u64 = 0x4000_0000;
/// Regions are multiples of this, as QEMU's are.
const REGION_ALIGN: usize = 2 << 20;

/// A guest-physical address, as it stands in descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestAddress(pub u64);

impl GuestAddress {
    /// The address `bytes` further on, wrapping at 2^64 as hostile tests want.
    pub fn plus(self, bytes: u64) -> Self {
        GuestAddress(self.0.wrapping_add(bytes))
    }
}

/// How the guest's memory is cut up.
#[derive(Clone, Copy, Debug)]
pub struct MemoryLayout {
    /// Number of regions, each with a file of its own.
    pub regions: usize,
    /// Size of each region, rounded up to 2 MiB.
    pub region_bytes: usize,
    /// Hole between regions in guest-physical space; 0 makes them touch.
    pub gap_bytes: u64,
}

impl MemoryLayout {
    /// One region of at least `bytes`.
    pub fn single(bytes: usize) -> Self {
        MemoryLayout { regions: 1, region_bytes: bytes, gap_bytes: 0 }
    }
}

/// The guest's memory; clones share it.
#[derive(Clone, Debug)]
pub struct Memory {
    regions: Arc<[Arc<Region>]>,
}

/// One region as a backend has to be told about it.
#[derive(Clone, Copy, Debug)]
pub struct MemoryRegion {
    /// First guest-physical address.
    pub guest: GuestAddress,
    /// Length.
    pub bytes: u64,
    /// First address in this process, the "userspace address" of vhost-user.
    pub user: u64,
    /// The file behind it, valid as long as the `Memory` lives.
    pub fd: RawFd,
}

/// One mapping. Never handed out as such: slices keep it alive.
#[derive(Debug)]
pub(super) struct Region {
    fd: OwnedFd,
    pub(super) base: NonNull<u8>,
    pub(super) bytes: usize,
    pub(super) guest: GuestAddress,
    /// Bytes handed out so far.
    pub(super) used: AtomicUsize,
}

// SAFETY: the mapping is owned by the region and shared with another process anyway; all access
// goes through atomics or copies of bytes that the ring protocol gives to one side at a time.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Memory {
    /// Maps fresh, zeroed memory. Pages are populated on first use.
    pub fn new(layout: MemoryLayout) -> Result<Self> {
        let mut guest = GuestAddress(GUEST_BASE);
        let mut regions = Vec::with_capacity(layout.regions);
        for _ in 0..layout.regions {
            let region = Region::map(guest, layout.region_bytes)?;
            guest = guest.plus(region.bytes as u64).plus(layout.gap_bytes);
            regions.push(Arc::new(region));
        }
        Ok(Memory { regions: regions.into() })
    }

    /// Hands out `bytes` zeroed bytes at a multiple of `align`, from the first region with room.
    pub fn alloc(&self, bytes: usize, align: usize) -> Result<Slice> {
        let full = || Error::Misuse(format!("no {bytes} bytes left in guest memory"));
        self.regions.iter().find_map(|region| Slice::take(region, bytes, align)).ok_or_else(full)
    }

    /// Hands out `bytes` of the region numbered `index` only.
    pub fn alloc_in(&self, index: usize, bytes: usize, align: usize) -> Result<Slice> {
        let full = || Error::Misuse(format!("no {bytes} bytes left in region {index}"));
        self.regions
            .get(index)
            .and_then(|region| Slice::take(region, bytes, align))
            .ok_or_else(full)
    }

    /// The regions, in guest-physical order.
    pub fn regions(&self) -> Vec<MemoryRegion> {
        self.regions.iter().map(|region| region.describe()).collect()
    }

    /// Copies bytes out, by guest-physical address, across touching regions.
    pub fn read(&self, from: GuestAddress, target: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < target.len() {
            let (slice, room) = self.at(from.plus(done as u64))?;
            let n = room.min(target.len() - done);
            slice.read(0, &mut target[done..done + n]);
            done += n;
        }
        Ok(())
    }

    /// Copies bytes in, by guest-physical address, across touching regions.
    pub fn write(&self, to: GuestAddress, source: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < source.len() {
            let (slice, room) = self.at(to.plus(done as u64))?;
            let n = room.min(source.len() - done);
            slice.write(0, &source[done..done + n]);
            done += n;
        }
        Ok(())
    }

    /// The rest of the region that holds `address`.
    fn at(&self, address: GuestAddress) -> Result<(Slice, usize)> {
        let inside = |region: &&Arc<Region>| {
            address >= region.guest && address.0 - region.guest.0 < region.bytes as u64
        };
        let region = self
            .regions
            .iter()
            .find(inside)
            .ok_or_else(|| Error::Misuse(format!("no guest memory at {:#x}", address.0)))?;
        let start = (address.0 - region.guest.0) as usize;
        let room = region.bytes - start;
        Ok((Slice::of(region, start, room), room))
    }
}

impl Region {
    fn map(guest: GuestAddress, bytes: usize) -> Result<Self> {
        let bytes = bytes.max(1).next_multiple_of(REGION_ALIGN);
        let fd = rustix::fs::memfd_create("guest-memory", MemfdFlags::CLOEXEC)
            .map_err(|e| Error::io("create a memfd", e))?;
        rustix::fs::ftruncate(&fd, bytes as u64).map_err(|e| Error::io("size the memfd", e))?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
        let base =
            unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, &fd, 0) }
                .map_err(|e| Error::io("map the memfd", e))?;
        let base = NonNull::new(base.cast()).expect("mmap never returns address zero");
        Ok(Region { fd, base, bytes, guest, used: AtomicUsize::new(0) })
    }

    fn describe(&self) -> MemoryRegion {
        MemoryRegion {
            guest: self.guest,
            bytes: self.bytes as u64,
            user: self.base.as_ptr() as u64,
            fd: self.fd.as_raw_fd(),
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: base and bytes are what mmap returned, and no slice is left (they hold an Arc).
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
