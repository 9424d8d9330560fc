//! Folders that are open: their entries as they were when reading began, so that a place in the
//! list stays the same while names come and go.

use std::ffi::OsStr;
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
    entries: Mutex<Arc<Entries>>,
}

/// What a folder has, in the order in which the source lists it. The names lie in one piece: a
/// hundred thousand small ones would leave the heap full of holes.
#[derive(Default)]
pub struct Entries {
    names: Vec<u8>,
    /// Where each name ends, and what it leads to.
    ends: Vec<(usize, u64, FileType)>,
}

impl Entries {
    /// Those from an offset on, each with the offset of the next one.
    pub fn rest(&self, offset: u64) -> impl Iterator<Item = (u64, Entry<'_>)> {
        let first = usize::try_from(offset).unwrap_or(usize::MAX).min(self.ends.len());
        let mut start = first.checked_sub(1).map_or(0, |before| self.ends[before].0);
        (offset + 1..).zip(&self.ends[first..]).map(move |(next, &(end, inode, kind))| {
            let name = OsStr::from_bytes(&self.names[start..end]);
            start = end;
            (next, Entry { name, inode, kind })
        })
    }
}

/// A name in a folder.
pub struct Entry<'list> {
    /// The name.
    pub name: &'list OsStr,
    /// The number of what it leads to.
    pub inode: u64,
    /// What that is.
    pub kind: FileType,
}

impl Entry<'_> {
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
        let entries = Mutex::default();
        let number = self.folders.insert(Arc::new(Folder { node, held, caller, entries }));
        Ok((number, news.pages_are_good))
    }

    /// The entries of an open folder: read anew when they are asked for from the beginning.
    pub fn entries(&self, number: u64, from_the_beginning: bool) -> Result<Arc<Entries>> {
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

fn read_all(folder: &OwnedFd) -> Result<Arc<Entries>> {
    let mut entries = Entries::default();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        entries.names.extend_from_slice(entry.file_name().to_bytes());
        entries.ends.push((entries.names.len(), entry.ino(), entry.file_type()));
    }
    Ok(Arc::new(entries))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_goes_on_at_any_offset() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a", "bc", "def"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let entries = read_all(&std::fs::File::open(folder.path()).unwrap().into()).unwrap();
        let names = |offset| entries.rest(offset).map(|(next, it)| (next, it.name)).collect();
        let all: Vec<_> = names(0);
        let mut sorted: Vec<_> = all.iter().map(|(_, name)| *name).collect();
        sorted.sort_unstable();
        assert_eq!(sorted, [".", "..", "a", "bc", "def"]);
        for (next, _) in &all {
            assert_eq!(names(*next), all[*next as usize..]);
        }
        assert_eq!(names(99), []);
    }
}
