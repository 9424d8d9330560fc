//! Guest memory: memfd-backed regions that a backend can map, and slices of them.
//!
//! Guest-physical addresses are unlike the mapping's own addresses, so that a backend which mixes
//! the two up fails at once. Memory is handed out by bump allocation and never taken back; it is
//! unmapped when the last slice is gone. All access to shared bytes goes through this file, and so
//! does all `unsafe` of the driver side. It knows nothing of rings.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

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

#[derive(Debug)]
struct Region {
    fd: OwnedFd,
    base: NonNull<u8>,
    bytes: usize,
    guest: GuestAddress,
    used: AtomicUsize,
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

/// A piece of guest memory. Clones name the same bytes.
#[derive(Clone, Debug)]
pub struct Slice {
    region: Arc<Region>,
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a slice is a pointer into a region that is itself Send and Sync and is kept alive.
unsafe impl Send for Slice {}
// SAFETY: as above.
unsafe impl Sync for Slice {}

impl Slice {
    fn take(region: &Arc<Region>, bytes: usize, align: usize) -> Option<Self> {
        let mut start = 0;
        let grow = |used: usize| {
            start = used.next_multiple_of(align.max(1));
            start.checked_add(bytes).filter(|&end| end <= region.bytes)
        };
        region.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grow).ok()?;
        Some(Self::of(region, start, bytes))
    }

    fn of(region: &Arc<Region>, start: usize, bytes: usize) -> Self {
        assert!(start + bytes <= region.bytes, "slice outside of its region");
        // SAFETY: start is inside the mapping, as just checked.
        let base = unsafe { region.base.add(start) };
        Slice { region: Arc::clone(region), base, bytes }
    }

    /// Bytes `start..start + bytes` of this slice.
    pub fn part(&self, start: usize, bytes: usize) -> Slice {
        let inside = start.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(inside, "part outside of its slice");
        let offset = self.base.as_ptr() as usize - self.region.base.as_ptr() as usize;
        Self::of(&self.region, offset + start, bytes)
    }

    /// Guest-physical address of the first byte.
    pub fn address(&self) -> GuestAddress {
        let offset = self.base.as_ptr() as u64 - self.region.base.as_ptr() as u64;
        self.region.guest.plus(offset)
    }

    /// Address in this process, which is the "user address" of vhost-user ring messages.
    pub fn user_address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// True for a slice of no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Copies bytes out from `offset`.
    pub fn read(&self, offset: usize, target: &mut [u8]) {
        let from = self.pointer(offset, target.len());
        // SAFETY: the range was checked, and target is memory of this process.
        unsafe { ptr::copy_nonoverlapping(from, target.as_mut_ptr(), target.len()) };
    }

    /// Copies bytes in at `offset`.
    pub fn write(&self, offset: usize, source: &[u8]) {
        let to = self.pointer(offset, source.len());
        // SAFETY: the range was checked, and source is memory of this process.
        unsafe { ptr::copy_nonoverlapping(source.as_ptr(), to, source.len()) };
    }

    /// Sets every byte.
    pub fn fill(&self, byte: u8) {
        // SAFETY: base and bytes describe a part of a live mapping.
        unsafe { ptr::write_bytes(self.base.as_ptr(), byte, self.bytes) };
    }

    /// The byte at `offset` as an atomic cell.
    #[inline]
    pub fn cell8(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: inside the mapping, which lives as long as self; any byte is a valid u8.
        unsafe { AtomicU8::from_ptr(self.pointer(offset, 1)) }
    }

    /// The 16-bit cell at `offset`, which must be aligned.
    #[inline]
    pub fn cell16(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: inside the mapping and aligned, both checked; lives as long as self.
        unsafe { AtomicU16::from_ptr(self.aligned(offset)) }
    }

    /// The 32-bit cell at `offset`, which must be aligned.
    #[inline]
    pub fn cell32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: inside the mapping and aligned, both checked; lives as long as self.
        unsafe { AtomicU32::from_ptr(self.aligned(offset)) }
    }

    /// The 64-bit cell at `offset`, which must be aligned.
    #[inline]
    pub fn cell64(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: inside the mapping and aligned, both checked; lives as long as self.
        unsafe { AtomicU64::from_ptr(self.aligned(offset)) }
    }

    #[inline]
    fn pointer(&self, offset: usize, bytes: usize) -> *mut u8 {
        assert!(offset <= self.bytes && bytes <= self.bytes - offset, "access outside of a slice");
        // SAFETY: offset is inside the slice, as just checked.
        unsafe { self.base.as_ptr().add(offset) }
    }

    #[inline]
    fn aligned<T>(&self, offset: usize) -> *mut T {
        let cell = self.pointer(offset, size_of::<T>()).cast::<T>();
        assert!(cell.is_aligned(), "unaligned cell");
        cell
    }
}
