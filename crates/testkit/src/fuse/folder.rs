//! A FUSE server for a folder: requests are carried out on the files behind it, at any depth.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt};
use std::path::PathBuf;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Gid, Mode, SeekFrom, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT,
    Uid, chmodat, chownat, fallocate, seek, statvfs, utimensat,
};

use super::holds::Holds;
use super::unsynced::Unsynced;
use super::wire::{Answer, Call, Message, WRITE_BYTES_MAX};

/// The node number of the folder itself.
const ROOT: u64 = 1;
/// From linux/fuse.h: parallel reads of a file, and writes larger than a page.
const ASYNC_READ: u32 = 1;
const BIG_WRITES: u32 = 1 << 5;
const MAX_PAGES: u32 = 1 << 22;
/// From linux/fuse.h: the attributes to be set.
const SET_MODE: u32 = 1;
const SET_UID: u32 = 1 << 1;
const SET_GID: u32 = 1 << 2;
const SET_SIZE: u32 = 1 << 3;
const SET_ATIME: u32 = 1 << 4;
const SET_MTIME: u32 = 1 << 5;
const SET_ATIME_NOW: u32 = 1 << 7;
const SET_MTIME_NOW: u32 = 1 << 8;

/// The folder; see the module. Files stay open while the folder exists; those of a source are
/// closed with their last open, so that a removed file is stale from then on.
pub struct Folder {
    behind: PathBuf,
    holds: Holds,
    nodes: BTreeMap<u64, Node>,
    next: u64,
    unsynced: Unsynced,
}

/// A file that the kernel has looked up.
struct Node {
    /// Its path behind the folder; empty once it is removed.
    path: String,
    /// Its inode number: another file may have its name by now.
    inode: u64,
    /// Open from its first read or write on.
    file: Option<File>,
    opens: u32,
}

type Outcome = io::Result<Answer>;

impl Folder {
    /// Serves the files in `behind`.
    pub fn new(behind: PathBuf, holds: Holds) -> Self {
        let (nodes, unsynced) = (BTreeMap::new(), Unsynced::default());
        Self { behind, holds, nodes, next: ROOT + 1, unsynced }
    }

    /// Undoes writes that were not synced.
    pub fn lose_unsynced(&mut self) {
        self.unsynced.undo();
    }

    /// Carries out a request.
    pub fn answer(&mut self, message: &Message) -> Result<Answer, i32> {
        let outcome = match message.call {
            Call::Init => Ok(init(message)),
            Call::Lookup => self.lookup(message.node, &message.name(0)),
            Call::GetAttr => self.attributes(message.node),
            Call::SetAttr => self.set_attributes(message),
            Call::ReadLink => self.read_link(message.node),
            Call::Open | Call::OpenDir => self.open(message.node),
            Call::Create | Call::Tmpfile => self.create(message),
            Call::Mkdir | Call::Symlink => self.make(message),
            Call::Unlink | Call::Rmdir => self.remove(message),
            Call::Rename => self.rename(message, 8),
            Call::Rename2 => self.rename(message, 16),
            Call::Read => self.read(message),
            Call::Write => self.write(message),
            Call::Fallocate => self.fallocate(message),
            Call::Lseek => self.seek(message),
            Call::StatFs => self.room(),
            // Written data is in the files already, and files of a test need not survive a power
            // failure.
            Call::Fsync => {
                self.unsynced.synced(message.node);
                Ok(Answer::default())
            }
            Call::Release => Ok(self.release(message.node)),
            Call::FsyncDir | Call::Flush | Call::ReleaseDir => Ok(Answer::default()),
            Call::ReadDir => self.names(message),
            Call::Forget | Call::BatchForget | Call::Interrupt | Call::Other => {
                Err(io::Error::from_raw_os_error(libc::ENOSYS))
            }
        };
        outcome.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
    }

