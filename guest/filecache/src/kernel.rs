//! The interface to the kernel: backing files and notifications.

use crate::library::{BackingId, INodeNo, Notifier};

/// Largest write, and largest read-ahead. Each thread has a buffer of this size.
pub const REQUEST_MAX: u32 = 1 << 20;

/// The kernel's registration of a backing file.
pub struct Backing(pub(crate) BackingId);

/// The channel for notifications to the kernel.
pub struct Kernel(pub(crate) Notifier);

impl Kernel {
    /// Invalidates the attributes that it caches of a node. (Pages are not invalidated: that could
    /// wait for a request that waits for this one.)
    pub fn take_back_attributes(&self, id: u64) {
        // A node that the kernel does not know has no cached attributes.
        let _ = self.0.inval_inode(INodeNo(id), -1, 0);
    }
}
