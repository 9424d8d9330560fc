//! Copies that outlive the daemon: named files in a folder used only by the cache.
//!
//! The name of a copy encodes the file and the stamp that it is of, so there is no separate index
//! that could differ from the content. A name is given after the bytes are durable, and removed
//! (durably, too) before they change: a file with a name is complete after any end of the daemon or
//! of the guest. Whether it is still current is checked when it is opened.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};

use flowstone_memory::mutated;
use rustix::fs::{
    AtFlags, CWD, Dir, FlockOperation, Mode, OFlags, Timespec, flock, linkat, mkdirat, open,
    openat, unlinkat,
};
use rustix::io::Errno;

use crate::lock::lock;
use crate::stamp::{Identity, Stamp};
use crate::to_disk;

/// The folder of copies, inside the user's folder.
const FOLDER: &str = "flowstone-copies";

/// The folder of copies of one source.
pub struct Shelf {
    folder: OwnedFd,
    /// The source, so that copies of another one are not taken for its own.
    source: String,
    /// The current device number of the source's file system.
    home: u64,
}

/// A copy from an earlier life.
pub struct Found {
    /// The identity of its file.
    pub identity: Identity,
    /// The stamp that it is a copy of.
    pub stamp: Stamp,
    /// Its bytes.
    pub file: File,
    /// Its name.
    pub name: String,
}

impl Shelf {
    /// Opens the folder of copies inside `path`, and locks it. Fails while another daemon has it.
    pub fn open(path: &Path, source: String, home: u64) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let outer = open(path, flags, Mode::empty())?;
        match mkdirat(&outer, FOLDER, Mode::RWXU) {
            Err(error) if error != Errno::EXIST => return Err(error.into()),
            _ => {}
        }
        let folder = openat(&outer, FOLDER, flags | OFlags::NOFOLLOW, Mode::empty())?;
        let locks = mutated("guest.shelf.does-not-lock", true, false);
        if locks {
            flock(&folder, FlockOperation::NonBlockingLockExclusive).map_err(|error| {
                let is_taken = error == Errno::WOULDBLOCK;
                if is_taken { io::Error::other("another cache uses it") } else { error.into() }
            })?;
        }
        let shelf = Self { folder, source, home };
        shelf.new_file()?;
        Ok(shelf)
    }

    /// Creates an empty, unnamed file.
    pub fn new_file(&self) -> io::Result<File> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        Ok(openat(&self.folder, ".", flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    /// Returns the copies in the folder. Other files are removed.
    pub fn find(&self) -> io::Result<Vec<Found>> {
        let mut found = Vec::new();
        for entry in Dir::read_from(&self.folder)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else {
                let _ = unlinkat(&self.folder, entry.file_name(), AtFlags::empty());
                continue;
            };
            if name == "." || name == ".." {
                continue;
            }
            match self.copy_of(name) {
                Some(copy) => found.push(copy),
                None => self.remove(name),
            }
        }
        Ok(found)
    }

    fn copy_of(&self, name: &str) -> Option<Found> {
        let (identity, stamp) = parse(&self.source, self.home, name)?;
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(&self.folder, name, flags, Mode::empty()).ok()?);
        let seen = file.metadata().ok()?;
        let is_whole = seen.is_file() && seen.len() == stamp.size;
        let name = name.to_owned();
        is_whole.then_some(Found { identity, stamp, file, name })
    }

    /// Names a copy, whose bytes are durable.
    fn put(&self, file: &File, identity: Identity, stamp: Stamp) -> Option<String> {
        // A file of another file system below the source has no lasting device number.
        let name = (identity.device == self.home).then(|| name(&self.source, identity, stamp))?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        self.remove(&name);
        let given = linkat(CWD, &path, &self.folder, &name, AtFlags::SYMLINK_FOLLOW);
        given.ok().map(|()| name)
    }

    /// Removes a name. If that fails, the next daemon removes it.
    fn remove(&self, name: &str) {
        let _ = unlinkat(&self.folder, name, AtFlags::empty());
    }
}

