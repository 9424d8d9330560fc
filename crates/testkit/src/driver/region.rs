//! One region of guest memory: a memfd that is mapped here and can be mapped by a backend.

use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicUsize;

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

use crate::{Error, Result};

/// Regions are multiples of this, as QEMU's are.
const REGION_ALIGN: usize = 2 << 20;

/// A guest-physical address, as in descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestAddress(pub u64);

impl GuestAddress {
    /// Returns the address `bytes` further on, wrapping at 2^64 as hostile tests need.
    pub fn plus(self, bytes: u64) -> Self {
        GuestAddress(self.0.wrapping_add(bytes))
    }
}

/// One mapping. Its bytes are only exposed through slices, which keep it alive.
#[derive(Debug)]
pub struct Region {
    /// Its file.
    pub fd: OwnedFd,
    pub(super) base: NonNull<u8>,
    /// Length.
    pub bytes: usize,
    /// First guest-physical address.
    pub guest: GuestAddress,
    /// Bytes allocated so far.
    pub(super) used: AtomicUsize,
}

// SAFETY: the mapping is owned by the region and shared with another process anyway; all access
// goes through atomics or copies of bytes that the ring protocol gives to one side at a time.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps fresh, zeroed memory.
    pub(super) fn map(guest: GuestAddress, bytes: usize) -> Result<Self> {
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

    /// Returns the first address in this process, the "userspace address" of vhost-user.
    pub fn user_address(&self) -> u64 {
        self.base.as_ptr() as u64
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: base and bytes are what mmap returned, and no slice is left (they hold an Arc).
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
