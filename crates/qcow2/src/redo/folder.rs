//! The folder of an image: location of its redo file, and safe access to it, so that no file of
//! another owner is written, followed or removed.
//!
//! A redo file is named after its session, and not after the image, which may be renamed while it
//! is served, and another one take its name. Each session creates a new one; an existing file
//! belongs to another session.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use flowstone_block::mutated;
use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, RenameFlags, flock, fstatfs, openat, renameat_with,
    statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::super::mark::Mark;
use super::layout::BYTES;

/// Time for which the last user of a redo file, which is exiting, may keep its lock.
const PATIENCE: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(20);

/// The folder of an image.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Stays valid when the folder is renamed.
    file: File,
}

/// Returns the name of a session's redo file.
pub fn name_of(mark: Mark) -> OsString {
    format!("flowstone-{:010x}.redo", mark.session()).into()
}

/// Returns the name that versions 1 and 2 used, after the image.
pub fn old_name_of(image: &Path) -> io::Result<OsString> {
    let image = image.canonicalize()?;
    let mut name = image.file_name().unwrap_or_default().to_owned();
    name.push(".redo");
    Ok(name)
}

impl Folder {
    /// Opens the folder of the image itself, with links resolved.
    pub fn of(image: &Path) -> io::Result<Self> {
        Self::at(image.canonicalize()?.parent().unwrap_or(Path::new("/")).to_owned())
    }

    pub fn at(path: PathBuf) -> io::Result<Self> {
        let flags = (OFlags::PATH | OFlags::DIRECTORY).bits() as i32;
        let file = File::options().read(true).custom_flags(flags).open(&path)?;
        Ok(Self { path, file })
    }

    /// Returns whether files in it are lost at the end of the host's boot.
    pub fn is_in_memory(&self) -> bool {
        const TMPFS: u64 = 0x0102_1994;
        const RAMFS: u64 = 0x8584_58f6;
        let kind = fstatfs(&self.file).map(|told| told.f_type as u64 & 0xffff_ffff);
        let is_memory = matches!(kind, Ok(TMPFS | RAMFS));
        mutated("qcow2.redo.believes-what-a-disk-keeps", is_memory, true)
    }

    /// Returns the path of a file, for messages.
    pub fn path_of(&self, name: &OsStr) -> PathBuf {
        self.path.join(name)
    }

    /// Opens an existing file. Never blocks, and follows no link.
    pub fn open(&self, name: &OsStr, access: OFlags) -> io::Result<File> {
        let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(File::from(openat(&self.file, name, flags, Mode::empty())?))
    }

    /// Creates a file of this name, which must not exist.
    pub fn create(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let excl = mutated("qcow2.redo.takes-a-name-that-is-taken", OFlags::EXCL, OFlags::empty());
        Ok(File::from(openat(&self.file, name, flags | excl, Mode::RUSR | Mode::WUSR)?))
    }

    /// Returns whether the name refers to `file`.
    fn names(&self, name: &OsStr, file: &File) -> io::Result<bool> {
        let (there, ours) =
            (statat(&self.file, name, AtFlags::SYMLINK_NOFOLLOW)?, file.metadata()?);
        Ok((there.st_dev, there.st_ino) == (ours.dev(), ours.ino()))
    }

    /// Removes `file`, if the name still refers to it.
    pub fn remove(&self, name: &OsStr, file: &File) -> io::Result<()> {
        let is_its = self.names(name, file)?;
        let is_its = mutated("qcow2.redo.removes-what-has-its-name", is_its, true);
        if !is_its {
            return Err(io::Error::other("another file has its name"));
        }
        Ok(unlinkat(&self.file, name, AtFlags::empty())?)
    }

    /// Renames a file, without replacing another.
    pub fn rename(&self, name: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(renameat_with(&self.file, name, &self.file, to, RenameFlags::NOREPLACE)?)
    }

