//! Reasons for refusing an image whose daemon was killed.

use std::io;
use std::path::PathBuf;

use flowstone_block::{Error, ErrorKind, mutated};

/// The redo file of a killed daemon cannot be used.
#[derive(Debug)]
pub struct Lost {
    /// Path of the file, or its expected path.
    pub redo: PathBuf,
    pub why: Why,
}

#[derive(Debug)]
pub enum Why {
    Missing,
    /// It exists, but belongs to another session or another file.
    Other,
    /// It belongs to this session, but whether the host has stayed up since is uncertain.
    Unsure,
    /// It belongs to this session, but its changes are in the memory of the host that served the
    /// image, where they are not found.
    Away,
    /// A version without session numbers has written it.
    OldKind,
    /// It exists, but cannot be read.
    Unreadable(io::Error),
    /// Other users may have written it.
    Foreign(&'static str),
    /// It exists, but no version writes such a file.
    Strange,
}

impl From<io::Error> for Why {
    fn from(error: io::Error) -> Self {
        Self::Unreadable(error)
    }
}

impl Lost {
    /// Returns whether a repair may go on without the redo file: as far as is known, it will not be
    /// found again.
    pub fn may_be_given_up(&self) -> bool {
        let is_sure = mutated("qcow2.repair.gives-up-what-is-not-sure", false, true);
        match self.why {
            Why::Missing | Why::Other => true,
            Why::Unsure | Why::Away => is_sure,
            Why::OldKind | Why::Unreadable(_) | Why::Foreign(_) | Why::Strange => false,
        }
    }

    fn kind(&self) -> ErrorKind {
        match self.why {
            Why::Unreadable(_) | Why::Foreign(_) => ErrorKind::Host,
            Why::OldKind => ErrorKind::Unsupported,
            Why::Missing | Why::Other | Why::Unsure | Why::Away | Why::Strange => {
                ErrorKind::Damaged
            }
        }
    }

    /// Converts it to an error about the image `name`.
    pub fn explain(&self, name: &str) -> Error {
        let redo = self.redo.display();
        let (what, advice) = match &self.why {
            Why::Missing => (
                format!("{redo} is not there"),
                "bring that file back and serve the image, or go on without with `flowstone check --repair`",
            ),
            Why::Other => (
                format!("{redo} is not of its last session, or of another copy of the image"),
                "bring the right file back, or go on without with `flowstone check --repair`",
            ),
            Why::Unsure => (
                format!(
                    "{redo} has them, and is of another host, or of another boot of this one \
                     which may not have ended"
                ),
                "serve the image where it was served, or, if that host has been restarted since, \
                 remove that file and run `flowstone check --repair`",
            ),
            Why::Away => (
                format!(
                    "{redo} says that they are in the memory of its host (or container), and they \
                     are not there"
                ),
                "serve the image where it was served, or, if that has been restarted since, remove \
                 that file and run `flowstone check --repair`",
            ),
            Why::OldKind => (
                format!("an earlier version has written {redo}"),
                "serve the image once with that version, or remove the file and run `flowstone check --repair`",
            ),
            Why::Unreadable(error) => (
                format!("cannot read {redo}: {error}"),
                "make it readable for this user and try again",
            ),
            Why::Foreign(flaw) => (
                format!("{redo} is not to be trusted: {flaw}"),
                "give it back to the user that serves the image (chown, chmod 600), or remove it and run \
                 `flowstone check --repair`",
            ),
            Why::Strange => (
                format!("{redo} is damaged"),
                "restore it, or remove it and run `flowstone check --repair`",
            ),
        };
        let killed = "its daemon was killed, and writes that it had completed may be missing";
        Error::new(self.kind(), name, format!("{killed}: {what}"), advice)
    }
}
