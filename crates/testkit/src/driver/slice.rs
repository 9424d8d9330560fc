//! Access to guest memory, by copies and by atomic cells.
//!
//! Every access is bounds-checked. A backend may write to the same bytes at any time, so fields
//! with concurrent access (ring fields, status bytes) are accessed through the cells; payloads are
//! copied while the ring protocol gives them to this side.

use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::region::{GuestAddress, Region};

/// One buffer of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Guest-physical address.
    pub addr: GuestAddress,
    /// Length in bytes.
    pub len: u32,
    /// The device writes to it.
    pub writable: bool,
}

/// A piece of guest memory. Clones are the same bytes.
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
    /// Allocates the next `bytes` of a region, if it has room.
    pub(super) fn take(region: &Arc<Region>, bytes: usize, align: usize) -> Option<Self> {
        let mut start = 0;
        let grow = |used: usize| {
            start = used.next_multiple_of(align.max(1));
            start.checked_add(bytes).filter(|&end| end <= region.bytes)
        };
        region.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grow).ok()?;
        Some(Self::of(region, start, bytes))
    }

    /// Makes a slice of any bytes of a region, allocated or not.
    pub(super) fn of(region: &Arc<Region>, start: usize, bytes: usize) -> Self {
        assert!(start + bytes <= region.bytes, "slice outside of its region");
        // SAFETY: start is inside the mapping, as just checked.
        let base = unsafe { region.base.add(start) };
        Slice { region: Arc::clone(region), base, bytes }
    }

    /// Returns the bytes `start..start + bytes` of this slice.
    pub fn part(&self, start: usize, bytes: usize) -> Slice {
        let inside = start.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(inside, "part outside of its slice");
        let offset = self.base.as_ptr() as usize - self.region.base.as_ptr() as usize;
        Self::of(&self.region, offset + start, bytes)
    }

    /// Returns the guest-physical address of the first byte.
    pub fn address(&self) -> GuestAddress {
        let offset = self.base.as_ptr() as u64 - self.region.base.as_ptr() as u64;
        self.region.guest.plus(offset)
    }

    /// Returns the bytes as a descriptor.
    pub fn segment(&self, writable: bool) -> Segment {
        Segment { addr: self.address(), len: self.bytes as u32, writable }
    }

    /// Returns the bytes as descriptors of at most `longest` bytes.
    pub fn segments(&self, longest: usize, writable: bool) -> impl Iterator<Item = Segment> {
        let longest = longest.max(1);
        let part = move |at| self.part(at, longest.min(self.bytes - at)).segment(writable);
        (0..self.bytes).step_by(longest).map(part)
    }

    /// Returns the address in this process, which is the "user address" of vhost-user ring
    /// messages.
    pub fn user_address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Returns whether the length is 0.
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

    /// Returns the byte at `offset` as an atomic cell.
    #[inline]
    pub fn cell8(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: inside the mapping, which lives as long as self; any byte is a valid u8.
        unsafe { AtomicU8::from_ptr(self.pointer(offset, 1)) }
    }

    /// Returns the 16-bit cell at `offset`, which must be aligned.
    #[inline]
    pub fn cell16(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: inside the mapping and aligned, both checked; lives as long as self.
        unsafe { AtomicU16::from_ptr(self.aligned(offset)) }
    }

    /// Returns the 32-bit cell at `offset`, which must be aligned.
    #[inline]
    pub fn cell32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: inside the mapping and aligned, both checked; lives as long as self.
        unsafe { AtomicU32::from_ptr(self.aligned(offset)) }
    }

    /// Returns the 64-bit cell at `offset`, which must be aligned.
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
