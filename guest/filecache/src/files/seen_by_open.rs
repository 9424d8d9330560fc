//! Attributes of a file that is open as its copy, as the open has seen them: a program that opens a
//! file asks for them next (`fstat`), and the kernel asks us each time, since a read that passes
//! through leaves the time of access unknown.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flowstone_memory::mutant;

use crate::files::Files;
use crate::stamp::Attributes;

/// How often attributes may have changed: by what was done through this mount, or at the source as
/// far as it was seen. A look that began before the last change says nothing.
#[derive(Default)]
pub struct Changes(AtomicU64);

impl Changes {
    /// So far.
    pub fn so_far(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// One more. To be counted when it is done, and before it is answered.
    pub fn one_more(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

impl Files {
    /// Attributes that need no question to the source, and how long they may be shown: no longer
    /// than `--window` after the look.
    pub fn seen_by_open(&self, id: u64) -> Option<(Attributes, Duration)> {
        let node = self.nodes.get(id).ok()?;
        // Nothing is written to a file that the kernel has open as a copy.
        let copy = self.bindings.copy_in_kernel(&node)?;
        let look = copy.last_look()?;
        let is_valid = look.changes == Some(self.changes.so_far())
            || mutant("guest.attributes.shows-what-was-before-a-change");
        let left = self.window.checked_sub(look.when.elapsed())?;
        (is_valid && copy.is_current() && !left.is_zero()).then_some((look.seen, left))
    }
}
