//! Open folders: a snapshot of their entries at the start of reading, so that offsets in the list
//! stay valid while names are added and removed. Offsets are the source's own: the kernel continues
//! reading an open folder at an offset of a list cached from another open.

use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rustix::fs::{FileType, OFlags, RawDir, SeekFrom, seek};
use rustix::io::Result;

use crate::callers::Caller;
use crate::files::Files;
use crate::files::names::Found;
use crate::lock::lock;
use crate::nodes::Node;
use crate::source;
use crate::to_disk;

/// Buffer size for reading a folder.
const LIST_BYTES: usize = 32 << 10;

/// An open folder.
pub struct Folder {
    node: Arc<Node>,
    /// Opened as the caller: a server may deny the list to other users.
    held: OwnedFd,
    caller: Caller,
    /// Locked while it is read, which moves the offset in `held`. Only users of this open wait.
    entries: Mutex<Arc<Entries>>,
}

/// The entries of a folder, in the source's order. The names are in one allocation: a hundred
/// thousand small ones would fragment the heap.
#[derive(Default)]
pub struct Entries {
    /// The offset at which it begins.
    from: u64,
    names: Vec<u8>,
    ends: Vec<End>,
    /// Index of the entry last asked for: the next ones are close behind it.
    asked: AtomicUsize,
}

/// The end of a name in `names`, and its file.
struct End {
    at: usize,
    inode: u64,
    kind: FileType,
    /// The offset behind it.
    next: u64,
}

impl Entries {
    /// Returns the entries behind an offset, each with the offset behind it.
    pub fn rest(&self, place: u64) -> impl Iterator<Item = (u64, Entry<'_>)> {
        let first = self.behind(place).unwrap_or(self.ends.len());
        self.asked.store(first, Ordering::Relaxed);
        let mut start = first.checked_sub(1).map_or(0, |before| self.ends[before].at);
        self.ends[first..].iter().map(move |end| {
            let name = OsStr::from_bytes(&self.names[start..end.at]);
            start = end.at;
            (end.next, Entry { name, inode: end.inode, kind: end.kind })
        })
    }

    /// Returns the index of the entry behind an offset, if that is in the list.
    fn behind(&self, place: u64) -> Option<usize> {
        if place == self.from {
            return Some(0);
        }
        let asked = self.asked.load(Ordering::Relaxed);
        let mut all = (asked..self.ends.len()).chain(0..asked);
        all.find(|at| self.ends[*at].next == place).map(|at| at + 1)
    }
}

/// An entry of a folder.
pub struct Entry<'list> {
    /// The name.
    pub name: &'list OsStr,
    /// The inode number of its file.
    pub inode: u64,
    /// The type of its file.
    pub kind: FileType,
}

impl Entry<'_> {
    /// Returns whether it is `.` or `..`.
    pub fn is_dots(&self) -> bool {
        self.name == "." || self.name == ".."
    }
}

impl Files {
    /// Opens a folder. Returns its number, and whether the kernel's cached list is that of the
    /// folder.
    pub fn open_folder(&self, id: u64, caller: Caller) -> Result<(u64, bool)> {
        let node = self.nodes.get(id)?;
        let acting = caller.act();
        let at = self.nodes.folder(id)?;
        let held: OwnedFd = source::reopen(at, OFlags::RDONLY | OFlags::DIRECTORY)?.into();
        drop(acting);
        let news = self.learn(&node, &source::stat(&held)?);
        if news.changed {
            self.take_back_attributes(&node);
        }
        node.pages(news.is_settled);
        let entries = Mutex::default();
        let number = self.folders.insert(Arc::new(Folder { node, held, caller, entries }));
        Ok((number, news.pages_are_good && self.nodes.list_serves(id, self.window)))
    }

    /// Returns the entries of an open folder that cover an offset. Reads the folder again at the
    /// beginning, and if the offset is not in the list.
    pub fn entries(&self, number: u64, place: u64) -> Result<Arc<Entries>> {
        let folder = self.folders.get(number)?;
        let mut entries = lock(&folder.entries);
        if place == 0 || entries.behind(place).is_none() {
            *entries = Arc::new(read_from(&folder.held, place)?);
        }
        Ok(entries.clone())
    }

    /// Looks up an entry for the kernel. `None` if it is gone or may not be seen: then only the
    /// name is returned.
    pub fn entry(&self, number: u64, name: &OsStr) -> Option<Found> {
        let folder = self.folders.get(number).ok()?;
        let acting = folder.caller.act();
        let seen = self.look_between_flushes(|| source::look(&folder.held, name)).ok()?;
        drop(acting);
        Some(self.found(&seen, folder.node.id, name))
    }

    /// Records that the kernel was told the attributes of some entries, from an offset on.
    pub fn told_entries(&self, number: u64, place: u64, entries: &Entries, files: usize) {
        if let Ok(folder) = self.folders.get(number) {
            self.nodes.listed(folder.node.id, place == 0, entries.ends.len(), files);
        }
    }

    /// Undoes telling the kernel of a node.
    pub fn untell(&self, node: &Node) {
        self.nodes.forget(node.id, 1);
    }

    /// Makes the entries of an open folder durable.
    pub fn sync_folder(&self, number: u64) -> Result<()> {
        to_disk(&self.folders.get(number)?.held)
    }

    /// Closes an open folder.
    pub fn close_folder(&self, number: u64) {
        self.folders.remove(number);
    }
}

/// Reads a folder from an offset on.
fn read_from(folder: &OwnedFd, place: u64) -> Result<Entries> {
    let mut entries = Entries { from: place, ..Entries::default() };
    let mut buffer = vec![MaybeUninit::uninit(); LIST_BYTES];
    seek(folder, SeekFrom::Start(place))?;
    let mut list = RawDir::new(folder, &mut buffer);
    while let Some(entry) = list.next() {
        let entry = entry?;
        entries.names.extend_from_slice(entry.file_name().to_bytes());
        let (at, inode, kind) = (entries.names.len(), entry.ino(), entry.file_type());
        entries.ends.push(End { at, inode, kind, next: entry.next_entry_cookie() });
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_goes_on_at_any_place() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a", "bc", "def", &"x".repeat(255)] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let held = std::fs::File::open(folder.path()).unwrap().into();
        let entries = read_from(&held, 0).unwrap();
        let names = |list: &Entries, place| -> Vec<_> {
            list.rest(place).map(|(next, it)| (next, it.name.to_owned())).collect()
        };
        let all = names(&entries, 0);
        let mut sorted: Vec<_> = all.iter().map(|(_, name)| name.as_os_str()).collect();
        sorted.sort_unstable();
        assert_eq!(sorted, [".", "..", "a", "bc", "def", &*"x".repeat(255)]);
        for (at, (next, _)) in all.iter().enumerate() {
            assert_eq!(names(&entries, *next), all[at + 1..]);
            assert_eq!(names(&read_from(&held, *next).unwrap(), *next), all[at + 1..]);
        }
    }
}
