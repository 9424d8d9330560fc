//! Memory that will be read soon is asked for, so that several waits for it become one.

/// What the CPU's caches hold or do not hold as a whole.
pub const LINE_BYTES: usize = 64;

/// Brings the line of the CPU's caches that `it` begins in near.
#[inline(always)]
pub fn prefetch<T: ?Sized>(it: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint: it reads nothing that anybody sees, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(it.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = it;
}
