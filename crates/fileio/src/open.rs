//! Opening and creating host files, with an actionable error for everything that can be wrong with
//! a path.

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
use flowstone_host::may_ask_a_server;
use rustix::fs::{Advice, OFlags, fadvise, fcntl_setfl};

use crate::again::{DESCRIPTORS, open_again};
use crate::descriptor::{Descriptors, FileKind};
use crate::direct::DirectLimits;
use crate::holder::holder;
use crate::host_file::HostFile;
use crate::lock::{Access, IN_USE, lock};
use crate::page_cache::PageCache;
use crate::{Engine, EngineChoice, FileIo, block_device};

const LOCK_RETRY: Duration = Duration::from_millis(20);
/// Most time that the last requests of a killed daemon may take, on a slow or busy device.
const LAST_REQUESTS: Duration = Duration::from_secs(60);
/// Interval of checks whether they are done. Each also scans all processes.
const LAST_REQUESTS_RETRY: Duration = Duration::from_millis(500);

/// The operator's choice between direct I/O and the host's page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DirectChoice {
    /// Direct I/O where the file system supports it
    #[default]
    Auto,
    /// Direct I/O, or fail
    On,
    /// The host's page cache
    Off,
}

/// Options of opening the files of images.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct FileArgs {
    /// I/O engine for the host file
    #[arg(long, value_enum, default_value_t)]
    pub engine: EngineChoice,
    /// Bypass the host's page cache
    #[arg(long, value_name = "CHOICE", value_enum, default_value_t)]
    pub direct: DirectChoice,
}

impl FileArgs {
    /// Returns options to open a file for `access` without waiting for locks.
    pub fn options(self, access: Access) -> OpenOptions {
        let Self { engine, direct } = self;
        OpenOptions { engine, direct, ..OpenOptions::new(access) }
    }
}

/// Patience for a lock that another process holds, and how to report the wait. The lock of a killed
/// daemon lives until its last request has left the kernel, which may be a moment after its
/// process.
#[derive(Clone, Copy, Debug)]
pub struct LockPatience {
    /// Time until the wait fails.
    pub time: Duration,
    /// Called once, with the reason of the wait.
    pub tell: fn(&str),
}

impl LockPatience {
    /// Does not wait.
    pub const NONE: Self = Self { time: Duration::ZERO, tell: |_| {} };

    /// Waits as long as the last requests of a killed daemon usually take.
    pub const fn telling(tell: fn(&str)) -> Self {
        Self { time: Duration::from_secs(5), tell }
    }

    /// Locks a file. If no process is seen that has it locked, it was locked by a killed one whose
    /// requests the kernel is still processing: that is waited for longer than a live user.
    fn lock(self, file: &File, access: Access, name: &str, start: Instant) -> Result<()> {
        let attempt = || lock(file.as_fd(), access, name);
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

    /// Retries while another user has the file called `name`.
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

/// Options to open a host file.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// The kind of access.
    pub access: Access,
    /// The choice between direct I/O and the page cache.
    pub direct: DirectChoice,
    /// The engine that serves it.
    pub engine: EngineChoice,
    /// Patience for a lock that another process holds.
    pub lock_patience: LockPatience,
    /// Requests that ask to be kept out of the page cache are honoured.
    pub dont_cache: bool,
}

impl OpenOptions {
    /// Options for `access`, with everything else chosen automatically, and without waiting for
    /// locks.
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
        // Opening and locking a device share one time limit.
        let (patience, start) = (self.lock_patience, Instant::now());
        let file = patience.wait(&name, start, || self.open_file(path, &name))?;
        let metadata = file.metadata().map_err(|error| explain(&name, error))?;
        let kind = kind_of(&metadata, &name)?;
        patience.lock(&file, self.access, &name, start)?;
        let direct = self.go_direct(&file, &name)?;
        let engine = self.engine.resolve(&file)?;
        // Files in memory cannot be kept out of the page cache.
        let is_cached = direct.is_none() && engine != Engine::Inline;
        let page_cache = (is_cached && self.dont_cache).then(|| PageCache::of(&file));
        let sync = open_again(&file, path, Path::new(DESCRIPTORS))?;
        if page_cache.is_some() {
            // Without effect for syncs.
            let _ = fadvise(&sync, 0, None, Advice::Random);
        }
        let mut files = Descriptors::with_sync(file, sync, direct, kind);
        files.page_cache = page_cache;
        files.asks_server = may_ask_a_server(&files.file);
        // Only a ring names a stream, and only for what does not go through the page cache.
        if kind == FileKind::BlockDevice && engine == Engine::Uring && files.direct.is_some() {
            files.write_streams = block_device::write_streams(&files.file);
        }
        Ok(HostFile::new(files, engine))
    }

    fn open_file(self, path: &Path, name: &str) -> Result<File> {
        // A lock belongs to an inode, and a device may have several nodes, partitions and mounts:
        // only the kernel's exclusive open of the device itself (O_EXCL) excludes all of them. On
        // regular files the flag has no effect.
        let exclusive = if self.access == Access::Write { libc::O_EXCL } else { 0 };
        let opened = File::options()
            .read(true)
            .write(self.access == Access::Write)
            // A FIFO must not block; kind_of refuses it with a message.
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

    /// Sets the flags for use. `O_NONBLOCK` must be cleared: on a device that cannot tell whether
    /// it would block, requests would fail forever.
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

/// Opens the host file of an image: [`open_host_file`], except in tests that put a wrapper between
/// image and file.
pub type FileOpener = fn(&Path, OpenOptions) -> Result<Box<dyn FileIo>>;

/// Wraps the files of an image, backing files included.
#[derive(Clone)]
pub struct FileWrapper(Arc<Wrap>);

type Wrap = dyn Fn(Box<dyn FileIo>) -> Box<dyn FileIo> + Send + Sync;

impl FileWrapper {
    /// Makes a wrapper of the function `wrap`.
    pub fn new(wrap: impl Fn(Box<dyn FileIo>) -> Box<dyn FileIo> + Send + Sync + 'static) -> Self {
        Self(Arc::new(wrap))
    }

    /// Wraps `file`.
    pub fn wrap(&self, file: Box<dyn FileIo>) -> Box<dyn FileIo> {
        (self.0)(file)
    }
}

impl Default for FileWrapper {
    /// Wraps nothing.
    fn default() -> Self {
        Self::new(|file| file)
    }
}

impl fmt::Debug for FileWrapper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileWrapper")
    }
}

/// Opens the file at `path` without a wrapper.
pub fn open_host_file(path: &Path, options: OpenOptions) -> Result<Box<dyn FileIo>> {
    Ok(Box::new(options.open(path)?))
}

/// Creates a sparse file of `bytes` bytes.
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
        // An unfinished file must not look like an image.
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
