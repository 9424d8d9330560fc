//! A disk in the daemon's memory. It is lost with the daemon.
//!
//! The memory is one anonymous mapping that takes no room before it is written. Queues copy into
//! and out of it without locks, like the sectors of a real disk: requests in flight to the same
//! sector at once may mix, and nothing else may.

use std::io;
use std::ptr;
use std::sync::Arc;

use flowstone_block::{
    Channel, Completion, Extent, Geometry, Layer, NextLook, Op, QueueContext, Request, SectorCount,
};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

const PAGE_BYTES: usize = 4096;

/// The disk in memory.
pub struct Mem {
    geometry: Geometry,
    store: Arc<Store>,
}

struct Store {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping is plain memory, accessed by raw copies only.
unsafe impl Send for Store {}
// SAFETY: as above; see the module's words on concurrent access.
unsafe impl Sync for Store {}

impl Mem {
    /// A zeroed disk of this size.
    pub fn new(capacity: SectorCount) -> io::Result<Self> {
        let bytes = usize::try_from(capacity.bytes()).map_err(io::Error::other)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, protection, flags)? };
        let store = Arc::new(Store { start: start.cast(), bytes });
        Ok(Self { geometry: Geometry::with_capacity(capacity), store })
    }
}

impl Store {
    fn at(&self, extent: Extent) -> *mut u8 {
        let end = extent.start_bytes() + extent.bytes();
        assert!(end <= self.bytes as u64, "{extent} is past the end of the disk");
        // SAFETY: in bounds, as just checked.
        unsafe { self.start.add(extent.start_bytes() as usize) }
    }

    fn transfer(&self, request: &Request, extent: Extent, copy: impl Fn(*mut u8, *mut u8, usize)) {
        let mut at = self.at(extent);
        for piece in &request.memory {
            copy(at, piece.address(), piece.bytes());
            // SAFETY: the pieces together are as long as the extent, which is in bounds.
            at = unsafe { at.add(piece.bytes()) };
        }
    }

    fn zero(&self, extent: Extent) {
        let start = self.at(extent) as usize;
        let end = start + extent.bytes() as usize;
        let first_page = start.next_multiple_of(PAGE_BYTES).min(end);
        let last_page = (end & !(PAGE_BYTES - 1)).max(first_page);
        for (from, to) in [(start, first_page), (last_page, end)] {
            // SAFETY: both lie within the extent, which is in bounds.
            unsafe { ptr::write_bytes(from as *mut u8, 0, to - from) };
        }
        if last_page > first_page {
            // SAFETY: whole pages of our own mapping; dropped pages read as zeroes.
            let dropped = unsafe {
                let pages = first_page as *mut std::ffi::c_void;
                madvise(pages, last_page - first_page, Advice::LinuxDontNeed)
            };
            dropped.expect("anonymous pages of our own can be dropped");
        }
    }

    fn execute(&self, request: &Request) {
        match request.op {
            // SAFETY: store and guest memory are both valid for the piece's length; two kinds of
            // memory never overlap.
            Op::Read(extent) => self.transfer(request, extent, |disk, guest, bytes| unsafe {
                ptr::copy_nonoverlapping(disk, guest, bytes);
            }),
            // SAFETY: as for reads.
            Op::Write(extent) => self.transfer(request, extent, |disk, guest, bytes| unsafe {
                ptr::copy_nonoverlapping(guest, disk, bytes);
            }),
            Op::Discard(extent) | Op::WriteZeroes { extent, .. } => self.zero(extent),
            Op::Flush => {}
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and no address into it is left.
        let _ = unsafe { munmap(self.start.cast(), self.bytes) };
    }
}

impl Layer for Mem {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn channel(&self, _context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        Ok(Box::new(MemChannel { store: Arc::clone(&self.store), done: Vec::new() }))
    }
}

struct MemChannel {
    store: Arc<Store>,
    done: Vec<Completion>,
}

impl Channel for MemChannel {
    fn submit(&mut self, request: Box<Request>) {
        self.store.execute(&request);
        self.done.push(Completion { request, outcome: Ok(()) });
    }

    fn kick(&mut self) {}

    fn reap(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.done);
    }

    fn next_look(&mut self) -> NextLook {
        NextLook::now_if(!self.done.is_empty())
    }
}
