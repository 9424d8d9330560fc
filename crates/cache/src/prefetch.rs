//! Prefetching of memory that will be read soon, so that several waits overlap.

/// Size of a line of the CPU's caches.
pub const LINE_BYTES: usize = 64;

/// Prefetches the cache line in which `it` begins.
#[inline(always)]
pub fn prefetch<T: ?Sized>(it: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint without visible effect, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(it.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = it;
}
