//! The folder of an image: where its redo file is, and how it is opened, so that nothing of others
//! is written, followed or removed.
//!
//! A redo file is called by the number of its session, and not by the image, which may be renamed
//! while it is served, and another one take its name. It is made anew by each session; what is
//! there already is of another one.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use flowstone_block::mutant;
use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, RenameFlags, flock, fstatfs, openat, renameat_with,
    statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::super::mark::Mark;
use super::layout::BYTES;

/// How long the last user of a redo file, which is dying, may keep its lock.
const PATIENCE: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(20);

/// The folder of an image.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Stays the same one when it is renamed.
    file: File,
}

/// What the redo file of a session is called.
pub fn name_of(mark: Mark) -> OsString {
    format!("flowstone-{:010x}.redo", mark.session()).into()
}

/// What versions 1 and 2 called it, by the name of the image.
pub fn old_name_of(image: &Path) -> io::Result<OsString> {
    let image = image.canonicalize()?;
    let mut name = image.file_name().unwrap_or_default().to_owned();
    name.push(".redo");
    Ok(name)
}

impl Folder {
    /// Where the image itself is, by whichever links it was found.
    pub fn of(image: &Path) -> io::Result<Self> {
        Self::at(image.canonicalize()?.parent().unwrap_or(Path::new("/")).to_owned())
    }

    pub fn at(path: PathBuf) -> io::Result<Self> {
        let flags = (OFlags::PATH | OFlags::DIRECTORY).bits() as i32;
        let file = File::options().read(true).custom_flags(flags).open(&path)?;
        Ok(Self { path, file })
    }

    /// Whether what lies there ends with the boot of the host.
    pub fn is_in_memory(&self) -> bool {
        const TMPFS: u64 = 0x0102_1994;
        const RAMFS: u64 = 0x8584_58f6;
        let kind = fstatfs(&self.file).map(|told| told.f_type as u64 & 0xffff_ffff);
        matches!(kind, Ok(TMPFS | RAMFS)) || mutant("qcow2.redo.believes-what-a-disk-keeps")
    }

    /// For messages.
    pub fn path_of(&self, name: &OsStr) -> PathBuf {
        self.path.join(name)
    }

    /// Opens what is there. Waits for nothing, and follows no link.
    pub fn open(&self, name: &OsStr, access: OFlags) -> io::Result<File> {
        let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(File::from(openat(&self.file, name, flags, Mode::empty())?))
    }

    /// Makes a file of that name, which did not exist.
    pub fn create(&self, name: &OsStr) -> io::Result<File> {
        let mut flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if !mutant("qcow2.redo.takes-a-name-that-is-taken") {
            flags |= OFlags::EXCL;
        }
        Ok(File::from(openat(&self.file, name, flags, Mode::RUSR | Mode::WUSR)?))
    }

    /// The name is `file`'s.
    fn names(&self, name: &OsStr, file: &File) -> io::Result<bool> {
        let (there, ours) =
            (statat(&self.file, name, AtFlags::SYMLINK_NOFOLLOW)?, file.metadata()?);
        Ok((there.st_dev, there.st_ino) == (ours.dev(), ours.ino()))
    }

    /// Removes `file`, if the name is still its.
    pub fn remove(&self, name: &OsStr, file: &File) -> io::Result<()> {
        if !self.names(name, file)? && !mutant("qcow2.redo.removes-what-has-its-name") {
            return Err(io::Error::other("another file has its name"));
        }
        Ok(unlinkat(&self.file, name, AtFlags::empty())?)
    }

    /// Gives a file another name, which nothing has.
    pub fn rename(&self, name: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(renameat_with(&self.file, name, &self.file, to, RenameFlags::NOREPLACE)?)
    }

    /// Makes durable which files there are, where the folder can be read.
    #[expect(clippy::disallowed_methods, reason = "a folder, and not an image")]
    pub fn sync(&self) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if let Ok(folder) = openat(&self.file, ".", flags, Mode::empty()) {
            let _ = rustix::fs::fsync(folder);
        }
    }
}

/// A file with its name. One that was created goes when this is dropped, unless it is to stay.
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
        // A host that gives it to another user would have it refused after a kill.
        match flaw_of(&made.file.metadata()?, None) {
            None => Ok(made),
            Some(flaw) => Err(io::Error::other(flaw)),
        }
    }

    /// One that is there, open.
    pub fn found(folder: Folder, name: OsString, file: File) -> Self {
        Self { folder, name, file, is_temporary: false }
    }

    pub fn open(folder: Folder, name: OsString) -> io::Result<Self> {
        let file = folder.open(&name, OFlags::RDONLY)?;
        Ok(Self::found(folder, name, file))
    }

    /// Opens for writing what was opened for reading.
    pub fn reopened(mut self) -> io::Result<Self> {
        let file = self.folder.open(&self.name, OFlags::RDWR)?;
        let (before, now) = (self.file.metadata()?, file.metadata()?);
        if (before.dev(), before.ino()) != (now.dev(), now.ino()) {
            return Err(io::Error::other("another file has taken its name"));
        }
        self.file = file;
        Ok(self)
    }

    /// It stays until it is removed.
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
        if self.is_temporary && !mutant("qcow2.redo.leaves-what-it-could-not-use") {
            let _ = self.remove();
        }
    }
}

/// Why a file that was found cannot be a redo file of ours, if so. `trusted` is another user whose
/// files are believed, besides this process's own.
pub fn flaw_of(file: &Metadata, trusted: Option<u32>) -> Option<&'static str> {
    let is_ours = [Some(geteuid().as_raw()), trusted].contains(&Some(file.uid()));
    if !file.file_type().is_file() {
        Some("it is not a regular file")
    } else if !is_ours && !mutant("qcow2.redo.owner-not-checked") {
        Some("it belongs to another user")
    } else if file.nlink() != 1 && !mutant("qcow2.redo.links-not-counted") {
        Some("it has other names, by which others may reach it")
    } else if file.mode() & 0o022 != 0 && !mutant("qcow2.redo.mode-not-checked") {
        Some("other users may write it")
    } else {
        None
    }
}

/// Keeps other processes off the file as long as it is open. One that was killed may keep it for a
/// moment.
pub fn lock(file: &File) -> io::Result<()> {
    if mutant("qcow2.redo.not-locked") {
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

/// Whether no process has it locked.
pub fn is_free(file: &File) -> bool {
    flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) != Err(Errno::WOULDBLOCK)
}

/// All of a redo file, or so much of another file that it can be told from one.
pub fn read_words(file: &File, metadata: &Metadata) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if metadata.file_type().is_file() {
        file.take(BYTES + 1).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}
