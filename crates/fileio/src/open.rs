//! Opening and creating host files, with an error a person can act on for everything that is
//! wrong with a path.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use flowstone_block::{Error, Result};

use crate::EngineChoice;
use crate::direct::DirectLimits;
use crate::host_file::{Descriptors, FileKind, HostFile};
use crate::lock::{Sharing, lock};

/// What the opener is going to do with the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Look at it, even while somebody else writes it. Takes no lock.
    Inspect,
    /// Read it; nobody may write it meanwhile.
    Read,
    /// Read and write it; nobody else may use it meanwhile.
    Write,
}

/// Whether to bypass the host's page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectChoice {
    /// Bypass it where the file system can.
    #[default]
    Auto,
    /// Bypass it, or fail.
    On,
    /// Use it.
    Off,
}

/// How to open a host file.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// What it is opened for.
    pub access: Access,
    /// Whether to bypass the page cache.
    pub direct: DirectChoice,
    /// Which engine serves it.
    pub engine: EngineChoice,
}

impl OpenOptions {
    /// For `access`, with everything else chosen automatically.
    pub fn new(access: Access) -> Self {
        Self { access, direct: DirectChoice::default(), engine: EngineChoice::default() }
    }

    /// Opens the file at `path`, locks it, and picks its engine.
    pub fn open(self, path: &Path) -> Result<HostFile> {
        let name = path.display().to_string();
        let buffered = self.open_descriptor(path, 0).map_err(|error| explain(&name, error))?;
        let metadata = buffered.metadata().map_err(|error| explain(&name, error))?;
        let kind = kind_of(&metadata, &name)?;
        let lock = self.open_locked(path, &name)?;
        let direct = self.open_direct(path, &name)?;
        let engine = self.engine.resolve(&buffered)?;
        Ok(HostFile::new(Descriptors { buffered, direct, kind, _lock: lock }, engine))
    }

    /// A descriptor that holds the lock and does nothing else: one that an io_uring knows of lives
    /// on for a while when its process is killed, and would keep the next daemon out.
    fn open_locked(self, path: &Path, name: &str) -> Result<Option<File>> {
        let sharing = match self.access {
            Access::Inspect => return Ok(None),
            Access::Read => Sharing::Readers,
            Access::Write => Sharing::Exclusive,
        };
        let file = self.open_descriptor(path, 0).map_err(|error| explain(name, error))?;
        lock(file.as_fd(), sharing, name)?;
        Ok(Some(file))
    }

    fn open_descriptor(self, path: &Path, extra: i32) -> io::Result<File> {
        File::options()
            .read(true)
            .write(self.access == Access::Write)
            // A FIFO must not block us: kind_of refuses it, with words.
            .custom_flags(extra | libc::O_CLOEXEC | libc::O_NONBLOCK)
            .open(path)
    }

    fn open_direct(self, path: &Path, name: &str) -> Result<Option<(File, DirectLimits)>> {
        if self.direct == DirectChoice::Off {
            return Ok(None);
        }
        let opened = self.open_descriptor(path, libc::O_DIRECT).ok();
        let usable = opened.and_then(|file| DirectLimits::of(&file).map(|limits| (file, limits)));
        if usable.is_none() && self.direct == DirectChoice::On {
            return Err(Error::invalid(
                name,
                "its file system has no direct I/O",
                "use --direct auto or --direct off",
            ));
        }
        Ok(usable)
    }
}

/// Creates a new file of `bytes` bytes that occupies no space yet.
pub fn create_sparse(path: &Path, bytes: u64) -> Result<()> {
    let name = format!("create {}", path.display());
    let file = File::options()
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(|error| explain(&name, error))?;
    let made = file.set_len(bytes).and_then(|()| file.sync_all());
    made.map_err(|error| {
        // What we made and could not finish must not look like an image.
        let _ = std::fs::remove_file(path);
        Error::host(name, error, "choose a smaller --size or another file system")
    })
}

fn kind_of(metadata: &Metadata, name: &str) -> Result<FileKind> {
    let file_type = metadata.file_type();
    if file_type.is_file() {
        Ok(FileKind::Regular)
    } else if file_type.is_block_device() {
        Ok(FileKind::BlockDevice)
    } else {
        let what = if file_type.is_dir() { "it is a directory" } else { "it is a special file" };
        Err(Error::invalid(name, what, "give a regular file or a block device"))
    }
}

fn explain(name: &str, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::NotFound => Error::invalid(
            name,
            "no such file or directory",
            "check the path, or make an image with `flowstone create`",
        ),
        io::ErrorKind::PermissionDenied => Error::invalid(
            name,
            "permission denied",
            "run as a user who may open it, or serve it with --readonly",
        ),
        io::ErrorKind::AlreadyExists => Error::invalid(
            name,
            "the file exists already",
            "choose another name, or remove the file first",
        ),
        io::ErrorKind::IsADirectory => {
            Error::invalid(name, "it is a directory", "give a regular file or a block device")
        }
        _ => Error::host(name, error, "check the path and its file system"),
    }
}