    /// Returns the path of a file; ESTALE if another one is there now.
    fn path(&self, node: u64) -> io::Result<PathBuf> {
        if node == ROOT {
            return Ok(self.behind.clone());
        }
        let stale = || io::Error::from_raw_os_error(libc::ESTALE);
        let it = self.nodes.get(&node).filter(|it| !it.path.is_empty()).ok_or_else(stale)?;
        let path = self.behind.join(&it.path);
        let is_same = path.symlink_metadata().is_ok_and(|seen| seen.ino() == it.inode);
        if is_same { Ok(path) } else { Err(stale()) }
    }

    /// Returns the path of a file behind the folder; empty if it is unknown or removed.
    pub fn name(&self, node: u64) -> String {
        self.nodes.get(&node).map(|it| it.path.clone()).unwrap_or_default()
    }

    /// Returns the path of a name in a folder, relative to the top one.
    fn below(&self, folder: u64, name: &str) -> String {
        match self.nodes.get(&folder) {
            Some(it) => format!("{}/{name}", it.path),
            None => name.to_owned(),
        }
    }

    fn metadata(&self, node: u64) -> io::Result<Metadata> {
        match self.nodes.get(&node).and_then(|it| it.file.as_ref()) {
            Some(file) => file.metadata(),
            None => self.path(node)?.symlink_metadata(),
        }
    }

