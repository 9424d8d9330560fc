//! Outcomes of requests, and how they are undone if the reply comes too late.

use std::ffi::OsString;
use std::sync::Arc;

use rustix::fs::StatVfs;

use crate::files::Files;
use crate::files::folders::Entries;
use crate::files::locks::Range;
use crate::files::names::Found;
use crate::files::open::Opened;
use crate::nodes::Node;
use crate::requests::Outcome;
use crate::stamp::Attributes;

/// Outcomes that leave nothing to undo.
macro_rules! leave_nothing {
    ($($kind:ty),* $(,)?) => {
        $(impl Outcome for $kind {
            fn undo(self, _: &Files) {}
        })*
    };
}

leave_nothing!(
    (),
    usize,
    u64,
    Attributes,
    Vec<u8>,
    (Vec<u8>, usize),
    OsString,
    StatVfs,
    Arc<Entries>,
    (Range, u32),
    Locked,
);

/// The result of trying a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locked {
    /// The lock is taken.
    Done,
    /// Others hold it; the caller has to wait.
    Waits,
}

/// Entries of a folder that are being told to the kernel.
#[derive(Default)]
pub struct Told(pub Vec<Arc<Node>>);

/// An opened folder, and whether the kernel's cached names are valid.
pub struct OpenedFolder(pub u64, pub bool);

impl Outcome for Found {
    fn undo(self, files: &Files) {
        files.untell(&self.0);
    }
}

impl Outcome for Opened {
    fn is_from_source(&self) -> bool {
        !self.is_unchecked
    }

    fn undo(self, files: &Files) {
        files.release(self.number);
    }
}

impl Outcome for (Arc<Node>, Attributes, Opened) {
    fn undo(self, files: &Files) {
        self.2.undo(files);
        files.untell(&self.0);
    }
}

impl Outcome for OpenedFolder {
    fn undo(self, files: &Files) {
        files.close_folder(self.0);
    }
}

impl Outcome for Told {
    fn undo(self, files: &Files) {
        self.0.iter().for_each(|node| files.untell(node));
    }
}
