//! Inspection of the host's page cache.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr;

const PAGE_BYTES: usize = 4096;

/// Returns, for each page of a file, whether it is in the page cache.
///
/// # Panics
/// If the file cannot be opened, or is empty.
pub fn resident(path: &Path) -> Vec<bool> {
    let file = File::open(path).expect("the file");
    let bytes = file.metadata().expect("its size").len() as usize;
    let mut pages = vec![0u8; bytes.div_ceil(PAGE_BYTES)];
    // SAFETY: a new mapping, which is only asked about and then taken away; there is a byte for
    // each page.
    unsafe {
        let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
        let map = libc::mmap(ptr::null_mut(), bytes, protection, flags, file.as_raw_fd(), 0);
        assert_ne!(map, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        assert_eq!(libc::mincore(map, bytes, pages.as_mut_ptr()), 0);
        libc::munmap(map, bytes);
    }
    pages.into_iter().map(|page| page & 1 != 0).collect()
}
