//! Placement of a guest's memory on the host's NUMA nodes.
//!
//! A sample of evenly spread pages is queried. Pages that do not exist are skipped, since touching
//! one would allocate it, on our node and at the guest's expense.

use std::collections::BTreeMap;
use std::ptr;

use super::GuestMemory;

/// Pages in a sample.
const SAMPLE: u64 = 256;
/// The smallest page size: if pages are larger, several addresses of a sample are in one page.
const PAGE_BYTES: u64 = 4096;

/// Number of sampled pages by NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePages(pub BTreeMap<u32, u32>);

impl NodePages {
    /// Returns the node of more than half of the pages, if there is one.
    pub fn home(&self) -> Option<u32> {
        let all: u32 = self.0.values().sum();
        self.0.iter().find(|(_, pages)| **pages > all / 2).map(|(node, _)| *node)
    }
}

impl GuestMemory {
    /// Asks the kernel for the nodes of a sample of the guest's pages. Empty on a kernel before
    /// 5.14.
    pub fn nodes(&self) -> NodePages {
        let stride = (self.bytes() / SAMPLE).next_multiple_of(PAGE_BYTES).max(PAGE_BYTES);
        let mut pages: Vec<*const libc::c_void> = Vec::new();
        for region in &self.regions {
            let places =
                (0..region.addresses.bytes / PAGE_BYTES * PAGE_BYTES).step_by(stride as usize);
            let exists = |page: &*mut u8| is_resident(*page) && populate(*page);
            pages.extend(
                places.map(|at| region.at(at)).filter(exists).map(|page| page.cast_const().cast()),
            );
        }
        let mut found = NodePages::default();
        for node in nodes_of(&pages) {
            *found.0.entry(node).or_default() += 1;
        }
        found
    }
}

/// Returns whether a page of the mapping is resident. It may not be in our page table yet.
fn is_resident(page: *mut u8) -> bool {
    let mut resident = 0;
    // SAFETY: the page lies in a mapping of ours; the kernel writes one byte.
    let done = unsafe { libc::mincore(page.cast(), PAGE_BYTES as usize, &raw mut resident) };
    done == 0 && resident & 1 == 1
}

/// Puts a page into our page table without touching it, which would fault if its file has been
/// truncated.
fn populate(page: *mut u8) -> bool {
    // SAFETY: the page lies in a mapping of ours, and its contents do not change.
    unsafe { libc::madvise(page.cast(), PAGE_BYTES as usize, libc::MADV_POPULATE_READ) == 0 }
}

/// Returns the nodes of those pages that the kernel has a node for.
fn nodes_of(pages: &[*const libc::c_void]) -> impl Iterator<Item = u32> {
    let mut status = vec![-1i32; pages.len()];
    let (count, none) = (pages.len() as libc::c_ulong, ptr::null::<i32>());
    // SAFETY: without a list of nodes nothing is moved; both lists have `count` entries, of which
    // the kernel writes the second.
    let asked = unsafe {
        let (process, flags) = (0, 0);
        libc::syscall(
            libc::SYS_move_pages,
            process,
            count,
            pages.as_ptr(),
            none,
            status.as_mut_ptr(),
            flags,
        )
    };
    if asked != 0 {
        status.clear();
    }
    status.into_iter().filter_map(|node| u32::try_from(node).ok())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::super::tests::{memfd, region};
    use super::*;

    #[test]
    fn pages_that_the_guest_has_touched_are_found_and_no_others_are_made() {
        const BYTES: u64 = 4 << 20;
        let file = memfd(BYTES);
        file.write_all_at(&[1; 1 << 20], 1 << 20).unwrap();
        let copy = file.try_clone().unwrap();
        let memory = GuestMemory::default().with_region(region(0, 0, BYTES), copy, 0).unwrap();
        let nodes = memory.nodes();
        let pages: u32 = nodes.0.values().sum();
        // A quarter of the sample, wherever it begins.
        assert!((60..=68).contains(&pages), "{nodes:?}");
        assert_eq!(nodes.home().is_some(), nodes.0.len() == 1);
        assert_eq!(file.metadata().unwrap().blocks() * 512, 1 << 20, "a page was made");
    }

    #[test]
    fn a_home_has_more_than_half() {
        let home = |pages: &[(u32, u32)]| NodePages(pages.iter().copied().collect()).home();
        assert_eq!(home(&[]), None);
        assert_eq!(home(&[(1, 3)]), Some(1));
        assert_eq!(home(&[(0, 2), (1, 2)]), None);
        assert_eq!(home(&[(0, 2), (3, 5)]), Some(3));
    }
}
