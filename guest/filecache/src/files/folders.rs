//! Folders that are open: their entries as they were when reading began, so that a place in the
//! list stays the same while names come and go.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex};

use rustix::fs::{Dir, FileType, OFlags};
use rustix::io::Result;

use crate::callers::Caller;
use crate::files::Files;
use crate::files::names::Found;
use crate::lock::lock;
use crate::nodes::Node;
use crate::source;

/// A folder that is open.
pub struct Folder {
    node: Arc<Node>,
    held: OwnedFd,
    caller: Caller,
    entries: Mutex<Arc<[Entry]>>,
}

/// A name in a folder.
pub struct Entry {
    /// The name.
    pub name: OsString,
    /// The number of what it leads to.
    pub inode: u64,
    /// What that is.
    pub kind: FileType,
}

impl Entry {
    /// Whether it is one of the two names that every folder has.
    pub fn is_dots(&self) -> bool {
        self.name == "." || self.name == ".."
    }
}

impl Files {
    /// Opens a folder. Returns its number, and whether the list of names that the kernel keeps is
    /// that of the folder.
    pub fn open_folder(&self, id: u64, caller: Caller) -> Result<(u64, bool)> {
        let node = self.nodes.get(id)?;
        let at = self.nodes.folder(id)?;
        let acting = caller.act();
        let held: OwnedFd = source::reopen(at, OFlags::RDONLY | OFlags::DIRECTORY)?.into();
        drop(acting);
        let news = self.learn(&node, &source::stat(&held)?);
        if news.changed {
            self.take_back_attributes(&node);
        }
        node.pages(news.is_settled);
        let entries = Mutex::new(Arc::from([]));
        let number = self.folders.insert(Arc::new(Folder { node, held, caller, entries }));
        Ok((number, news.pages_are_good))
    }

    /// The entries of an open folder: read anew when they are asked for from the beginning.
    pub fn entries(&self, number: u64, from_the_beginning: bool) -> Result<Arc<[Entry]>> {
        let folder = self.folders.get(number)?;
        if from_the_beginning {
            let entries = read_all(&folder.held)?;
            *lock(&folder.entries) = entries;
        }
        Ok(lock(&folder.entries).clone())
    }

    /// What an entry leads to, for the kernel. Nothing if it is gone or may not be seen: then the
    /// name alone is told.
    pub fn entry(&self, number: u64, name: &OsStr) -> Option<Found> {
        let folder = self.folders.get(number).ok()?;
        let acting = folder.caller.act();
        let seen = self.look_between_flushes(|| source::look(&folder.held, name)).ok()?;
        drop(acting);
        Some(self.found(&seen, folder.node.id, name))
    }

    /// The kernel was not told of a node after all.
    pub fn untell(&self, node: &Node) {
        self.nodes.forget(node.id, 1);
    }

    /// An open folder is closed.
    pub fn close_folder(&self, number: u64) {
        self.folders.remove(number);
    }
}

fn read_all(folder: &OwnedFd) -> Result<Arc<[Entry]>> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_os_string();
        entries.push(Entry { name, inode: entry.ino(), kind: entry.file_type() });
    }
    Ok(entries.into())
}
