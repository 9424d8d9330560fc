//! The file that a session leaves in the memory of its host until it is closed cleanly: a file on
//! tmpfs, which is lost at a power cut, but not at a kill.
//!
//! If it exists, the host has stayed up, whatever its clock and boot number say. If it is missing,
//! that proves nothing: a restarted container may have another tmpfs. It holds the same random
//! number as the redo file, drawn by the daemon that wrote both: another host that took over the
//! image may have left a file of its own.
//!
//! The image's file system may depend on a server (FUSE, NFS). A mapping of a file there blocks the
//! thread that touches it while the server does not answer, and may lose pages. In that case the
//! changes themselves are in this file, and the one beside the image says so ([`MAGIC_AWAY`]).

use std::borrow::Cow;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use flowstone_block::mutated;

use super::super::mark::Mark;
use super::folder::{Folder, Named, flaw_of, is_free, lock, name_of, read_words};
use super::layout::*;
use super::{Place, reserve};

/// Folders for it: of daemons that run as root, and of others. Files in the first one are not
/// removed when a service is stopped.
pub static FOLDERS: [Cow<'static, str>; 2] =
    [Cow::Borrowed("/run/flowstone-sessions"), Cow::Borrowed("/dev/shm")];

/// The file that a session has left.
#[derive(Debug)]
pub struct Live {
    pub named: Named,
    pub bytes: Vec<u8>,
}

impl Live {
    /// Finds the file of the session that wrote this number into its redo file.
    pub fn find(place: Place<'_>, mark: Mark, number: u64, trusted: u32) -> Option<Self> {
        let found = |folder: &Cow<str>| {
            let folder = Folder::at(Path::new(&**folder).to_owned()).ok()?;
            let named = Named::open(folder, name_of(mark)).ok()?;
            let metadata = named.file.metadata().ok()?;
            let bytes = read_words(&named.file, &metadata).ok()?;
            let is_sound = named.folder.is_in_memory()
                && flaw_of(&metadata, Some(trusted)).is_none()
                && word_of(&bytes, 0) == MAGIC;
            let is_its = word_of(&bytes, LIVE_WORD) == number;
            let is_its = mutated("qcow2.redo.believes-what-another-daemon-left", is_its, true);
            (is_sound && is_its).then_some(Self { named, bytes })
        };
        let is_known = mutated("qcow2.redo.knows-nothing-of-the-memory", number != 0, false);
        if !is_known {
            return None;
        }
        place.folders.iter().find_map(found)
    }
}

/// Creates the file for a session, with room for all changes if it `is_away`.
pub fn create(place: Place<'_>, mark: Mark, is_away: bool) -> io::Result<Named> {
    let mut failed = io::Error::other("no folder in the memory of the host");
    for folder in place.folders {
        match create_in(Path::new(&**folder), mark, is_away) {
            Ok(made) => return Ok(made),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn create_in(path: &Path, mark: Mark, is_away: bool) -> io::Result<Named> {
    let folder = open_or_make(path)?;
    let name = name_of(mark);
    // A file of this session that does not belong to its redo file.
    if let Ok(mut old) = Named::open(open_or_make(path)?, name.clone()) {
        let is_ours = old.file.metadata().is_ok_and(|it| flaw_of(&it, None).is_none());
        if is_ours && is_free(&old.file) {
            old.remove()?;
        }
    }
    let made = Named::create(folder, name)?;
    lock(&made.file)?;
    if is_away {
        reserve(&made.file)?;
    }
    Ok(made)
}

fn open_or_make(path: &Path) -> io::Result<Folder> {
    let is_missing = || path.symlink_metadata().is_err();
    let lies_in_memory = |it: &Path| Folder::at(it.to_owned()).is_ok_and(|it| it.is_in_memory());
    if is_missing() && path.parent().is_some_and(lies_in_memory) {
        // Another daemon may have created it first.
        let _ = DirBuilder::new().mode(0o755).create(path);
    }
    let folder = Folder::at(path.to_owned())?;
    if folder.is_in_memory() { Ok(folder) } else { Err(io::ErrorKind::Unsupported.into()) }
}
