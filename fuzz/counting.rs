//! Counts the memory that a fuzz target holds, so that a run that would make the daemon grow fails
//! like one that panics.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn grow(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Relaxed) + bytes;
    PEAK.fetch_max(live, Relaxed);
}

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: passed on to the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: passed on to the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: passed on to the caller.
        unsafe { System.dealloc(start, layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        grow(bytes);
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: passed on to the caller.
        unsafe { System.realloc(start, layout, bytes) }
    }
}

/// What has been allocated since it was started.
pub struct Watch(usize);

impl Watch {
    pub fn start() -> Self {
        let live = LIVE.load(Relaxed);
        PEAK.store(live, Relaxed);
        Self(live)
    }

    /// The most that was held at any time.
    pub fn peak_bytes(&self) -> usize {
        PEAK.load(Relaxed).saturating_sub(self.0)
    }

    /// What is held now.
    pub fn live_bytes(&self) -> usize {
        LIVE.load(Relaxed).saturating_sub(self.0)
    }
}