    /// Makes the entries of the folder durable, if it can be opened for reading.
    #[expect(clippy::disallowed_methods, reason = "a folder, and not an image")]
    pub fn sync(&self) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if let Ok(folder) = openat(&self.file, ".", flags, Mode::empty()) {
            let _ = rustix::fs::fsync(folder);
        }
    }
}

/// A file with its name. A created file is removed on drop, unless kept.
#[derive(Debug)]
pub struct Named {
    pub folder: Folder,
    pub name: OsString,
    pub file: File,
    is_temporary: bool,
}

impl Named {
    pub fn create(folder: Folder, name: OsString) -> io::Result<Self> {
        let file = folder.create(&name)?;
        let made = Self { folder, name, file, is_temporary: true };
        // A file that the host creates for another user would be refused after a kill.
        match flaw_of(&made.file.metadata()?, None) {
            None => Ok(made),
            Some(flaw) => Err(io::Error::other(flaw)),
        }
    }

    /// Wraps an existing open file.
    pub fn found(folder: Folder, name: OsString, file: File) -> Self {
        Self { folder, name, file, is_temporary: false }
    }

    pub fn open(folder: Folder, name: OsString) -> io::Result<Self> {
        let file = folder.open(&name, OFlags::RDONLY)?;
        Ok(Self::found(folder, name, file))
    }

    /// Reopens for writing a file that was opened for reading.
    pub fn reopened(mut self) -> io::Result<Self> {
        let file = self.folder.open(&self.name, OFlags::RDWR)?;
        let (before, now) = (self.file.metadata()?, file.metadata()?);
        if (before.dev(), before.ino()) != (now.dev(), now.ino()) {
            return Err(io::Error::other("another file has taken its name"));
        }
        self.file = file;
        Ok(self)
    }

    /// Keeps the file on drop.
    pub fn keep(&mut self) {
        self.is_temporary = false;
    }

    pub fn remove(&mut self) -> io::Result<()> {
        self.keep();
        self.folder.remove(&self.name, &self.file)
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path_of(&self.name)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let removes = mutated("qcow2.redo.leaves-what-it-could-not-use", self.is_temporary, false);
        if removes {
            let _ = self.remove();
        }
    }
}

/// Returns why a found file cannot be a redo file of ours, if so. `trusted` is another user whose
/// files are trusted, besides this process's own.
pub fn flaw_of(file: &Metadata, trusted: Option<u32>) -> Option<&'static str> {
    let is_ours = [Some(geteuid().as_raw()), trusted].contains(&Some(file.uid()));
    let is_ours = mutated("qcow2.redo.owner-not-checked", is_ours, true);
    let has_one_name = mutated("qcow2.redo.links-not-counted", file.nlink() == 1, true);
    let is_closed = mutated("qcow2.redo.mode-not-checked", file.mode() & 0o022 == 0, true);
    if !file.file_type().is_file() {
        Some("it is not a regular file")
    } else if !is_ours {
        Some("it belongs to another user")
    } else if !has_one_name {
        Some("it has other names, by which others may reach it")
    } else if !is_closed {
        Some("other users may write it")
    } else {
        None
    }
}

/// Locks the file against other processes as long as it is open. A killed process may hold its lock
/// for a moment.
pub fn lock(file: &File) -> io::Result<()> {
    let locks = mutated("qcow2.redo.not-locked", true, false);
    if !locks {
        return Ok(());
    }
    let start = Instant::now();
    loop {
        match flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if start.elapsed() < PATIENCE => std::thread::sleep(RETRY),
            Err(Errno::WOULDBLOCK) => {
                return Err(io::Error::new(
                    io::ErrorKind::ResourceBusy,
                    "another process is using it",
                ));
            }
            outcome => return Ok(outcome?),
        }
    }
}

/// Returns whether no process has it locked.
pub fn is_free(file: &File) -> bool {
    flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) != Err(Errno::WOULDBLOCK)
}

/// Reads a whole redo file, or enough of another file to detect that it is none.
pub fn read_words(file: &File, metadata: &Metadata) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if metadata.file_type().is_file() {
        file.take(BYTES + 1).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}
