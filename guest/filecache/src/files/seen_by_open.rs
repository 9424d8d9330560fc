//! Attributes of a file that is open as its copy, as of the open: a program that opens a file
//! usually asks for them next (`fstat`), and the kernel asks us each time, since a passthrough read
//! leaves the access time unknown.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flowstone_memory::mutated;

use crate::files::Files;
use crate::stamp::Attributes;

/// Counts possible changes of attributes: by operations through this mount, or observed at the
/// source. A look that began before the last change is invalid.
#[derive(Default)]
pub struct Changes(AtomicU64);

impl Changes {
    /// Returns the count so far.
    pub fn so_far(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Counts a change. To be called after it is done, and before it is answered.
    pub fn one_more(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

impl Files {
    /// Returns attributes that need no call to the source, and how long they may be cached: no
    /// longer than `--window` after the look.
    pub fn seen_by_open(&self, id: u64) -> Option<(Attributes, Duration)> {
        let node = self.nodes.get(id).ok()?;
        // A file that the kernel has open as a copy is not written to.
        let copy = self.bindings.copy_in_kernel(&node)?;
        let look = copy.last_look()?;
        let is_valid = look.changes == Some(self.changes.so_far());
        let is_valid = mutated("guest.attributes.shows-what-was-before-a-change", is_valid, true);
        let left = self.window.checked_sub(look.when.elapsed())?;
        (is_valid && copy.is_current() && !left.is_zero()).then_some((look.seen, left))
    }
}
