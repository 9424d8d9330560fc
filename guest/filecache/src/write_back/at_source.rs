//! Changes that are made at the source from here, beside writers that open a file: what such a one
//! has seen of the file is the base of its copy, and is old when the file was changed since. The
//! stamp does not show that: it is not compared again before bytes are brought there.

use std::collections::HashMap;
use std::sync::Mutex;

use flowstone_memory::mutant;

use crate::lock::lock;
use crate::stamp::Identity;

/// The files that are being changed or looked at.
#[derive(Default)]
pub struct AtSource {
    files: Mutex<HashMap<Identity, Work>>,
}

#[derive(Default)]
struct Work {
    /// Changes on their way.
    changing: u32,
    /// Writers that open it.
    looking: u32,
    /// Changes that were made while any of these was there.
    changes: u64,
}

/// A file is written to the source, and not here, until this is dropped.
pub struct Through<'a>(&'a AtSource, Identity);

/// A writer looks at a file, and opens it by what it has seen.
pub struct Looking<'a> {
    all: &'a AtSource,
    identity: Identity,
    /// Changes that it sees.
    changes: u64,
}

impl AtSource {
    /// A file is changed at the source until what is returned is dropped.
    pub fn writes_through(&self, identity: Identity) -> Through<'_> {
        lock(&self.files).entry(identity).or_default().changing += 1;
        Through(self, identity)
    }

    /// A writer is about to look at a file.
    pub fn looks(&self, identity: Identity) -> Looking<'_> {
        let mut files = lock(&self.files);
        let work = files.entry(identity).or_default();
        work.looking += 1;
        Looking { all: self, identity, changes: work.changes }
    }

    /// A file was changed at the source.
    pub fn changed(&self, identity: Identity) {
        if let Some(work) = lock(&self.files).get_mut(&identity) {
            work.changes += 1;
        }
    }

    fn end(&self, identity: Identity, end: impl FnOnce(&mut Work)) {
        let mut files = lock(&self.files);
        let Some(work) = files.get_mut(&identity) else { return };
        end(work);
        if work.changing == 0 && work.looking == 0 {
            files.remove(&identity);
        }
    }
}

impl Looking<'_> {
    /// Returns whether the file is what was seen: nothing was changed from here since, nor is on
    /// its way.
    pub fn holds(&self) -> bool {
        lock(&self.all.files).get(&self.identity).is_some_and(|work| {
            let is_old = work.changes != self.changes;
            work.changing == 0 && (!is_old || mutant("guest.write-back.opens-by-an-old-look"))
        })
    }
}

impl Drop for Through<'_> {
    fn drop(&mut self) {
        self.0.end(self.1, |work| {
            work.changing -= 1;
            work.changes += 1;
        });
    }
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.all.end(self.identity, |work| work.looking -= 1);
    }
}
