//! What the rest has of the kernel: its hold on a file, and a way to tell it things.

use crate::library::{BackingId, INodeNo, Notifier};

/// Most bytes of a write, and what a read ahead may ask for. Each thread keeps a buffer.
pub const REQUEST_MAX: u32 = 1 << 20;

/// The kernel's hold on a file that it opens itself.
pub struct Backing(pub(crate) BackingId);

/// The way to tell the kernel things.
pub struct Kernel(pub(crate) Notifier);

impl Kernel {
    /// The attributes that it keeps of a node are too old. (Its pages are not touched: that could
    /// wait for a request that waits for this one.)
    pub fn take_back_attributes(&self, id: u64) {
        // A node that it does not know has no attributes there.
        let _ = self.0.inval_inode(INodeNo(id), -1, 0);
    }
}
