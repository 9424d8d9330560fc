//! Calls to the source. They are made by name in a folder, or on a descriptor, by a thread that
//! acts for the caller.
//!
//! An *anchor* (`O_PATH`) holds a file independently of its name, and opens nothing at the server.
//! All operations on a file go through one, by way of `/proc/self/fd`, so that a name that leads to
//! another file meanwhile does no harm.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::path::Path;

use flowstone_memory::mutated;
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, StatVfs, StatxFlags, fstatfs, fstatvfs, open, openat, statx,
};
use rustix::io::{Errno, Result};

use crate::errno;
use crate::stamp::{Attributes, Identity};

const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

/// Local file systems: a close flushes nothing, and all effects of a close are local. Others are
/// taken for network file systems.
const LOCAL: [i64; 6] = [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0xF2F5_2010, 0x794C_7630];

/// The shared storage.
pub struct Source {
    root: OwnedFd,
    identity: Identity,
    is_local: bool,
}

impl Source {
    /// Opens the folder that is to be cached.
    pub fn open(folder: &Path) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(folder, flags, Mode::empty())?;
        let kind = fstatfs(&root)?.f_type;
        let identity = stat(&root)?.identity;
        Ok(Self { root, identity, is_local: LOCAL.contains(&(kind as i64)) })
    }

    /// Returns the identity of the folder.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Returns a name that is the same at each mount of this source, and unique to it.
    pub fn lasting_name(&self, folder: &Path) -> String {
        let path = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        format!("{}\n{}\n{}", path.display(), self.identity.inode, self.identity.birth)
    }

    /// Returns the descriptor of the folder.
    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Returns whether its attributes are always current, and a close flushes nothing.
    pub fn is_local(&self) -> bool {
        self.is_local
    }

    /// Makes a call to the source whose result is not needed.
    pub fn probe(&self) -> Result<()> {
        stat_now(&self.root).map(drop)
    }

    /// Returns the state of its file system (`statvfs`).
    pub fn space(&self) -> Result<StatVfs> {
        fstatvfs(&self.root)
    }
}

/// Returns the attributes of a name in a folder.
pub fn look(folder: impl AsFd, name: &OsStr) -> Result<Attributes> {
    statx(folder, name, AtFlags::SYMLINK_NOFOLLOW, WANTED).map(Attributes::from)
}

/// Returns the attributes of a descriptor's file.
pub fn stat(file: impl AsFd) -> Result<Attributes> {
    statx(file, c"", AtFlags::EMPTY_PATH, WANTED).map(Attributes::from)
}

/// Returns the attributes of a descriptor's file from the server, which first gets all written
/// bytes.
pub fn stat_now(file: impl AsFd) -> Result<Attributes> {
    let asks = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    statx(file, c"", asks, WANTED).map(Attributes::from)
}

/// Closes a file and returns the error of that, which a drop would ignore.
pub fn close(file: impl IntoRawFd) -> Result<()> {
    let raw = file.into_raw_fd();
    // SAFETY: this descriptor was owned by the argument, and is not used again.
    let closed = unsafe { libc::close(raw) };
    if closed == 0 { Ok(()) } else { Err(errno(std::io::Error::last_os_error())) }
}

/// Returns the locally cached attributes of a descriptor's file, without asking the server.
pub fn known(file: impl AsFd) -> Result<Attributes> {
    let asks_not = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    statx(file, c"", asks_not, WANTED).map(Attributes::from)
}

/// Opens an anchor of a name.
pub fn anchor(folder: impl AsFd, name: &OsStr) -> Result<OwnedFd> {
    openat(folder, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Opens the file of an anchor.
pub fn reopen(anchor: impl AsFd, flags: OFlags) -> Result<File> {
    openat(CWD, path_of(&anchor), flags | OFlags::CLOEXEC, Mode::empty()).map(File::from)
}

/// Returns a path to a descriptor's file, for calls that need a path.
pub fn path_of(held: &impl AsFd) -> String {
    format!("/proc/self/fd/{}", held.as_fd().as_raw_fd())
}

/// Returns the flags with which the daemon opens a file for a caller's flags. Truncation is a
/// separate request; a write has an offset, which O_APPEND would ignore; the daemon's buffers are
/// not aligned.
pub fn daemon_flags(flags: OFlags) -> OFlags {
    let own = OFlags::CREATE | OFlags::EXCL | OFlags::TRUNC | OFlags::APPEND | OFlags::DIRECT;
    flags.difference(own | OFlags::NOFOLLOW | OFlags::NOCTTY)
}

/// Converts the error of a file that is gone or replaced, so that the kernel looks the name up
/// again. "No such file" would reach the user for a file that was only replaced.
pub fn gone_is_stale(error: Errno) -> Errno {
    let is_gone = error == Errno::NOENT || error == Errno::NOTDIR;
    let is_gone = mutated("guest.names.gone-is-not-stale", is_gone, false);
    if is_gone { Errno::STALE } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_anchor_holds_the_file_and_not_the_name() {
        let folder = tempfile::tempdir().unwrap();
        let source = Source::open(folder.path()).unwrap();
        let name = OsStr::new("it");
        std::fs::write(folder.path().join(name), "old").unwrap();
        let held = anchor(source.root(), name).unwrap();
        std::fs::write(folder.path().join("new"), "newer").unwrap();
        std::fs::rename(folder.path().join("new"), folder.path().join(name)).unwrap();
        assert_eq!(stat(&held).unwrap().stamp.size, 3);
        assert_eq!(look(source.root(), name).unwrap().stamp.size, 5);
        let mut text = String::new();
        std::io::Read::read_to_string(&mut reopen(&held, OFlags::RDONLY).unwrap(), &mut text)
            .unwrap();
        assert_eq!(text, "old");
    }

    #[test]
    fn a_file_that_is_gone_is_stale_and_any_other_trouble_is_what_it_is() {
        assert_eq!(gone_is_stale(Errno::NOENT), Errno::STALE);
        assert_eq!(gone_is_stale(Errno::IO), Errno::IO);
        assert_eq!(gone_is_stale(Errno::ACCESS), Errno::ACCESS);
    }
}
