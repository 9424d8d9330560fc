//! Changes made at the source from here, concurrent with writers that open a file: a writer's look
//! at the file is the base of its copy, and is outdated if the file was changed since. The stamp
//! does not show that: it is not compared again before bytes are written there.

use std::collections::HashMap;
use std::sync::Mutex;

use flowstone_memory::mutated;

use crate::lock::lock;
use crate::stamp::Identity;

/// The files that are being changed or looked at.
#[derive(Default)]
pub struct AtSource {
    files: Mutex<HashMap<Identity, Work>>,
}

#[derive(Default)]
struct Work {
    /// Changes in flight.
    changing: u32,
    /// Writers that are opening it.
    looking: u32,
    /// Changes made while any of these was there.
    changes: u64,
}

/// A file is written at the source, and not here, until this is dropped.
pub struct Through<'a>(&'a AtSource, Identity);

/// A writer looks at a file, and opens it with what it has seen.
pub struct Looking<'a> {
    all: &'a AtSource,
    identity: Identity,
    /// Number of changes before the look.
    changes: u64,
}

impl AtSource {
    /// Registers a change of a file at the source, until the returned guard is dropped.
    pub fn writes_through(&self, identity: Identity) -> Through<'_> {
        lock(&self.files).entry(identity).or_default().changing += 1;
        Through(self, identity)
    }

    /// Registers a writer that is about to look at a file.
    pub fn looks(&self, identity: Identity) -> Looking<'_> {
        let mut files = lock(&self.files);
        let work = files.entry(identity).or_default();
        work.looking += 1;
        Looking { all: self, identity, changes: work.changes }
    }

    /// Counts a completed change of a file at the source.
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
    /// Returns whether the look is still valid: no change was made from here since, nor is in
    /// flight.
    pub fn holds(&self) -> bool {
        lock(&self.all.files).get(&self.identity).is_some_and(|work| {
            let is_old = work.changes != self.changes;
            let is_old = mutated("guest.write-back.opens-by-an-old-look", is_old, false);
            work.changing == 0 && !is_old
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
