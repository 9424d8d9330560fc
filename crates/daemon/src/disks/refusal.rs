//! Disks requested before the daemon started that cannot exist.

use flowstone_block::{Error, lock};
use flowstone_control::Origin;

use super::{Disks, Failed, Table};

/// A requested disk that cannot exist.
pub struct Refusal {
    /// Named if a disk of that name is known but its settings are not.
    pub failed: Failed,
    pub origin: Origin,
}

impl Disks {
    /// Records a requested disk that cannot exist, with its `name` if only its settings are not
    /// known.
    pub fn refuse(&self, name: Option<String>, error: &Error, origin: Origin) {
        lock(&self.table).refused.push(Refusal { failed: Failed::of(name, error), origin });
    }
}

impl Table {
    /// Returns the refusals; a name that an existing disk has is left out.
    pub(super) fn refused(&self) -> impl Iterator<Item = Refusal> {
        self.refused.iter().map(|refusal| {
            let mut failed = refusal.failed.clone();
            let is_taken = |name: &String| self.visible().any(|(_, entry)| entry.name == *name);
            failed.name = failed.name.filter(|name| !is_taken(name));
            Refusal { failed, origin: refusal.origin }
        })
    }
}