    fn file(&mut self, node: u64) -> io::Result<&File> {
        let is_open = self.nodes.get(&node).is_some_and(|it| it.file.is_some());
        if !is_open {
            let file = File::options().read(true).write(true).open(self.path(node)?)?;
            self.nodes.get_mut(&node).ok_or(io::ErrorKind::NotFound)?.file = Some(file);
        }
        let it = self.nodes.get(&node).and_then(|it| it.file.as_ref());
        it.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Looks a name up; returns its node number and attributes, which the kernel must not cache.
    fn lookup(&mut self, folder: u64, name: &str) -> Outcome {
        let path = self.below(folder, name);
        let seen = self.behind.join(&path).symlink_metadata()?;
        let is_it = |node: &Node| node.path == path && node.inode == seen.ino();
        let known = self.nodes.iter().find(|(_, it)| is_it(it)).map(|(node, _)| *node);
        let node = known.unwrap_or_else(|| {
            self.next += 1;
            self.nodes.insert(self.next, Node { path, inode: seen.ino(), file: None, opens: 0 });
            self.next
        });
        let entry = Answer::default().u64s(&[node, 0, 0, 0]).u32s(&[0, 0]);
        Ok(entry.attributes(node, &seen))
    }

    fn attributes(&self, node: u64) -> Outcome {
        let answer = Answer::default().u64s(&[0, 0]);
        Ok(answer.attributes(node, &self.metadata(node)?))
    }

    fn set_attributes(&mut self, message: &Message) -> Outcome {
        let valid = message.u32(0);
        let wants = |flag: u32| valid & flag != 0;
        if wants(SET_SIZE) {
            self.file(message.node)?.set_len(message.u64(16))?;
        }
        if valid & !SET_SIZE == 0 {
            return self.attributes(message.node);
        }
        let path = self.path(message.node)?;
        if wants(SET_UID | SET_GID) {
            let uid = wants(SET_UID).then(|| Uid::from_raw(message.u32(76)));
            let gid = wants(SET_GID).then(|| Gid::from_raw(message.u32(80)));
            chownat(CWD, &path, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        if wants(SET_MODE) {
            let mode = Mode::from_raw_mode(message.u32(68) & 0o7777);
            chmodat(CWD, &path, mode, AtFlags::empty())?;
        }
        if wants(SET_ATIME | SET_MTIME) {
            let last_access = time(valid, [SET_ATIME, SET_ATIME_NOW], message, [32, 56]);
            let last_modification = time(valid, [SET_MTIME, SET_MTIME_NOW], message, [40, 60]);
            let times = Timestamps { last_access, last_modification };
            utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        self.attributes(message.node)
    }

    fn read_link(&self, node: u64) -> Outcome {
        let to = std::fs::read_link(self.path(node)?)?;
        Ok(Answer(to.as_os_str().as_bytes().to_vec()))
    }

    fn open(&mut self, node: u64) -> Outcome {
        if self.metadata(node)?.is_file() {
            self.file(node)?;
            self.nodes.entry(node).and_modify(|it| it.opens += 1);
        }
        Ok(Answer::default().u64s(&[node]).u32s(&[self.holds.open_flags(), 0]))
    }

    fn release(&mut self, node: u64) -> Answer {
        if let Some(it) = self.nodes.get_mut(&node) {
            it.opens = it.opens.saturating_sub(1);
            if it.opens == 0 {
                it.file = None;
            }
        }
        Answer::default()
    }

    fn create(&mut self, message: &Message) -> Outcome {
        // An unnamed file has a hidden name here.
        let name = match message.call {
            Call::Tmpfile => format!(".nameless-{}", message.unique),
            _ => message.name(16),
        };
        let path = self.behind.join(self.below(message.node, &name));
        File::options().write(true).create(true).truncate(false).open(&path)?;
        self.belongs(message, &path, message.u32(4))?;
        let mut answer = self.lookup(message.node, &name)?;
        let node = u64::from_le_bytes(answer.0[..8].try_into().expect("eight bytes"));
        answer.0.extend(self.open(node)?.0);
        Ok(answer)
    }

    fn make(&mut self, message: &Message) -> Outcome {
        if message.call == Call::Mkdir {
            let name = message.name(8);
            let path = self.behind.join(self.below(message.node, &name));
            std::fs::create_dir(&path)?;
            self.belongs(message, &path, message.u32(0))?;
            return self.lookup(message.node, &name);
        }
        let mut names = message.names(0);
        let (name, to) = (names.next().unwrap_or_default(), names.next().unwrap_or_default());
        let path = self.behind.join(self.below(message.node, &name));
        std::os::unix::fs::symlink(to, path)?;
        self.lookup(message.node, &name)
    }

    /// Sets owner and mode of a created file to those of its creator.
    fn belongs(&self, message: &Message, path: &PathBuf, mode: u32) -> io::Result<()> {
        if self.holds != Holds::Source {
            return Ok(());
        }
        chmodat(CWD, path, Mode::from_raw_mode(mode & 0o7777), AtFlags::empty())?;
        let (uid, gid) = (Uid::from_raw(message.uid), Gid::from_raw(message.gid));
        Ok(chownat(CWD, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Removes a file. Opens of it stay valid.
    fn remove(&mut self, message: &Message) -> Outcome {
        let below = self.below(message.node, &message.name(0));
        let path = self.behind.join(&below);
        if message.call == Call::Rmdir {
            std::fs::remove_dir(path)?;
        } else {
            std::fs::remove_file(path)?;
        }
        self.forget(&below);
        Ok(Answer::default())
    }

    fn forget(&mut self, path: &str) {
        let known = self.nodes.values_mut().filter(|it| it.path == path);
        known.for_each(|it| it.path.clear());
    }

    fn rename(&mut self, message: &Message, names_at: usize) -> Outcome {
        let mut names = message.names(names_at);
        let from = self.below(message.node, &names.next().unwrap_or_default());
        let to = self.below(message.u64(0), &names.next().unwrap_or_default());
        std::fs::rename(self.behind.join(&from), self.behind.join(&to))?;
        self.forget(&to);
        for it in self.nodes.values_mut() {
            let rest = it.path.strip_prefix(&from).map(str::to_owned);
            if let Some(rest) = rest.filter(|rest| rest.is_empty() || rest.starts_with('/')) {
                it.path = to.clone() + &rest;
            }
        }
        Ok(Answer::default())
    }

    /// Lists the names in a folder, from an offset on.
    fn names(&self, message: &Message) -> Outcome {
        let (offset, room) = (message.u64(8), message.u32(16) as usize);
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(self.path(message.node)?)? {
            let entry = entry?;
            entries.push((entry.file_name().as_bytes().to_vec(), entry.ino()));
        }
        entries.sort();
        let mut answer = Answer::default();
        for (at, (name, inode)) in entries.iter().enumerate().skip(offset as usize) {
            if answer.0.len() + 24 + name.len().next_multiple_of(8) > room {
                break;
            }
            answer = answer.u64s(&[*inode, at as u64 + 1]).u32s(&[name.len() as u32, 0]);
            answer.0.extend(name);
            answer.0.resize(answer.0.len().next_multiple_of(8), 0);
        }
        Ok(answer)
    }

    fn read(&mut self, message: &Message) -> Outcome {
        let (mut offset, mut data) = (message.u64(8), vec![0; message.u32(16) as usize]);
        let (file, mut filled) = (self.file(message.node)?, 0);
        loop {
            let moved = file.read_at(&mut data[filled..], offset)?;
            filled += moved;
            offset += moved as u64;
            if moved == 0 {
                data.truncate(filled);
                return Ok(Answer(data));
            }
        }
    }

    fn write(&mut self, message: &Message) -> Outcome {
        self.write_first(message, message.u32(16))
    }

    /// Writes the first half of a request's bytes.
    pub fn write_half(&mut self, message: &Message) -> Result<Answer, i32> {
        // Disks write whole sectors.
        let bytes = (message.u32(16) / 2) & !511;
        self.write_first(message, bytes).map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
    }

    fn write_first(&mut self, message: &Message, bytes: u32) -> Outcome {
        let data = &message.rest(40)[..bytes as usize];
        let (node, offset) = (message.node, message.u64(8));
        let file = self.file(node)?.try_clone()?;
        if self.holds == Holds::Source {
            self.unsynced.before_write(node, &file, offset, data.len())?;
        }
        file.write_all_at(data, offset)?;
        Ok(Answer::default().u32s(&[bytes, 0]))
    }

    fn fallocate(&mut self, message: &Message) -> Outcome {
        let mode = FallocateFlags::from_bits_retain(message.u32(24));
        fallocate(self.file(message.node)?, mode, message.u64(8), message.u64(16))?;
        Ok(Answer::default())
    }

    fn seek(&mut self, message: &Message) -> Outcome {
        let offset = message.u64(8);
        let whence = match message.u32(16) as i32 {
            libc::SEEK_DATA => SeekFrom::Data(offset),
            libc::SEEK_HOLE => SeekFrom::Hole(offset),
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        Ok(Answer::default().u64s(&[seek(self.file(message.node)?, whence)?]))
    }

    fn room(&self) -> Outcome {
        let room = statvfs(&self.behind)?;
        let sizes = [room.f_blocks, room.f_bfree, room.f_bavail, room.f_files, room.f_ffree];
        let units = [room.f_bsize as u32, 255, room.f_frsize as u32, 0, 0, 0, 0, 0, 0, 0];
        Ok(Answer::default().u64s(&sizes).u32s(&units))
    }
}

/// Returns a time to be set, from the offsets of its seconds and nanoseconds in the request.
fn time(valid: u32, [set, now]: [u32; 2], message: &Message, at: [usize; 2]) -> Timespec {
    match (valid & set != 0, valid & now != 0) {
        (false, _) => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        (true, true) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        (true, false) => Timespec {
            tv_sec: message.u64(at[0]).cast_signed(),
            tv_nsec: message.u32(at[1]).into(),
        },
    }
}

/// Negotiates the protocol, without a limit on the kernel's requests in flight.
fn init(message: &Message) -> Answer {
    let flags = message.u32(12) & (ASYNC_READ | BIG_WRITES | MAX_PAGES);
    let version = [7, 31, message.u32(8), flags];
    let many = u32::from(u16::MAX);
    let queues = many | many << 16;
    let pages = WRITE_BYTES_MAX / 4096;
    Answer::default().u32s(&version).u32s(&[queues, WRITE_BYTES_MAX, 1, pages]).u32s(&[0; 8])
}
