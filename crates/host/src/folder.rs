//! A directory for small files, with explicit durability of its operations.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use flowstone_block::mutated;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Operations on a directory; tests substitute them.
pub trait Folder: Send + Sync {
    /// Returns the names of its entries.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Reads a whole file.
    fn read(&self, name: &str) -> io::Result<String>;

    /// Writes a file anew. Its data is durable after [`sync_file`](Self::sync_file), its name after
    /// [`sync`](Self::sync).
    fn write(&self, name: &str, text: &str) -> io::Result<()>;

    /// Makes a file's data durable.
    fn sync_file(&self, name: &str) -> io::Result<()>;

    /// Renames a file, replacing one of that name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes the names of files durable.
    fn sync(&self) -> io::Result<()>;
}

/// A directory of the host.
pub struct HostFolder {
    path: PathBuf,
    /// The directory itself, which is locked: no file in it could be removed to bypass the lock.
    folder: File,
}

impl HostFolder {
    /// Opens the directory at `path`, which is created if its parent exists.
    pub fn open(path: &Path) -> io::Result<Self> {
        match fs::create_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Err(_) => {}
            // The directory's own name must be durable, too.
            Ok(()) => sync(&File::open(path.join(".."))?)?,
        }
        Ok(Self { path: path.to_owned(), folder: File::open(path)? })
    }

    /// Locks the directory until this is dropped. Returns `false` if another process holds the
    /// lock.
    pub fn lock(&self) -> io::Result<bool> {
        match flock(&self.folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Checks that the path still names this directory: another one may be in use by another
    /// daemon.
    fn is_there(&self) -> io::Result<()> {
        let number = |file: &File| file.metadata().map(|it| (it.dev(), it.ino()));
        let named = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(io::Error::other("it has another name now"));
            }
            named => number(&named?)?,
        };
        let is_ours = named == number(&self.folder)?;
        let is_ours =
            mutated("daemon.state.writes-to-a-folder-that-it-has-not-locked", is_ours, true);
        if !is_ours {
            return Err(io::Error::other("another folder has its name now"));
        }
        Ok(())
    }
}

impl Folder for HostFolder {
    fn names(&self) -> io::Result<Vec<String>> {
        let name = |entry: io::Result<fs::DirEntry>| {
            // A name that is not UTF-8 becomes one that is not ours.
            Ok(entry?.file_name().to_string_lossy().into_owned())
        };
        fs::read_dir(&self.path)?.map(name).collect()
    }

    fn read(&self, name: &str) -> io::Result<String> {
        fs::read_to_string(self.path.join(name))
    }

    fn write(&self, name: &str, text: &str) -> io::Result<()> {
        self.is_there()?;
        create(&self.path.join(name))?.write_all(text.as_bytes())
    }

    fn sync_file(&self, name: &str) -> io::Result<()> {
        sync(&File::open(self.path.join(name))?)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.is_there()?;
        fs::remove_file(self.path.join(name))
    }

    fn sync(&self) -> io::Result<()> {
        sync(&self.folder)
    }
}

/// Creates a file for its owner alone: it may contain names of tenants.
fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

#[expect(clippy::disallowed_methods, reason = "no image is in this folder")]
fn sync(file: &File) -> io::Result<()> {
    file.sync_all()
}
