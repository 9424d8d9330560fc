//! Opening and creating host files, with an error a person can act on for everything that is
//! wrong with a path.

use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use flowstone_block::{Error, ErrorKind, Result};
use rustix::fs::{OFlags, fcntl_setfl};

use crate::again::{DESCRIPTORS, open_again};
use crate::descriptor::{Descriptors, FileKind};
use crate::direct::DirectLimits;
use crate::file_system::may_ask_a_server;
use crate::holder::holder;
use crate::host_file::HostFile;
use crate::lock::{IN_USE, Sharing, lock};
use crate::page_cache::PageCache;
use crate::{Engine, EngineChoice, FileIo};

const LOCK_RETRY: Duration = Duration::from_millis(20);
/// The last requests of a killed daemon may take so long, on a device that is slow or has much to
/// do.
const LAST_REQUESTS: Duration = Duration::from_secs(60);
/// Looks whether they are done. Each looks at all processes, too.
const LAST_REQUESTS_RETRY: Duration = Duration::from_millis(500);

/// What the opener is going to do with the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read it, even while another process writes it. Takes no lock.
    Inspect,
    /// Read it; no other process may write it meanwhile.
    Read,
    /// Read and write it; no other process may use it meanwhile.
    Write,
}

/// Whether to bypass the host's page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DirectChoice {
    /// Bypass it where the file system can
    #[default]
    Auto,
    /// Bypass it, or fail
    On,
    /// Use it
    Off,
}

/// How the files of images are opened.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct FileArgs {
    /// How requests reach the host file
    #[arg(long, value_enum, default_value_t)]
    pub engine: EngineChoice,
    /// Bypass the host's page cache
    #[arg(long, value_name = "CHOICE", value_enum, default_value_t)]
    pub direct: DirectChoice,
}

impl FileArgs {
    /// To open a file for `access`, with no patience.
    pub fn options(self, access: Access) -> OpenOptions {
        let Self { engine, direct } = self;
        OpenOptions { engine, direct, ..OpenOptions::new(access) }
    }
}

/// How long to wait for a lock that another process holds, and how to tell of it. The lock of a
/// killed daemon lives until its last request has left the kernel, which may be a moment after its
/// process.
#[derive(Clone, Copy, Debug)]
pub struct LockPatience {
    /// Then it is an error.
    pub time: Duration,
    /// Hears what is waited for, once.
    pub tell: fn(&str),
}

impl LockPatience {
    /// No waiting.
    pub const NONE: Self = Self { time: Duration::ZERO, tell: |_| {} };

    /// As long as the last requests of a killed daemon may take.
    pub const fn telling(tell: fn(&str)) -> Self {
        Self { time: Duration::from_secs(5), tell }
    }

    /// Locks a file. When no process is seen that has it locked, a killed one has had it, and the
    /// kernel is not done with its requests: these are waited for longer than a user.
    fn lock(self, file: &File, sharing: Sharing, name: &str, start: Instant) -> Result<()> {
        let attempt = || lock(file.as_fd(), sharing, name);
        let mut locked = self.wait(name, start, attempt);
        let mut told = false;
        while let Err(error) = &locked
            && error.kind() == ErrorKind::Busy
            && !self.time.is_zero()
        {
            if let Some(process) = holder(file) {
                let why = format!("another process is using this image: {process}");
                return Err(Error::busy(name, why, IN_USE));
            }
            if start.elapsed() > LAST_REQUESTS.max(self.time) {
                let why = "it is locked, and no process is seen here that has locked it";
                let advice = "look for one in containers and on other hosts, or wait for the \
                              host's device to end what a killed one has asked for";
                return Err(Error::busy(name, why, advice));
            }
            if !std::mem::replace(&mut told, true) {
                (self.tell)(&format!(
                    "{name} is locked, and no process has locked it: waiting up to {} s for the \
                     requests of a killed one",
                    LAST_REQUESTS.as_secs()
                ));
            }
            std::thread::sleep(LAST_REQUESTS_RETRY);
            locked = attempt();
        }
        locked
    }

    /// Tries again while another user has the file called `name`.
    fn wait<T>(self, name: &str, start: Instant, attempt: impl Fn() -> Result<T>) -> Result<T> {
        let mut told = false;
        loop {
            match attempt() {
                Err(error) if error.kind() == ErrorKind::Busy && start.elapsed() < self.time => {
                    if !std::mem::replace(&mut told, true) {
                        let time = self.time.as_secs();
                        (self.tell)(&format!(
                            "{name} is locked; waiting up to {time} s for its last user to let go"
                        ));
                    }
                    std::thread::sleep(LOCK_RETRY);
                }
                outcome => return outcome,
            }
        }
    }
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
    /// How long to wait for a lock that another process holds.
    pub lock_patience: LockPatience,
    /// Whether to heed requests that ask to be kept out of the page cache.
    pub dont_cache: bool,
}