fn after_sync<E>(
    sync: impl FnOnce() -> Result<(), E>,
    name: impl FnOnce() -> Result<(), E>,
) -> Result<(), E> {
    let syncs = mutated("guest.shelf.names-what-is-not-on-the-disk", true, false);
    if syncs {
        sync()?;
    }
    name()
}

/// The name of one copy, if it has one.
#[derive(Default)]
pub struct Name {
    shelf: Option<Arc<Shelf>>,
    state: Mutex<State>,
}

#[derive(Default)]
enum State {
    #[default]
    None,
    Given(String),
    /// Removed, but perhaps not durably.
    Taken,
}

impl Name {
    /// Starts without a name.
    pub fn none(shelf: Option<Arc<Shelf>>) -> Self {
        Self { shelf, state: Mutex::default() }
    }

    /// Starts with the name of an earlier life.
    pub fn given(shelf: Arc<Shelf>, name: String) -> Self {
        Self { shelf: Some(shelf), state: Mutex::new(State::Given(name)) }
    }

    /// Names a copy, if it is still current.
    pub fn give(
        &self,
        file: &File,
        identity: Identity,
        stamp: Stamp,
        is_current: impl Fn() -> bool,
    ) {
        let Some(shelf) = &self.shelf else { return };
        // If the disk fails, the copy stays without a name.
        let _ = after_sync(
            || to_disk(file),
            || {
                // Locked only from here on: dropping a copy does not wait for the disk.
                let mut state = lock(&self.state);
                if is_current()
                    && let Some(name) = shelf.put(file, identity, stamp)
                {
                    *state = State::Given(name);
                }
                Ok(())
            },
        );
    }

    /// Removes the name, since the copy is dropped.
    pub fn take(&self) {
        let mut state = lock(&self.state);
        if let (Some(shelf), State::Given(name)) = (&self.shelf, &*state) {
            shelf.remove(name);
            *state = State::Taken;
        }
    }

    /// Removes the name durably, since the bytes are about to change: a crash of the guest must not
    /// bring it back.
    pub fn take_for_good(&self) -> rustix::io::Result<()> {
        let takes = mutated("guest.shelf.keeps-names-of-bytes-that-change", true, false);
        if !takes {
            return Ok(());
        }
        self.take();
        let mut state = lock(&self.state);
        if let (Some(shelf), State::Taken) = (&self.shelf, &*state) {
            to_disk(&shelf.folder)?;
            *state = State::None;
        }
        Ok(())
    }
}

/// Returns the name of a copy: hexadecimal numbers, and a checksum over them and the source.
fn name(source: &str, identity: Identity, stamp: Stamp) -> String {
    let time = |it: Timespec| format!("{:x}-{:x}", it.tv_sec, it.tv_nsec);
    let (inode, birth, size) = (identity.inode, identity.birth, stamp.size);
    let (modified, changed) = (time(stamp.modified), time(stamp.changed));
    let body = format!("{inode:x}-{birth:x}-{size:x}-{modified}-{changed}");
    format!("{body}-{:08x}", checksum(source, &body))
}

fn checksum(source: &str, body: &str) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(source.as_bytes()), body.as_bytes())
}

fn parse(source: &str, home: u64, name: &str) -> Option<(Identity, Stamp)> {
    let (body, sum) = name.rsplit_once('-')?;
    let is_ours = u32::from_str_radix(sum, 16).ok()? == checksum(source, body);
    let is_ours = mutated("guest.shelf.takes-any-source", is_ours, true);
    if !is_ours {
        return None;
    }
    let fields: Option<Vec<u64>> =
        body.split('-').map(|it| u64::from_str_radix(it, 16).ok()).collect();
    let &[inode, birth, size, modified, modified_ns, changed, changed_ns] = &*fields? else {
        return None;
    };
    let time = |seconds: u64, nanoseconds: u64| {
        let tv_nsec = u32::try_from(nanoseconds).ok()?.into();
        Some(Timespec { tv_sec: seconds.cast_signed(), tv_nsec })
    };
    let identity = Identity { device: home, inode, birth: birth.cast_signed() };
    let (modified, changed) = (time(modified, modified_ns)?, time(changed, changed_ns)?);
    Some((identity, Stamp { size, modified, changed }))
}

#[cfg(test)]
#[path = "shelf_tests.rs"]
mod tests;
