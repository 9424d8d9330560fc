//! What was asked for before the daemon began, and cannot be a disk.

use flowstone_block::Error;

use super::{Disks, Failed, Table};
use crate::origin::Origin;
use crate::state::Subject;

/// See the module.
pub struct Refusal {
    /// It has a name where a disk of that name is known of, and not how it is to be.
    pub failed: Failed,
    pub origin: Origin,
}

impl Disks {
    /// Something is asked for that cannot be a disk.
    pub fn refuse(&self, error: &Error, origin: Origin) {
        self.table().refused.push(Refusal { failed: Failed::of(None, error), origin });
    }

    /// How a disk or a group was added is not known.
    pub fn dispute(&self, subject: &Subject, error: &Error) {
        let name = match subject {
            Subject::Disk(name) => Some(name.clone()),
            Subject::Group(_) => None,
        };
        let failed = Failed::of(name, error);
        self.table().refused.push(Refusal { failed, origin: Origin::Api });
    }
}

impl Table {
    /// What cannot be a disk, with a name if no disk has that.
    pub(super) fn refused(&self) -> impl Iterator<Item = Refusal> {
        self.refused.iter().map(|refusal| {
            let mut failed = refusal.failed.clone();
            let is_taken = |name: &String| self.visible().any(|(_, entry)| entry.name == *name);
            failed.name = failed.name.filter(|name| !is_taken(name));
            Refusal { failed, origin: refusal.origin }
        })
    }
}
