//! What was asked for before the daemon began, and cannot be a disk.

use flowstone_block::Error;

use super::{Disks, Failed};
use crate::origin::Origin;

/// See the module.
pub struct Refusal {
    pub failed: Failed,
    pub origin: Origin,
}

impl Disks {
    /// Something is asked for that cannot be a disk.
    pub fn refuse(&self, error: &Error, origin: Origin) {
        self.table().refused.push(Refusal { failed: Failed::of(None, error), origin });
    }
}
