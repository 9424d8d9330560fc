//! The folder that records are kept in, and when what is done there is durable.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use flowstone_block::mutant;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// What a folder of the host does, and what tests put in its place.
pub trait Folder: Send + Sync {
    /// Names of what is in it.
    fn names(&self) -> io::Result<Vec<String>>;

    /// The whole of a file.
    fn read(&self, name: &str) -> io::Result<String>;

    /// Writes a file anew. It is durable after [`sync_file`](Self::sync_file), its name after
    /// [`sync`](Self::sync).
    fn write(&self, name: &str, text: &str) -> io::Result<()>;

    /// What is in a file is durable when this returns.
    fn sync_file(&self, name: &str) -> io::Result<()>;

    /// A file has another name, in place of one that has it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// A file goes.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// The names of files are durable when this returns.
    fn sync(&self) -> io::Result<()>;
}

/// A folder of the host.
pub struct HostFolder {
    path: PathBuf,
    /// The folder itself, which is locked: nothing can be removed from it to get around that.
    folder: File,
}

impl HostFolder {
    /// The folder at `path`, which is made if its parent is there.
    pub fn open(path: &Path) -> io::Result<Self> {
        match fs::create_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Err(_) => {}
            // What is kept in it is worth nothing without its name.
            Ok(()) => sync(&File::open(path.join(".."))?)?,
        }
        Ok(Self { path: path.to_owned(), folder: File::open(path)? })
    }

    /// Locks the folder until this is dropped. Returns `false` if another process has done so.
    pub fn lock(&self) -> io::Result<bool> {
        match flock(&self.folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Another folder that has the name by now may be another daemon's.
    fn is_there(&self) -> io::Result<()> {
        let number = |file: &File| file.metadata().map(|it| (it.dev(), it.ino()));
        let named = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(io::Error::other("it has another name now"));
            }
            named => number(&named?)?,
        };
        let is_ours = named == number(&self.folder)?;
        if !is_ours && !mutant("daemon.state.writes-to-a-folder-that-it-has-not-locked") {
            return Err(io::Error::other("another folder has its name now"));
        }
        Ok(())
    }
}

impl Folder for HostFolder {
    fn names(&self) -> io::Result<Vec<String>> {
        let name = |entry: io::Result<fs::DirEntry>| {
            // Of a name that is not UTF-8, something that is no name of ours.
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

/// For its owner alone: names of tenants are in it.
fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

#[expect(clippy::disallowed_methods, reason = "no image is in this folder")]
fn sync(file: &File) -> io::Result<()> {
    file.sync_all()
}
