//! A large range of anonymous memory, committed on first use and returnable to the host.

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::ptr;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Unit of commitment and return.
const PAGE_BYTES: usize = 4096;

/// Owned pages, zero until written. Accessed from any thread, by raw copies or through buffers that
/// share no byte: the owner is responsible for synchronisation.
pub struct Pages {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping is plain memory; who accesses which byte is up to the owner.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps `bytes` zeroed bytes.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes.max(1), protection, flags)? };
        Ok(Self { start: start.cast(), bytes })
    }

    /// Returns the length in bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the address of the byte at `offset`; `bytes` bytes from there are accessible while
    /// the pages live.
    ///
    /// # Panics
    /// If the range is not within the pages.
    pub fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(fits, "bytes {offset}+{bytes} are past the end of {} bytes", self.bytes);
        // SAFETY: in bounds, as just checked.
        unsafe { self.start.add(offset) }
    }

    /// Disables transparent huge pages, so that each page is committed and returned by itself.
    pub fn refuse_huge_pages(&self) {
        // SAFETY: advice on our own mapping, which changes no content. A kernel without huge pages
        // refuses it.
        let _ = unsafe { madvise(self.start.cast(), self.bytes, Advice::LinuxNoHugepage) };
    }

    /// Asks for transparent huge pages.
    pub fn want_huge_pages(&self) {
        // SAFETY: advice on our own mapping, which changes no content. A kernel without huge pages
        // refuses it.
        let _ = unsafe { madvise(self.start.cast(), self.bytes, Advice::LinuxHugepage) };
    }

    /// Zeroes a range. Whole pages in it are returned to the host.
    pub fn zero(&self, range: Range<usize>) {
        let start = self.at(range.start, range.len()) as usize;
        let end = start + range.len();
        let first_page = start.next_multiple_of(PAGE_BYTES).min(end);
        let last_page = (end & !(PAGE_BYTES - 1)).max(first_page);
        for (from, to) in [(start, first_page), (last_page, end)] {
            // SAFETY: both lie within the range, which is in bounds.
            unsafe { ptr::write_bytes(from as *mut u8, 0, to - from) };
        }
        if last_page > first_page {
            // SAFETY: whole pages of our own mapping; dropped pages read as zeroes.
            let dropped = unsafe {
                let pages = first_page as *mut c_void;
                madvise(pages, last_page - first_page, Advice::LinuxDontNeed)
            };
            dropped.expect("anonymous pages of our own can be dropped");
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and no address into it is left.
        let _ = unsafe { munmap(self.start.cast(), self.bytes.max(1)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_zero_where_they_are_made_so() {
        let pages = Pages::new(5 * PAGE_BYTES).unwrap();
        // SAFETY: within the pages.
        unsafe { ptr::write_bytes(pages.at(0, pages.bytes()), 7, pages.bytes()) };
        pages.zero(100..4 * PAGE_BYTES + 1);
        pages.zero(0..0);
        // SAFETY: within the pages, which nobody changes.
        let all = unsafe { std::slice::from_raw_parts(pages.at(0, pages.bytes()), pages.bytes()) };
        let zeroes = all.iter().filter(|byte| **byte == 0).count();
        assert_eq!((all[99], all[100], all[4 * PAGE_BYTES + 1]), (7, 0, 7));
        assert_eq!(zeroes, 4 * PAGE_BYTES + 1 - 100);
    }

    #[test]
    #[should_panic(expected = "past the end")]
    fn what_is_past_the_end_is_no_page() {
        Pages::new(PAGE_BYTES).unwrap().at(1, PAGE_BYTES);
    }
}