impl OpenOptions {
    /// For `access`, with everything else chosen automatically, and no patience.
    pub fn new(access: Access) -> Self {
        Self {
            access,
            direct: DirectChoice::default(),
            engine: EngineChoice::default(),
            lock_patience: LockPatience::NONE,
            dont_cache: true,
        }
    }

    /// Opens the file at `path`, locks it, and picks its engine.
    pub fn open(self, path: &Path) -> Result<HostFile> {
        let name = path.display().to_string();
        // Opening a device and locking it share one patience.
        let (patience, start) = (self.lock_patience, Instant::now());
        let file = patience.wait(&name, start, || self.open_file(path, &name))?;
        let metadata = file.metadata().map_err(|error| explain(&name, error))?;
        let kind = kind_of(&metadata, &name)?;
        match self.access {
            Access::Inspect => {}
            Access::Read => patience.lock(&file, Sharing::Readers, &name, start)?,
            Access::Write => patience.lock(&file, Sharing::Exclusive, &name, start)?,
        }
        let direct = self.go_direct(&file, &name)?;
        let engine = self.engine.resolve(&file)?;
        // What lies in memory anyway cannot be kept out of it.
        let is_cached = direct.is_none() && engine != Engine::Inline;
        let page_cache = (is_cached && self.dont_cache).then(|| PageCache::of(&file));
        let sync = open_again(&file, path, Path::new(DESCRIPTORS))?;
        let mut files = Descriptors::with_sync(file, sync, direct, kind);
        files.page_cache = page_cache;
        files.asks_server = may_ask_a_server(&files.file);
        Ok(HostFile::new(files, engine))
    }

    fn open_file(self, path: &Path, name: &str) -> Result<File> {
        // A lock belongs to an inode, and a device may have several nodes, partitions and mounts:
        // only the kernel's exclusive open of the device itself (O_EXCL) excludes all of them. On
        // regular files the flag means nothing.
        let exclusive = if self.access == Access::Write { libc::O_EXCL } else { 0 };
        let opened = File::options()
            .read(true)
            .write(self.access == Access::Write)
            // A FIFO must not block us: kind_of refuses it, with words.
            .custom_flags(libc::O_NONBLOCK | exclusive)
            .open(path);
        opened.map_err(|error| match error.kind() {
            io::ErrorKind::ResourceBusy => Error::busy(
                name,
                "the device is mounted, part of another device, or served already",
                "unmount it, or stop what uses it (lsblk shows what is on it)",
            ),
            _ => explain(name, error),
        })
    }

    /// Sets the flags that the file is used with from now on. `O_NONBLOCK` must go: on a device
    /// that cannot tell whether it would block, requests would fail for ever.
    fn go_direct(self, file: &File, name: &str) -> Result<Option<DirectLimits>> {
        let limits = match self.direct {
            DirectChoice::Off => None,
            DirectChoice::Auto => DirectLimits::of(file).filter(DirectLimits::take_any_sector),
            DirectChoice::On => DirectLimits::of(file),
        };
        let set = |flags| fcntl_setfl(file, flags);
        let usable = limits.filter(|_| set(OFlags::DIRECT).is_ok());
        match (usable, self.direct) {
            (Some(limits), _) => Ok(Some(limits)),
            (None, DirectChoice::On) => Err(Error::unsupported(
                name,
                "its file system has no direct I/O",
                "use --direct auto or --direct off",
            )),
            (None, _) => match set(OFlags::empty()) {
                Ok(()) => Ok(None),
                Err(errno) => Err(Error::host(name, errno, "check the host's file system")),
            },
        }
    }
}

/// How an image gets its host file: [`open_host_file`], but for tests that put something between
/// the two.
pub type FileOpener = fn(&Path, OpenOptions) -> Result<Box<dyn FileIo>>;

/// Puts something between an image and its files, backing files included.
#[derive(Clone)]
pub struct FileWrapper(Arc<Wrap>);

type Wrap = dyn Fn(Box<dyn FileIo>) -> Box<dyn FileIo> + Send + Sync;

impl FileWrapper {
    /// What `wrap` makes of a file.
    pub fn new(wrap: impl Fn(Box<dyn FileIo>) -> Box<dyn FileIo> + Send + Sync + 'static) -> Self {
        Self(Arc::new(wrap))
    }

    /// Makes it of `file`.
    pub fn wrap(&self, file: Box<dyn FileIo>) -> Box<dyn FileIo> {
        (self.0)(file)
    }
}

impl Default for FileWrapper {
    /// Nothing.
    fn default() -> Self {
        Self::new(|file| file)
    }
}

impl fmt::Debug for FileWrapper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileWrapper")
    }
}

/// Opens the file at `path` as it is.
pub fn open_host_file(path: &Path, options: OpenOptions) -> Result<Box<dyn FileIo>> {
    Ok(Box::new(options.open(path)?))
}

/// Creates a new file of `bytes` bytes that occupies no space yet.
#[expect(clippy::disallowed_methods, reason = "nobody else has the file")]
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
