//! One disk being served: its stack, its socket, its queues.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use flowstone_block::{BlockingDisk, Error, Op, Result, SectorCount};
use flowstone_frontend::vhost_user::{DeviceOptions, DeviceShared, Server};
use rustix::event::{EventfdFlags, eventfd};
use tracing::{info, warn};

use crate::config::DiskConfig;
use crate::runner::{QueueTable, ThreadRunner};
use crate::stack::Stack;

/// A disk that is listening.
pub struct Disk {
    pub name: String,
    pub image_path: Option<PathBuf>,
    pub socket: PathBuf,
    pub stack: Stack,
    pub shared: Arc<DeviceShared>,
    pub queues: Arc<QueueTable>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Disk {
    /// Opens the disk and starts listening.
    pub fn start(config: DiskConfig) -> Result<Self> {
        let host = |error| Error::host(format!("disk {}", config.name), error, "free resources");
        let stack = Stack::build(&config)?;
        if let Some(image) = &stack.image {
            info!(disk = config.name, "serving {}", image.serving());
        }
        let shared = Arc::new(DeviceShared::new(stack.top.geometry().capacity));
        let queues = Arc::new(QueueTable::default());
        let runner = ThreadRunner::new(
            config.name.clone(),
            Arc::clone(&stack.top),
            config.poll,
            config.cpus.clone(),
            Arc::clone(&queues),
        );
        let options = DeviceOptions {
            layer: Arc::clone(&stack.top),
            shared: Arc::clone(&shared),
            queues_max: config.queues,
            id: config.name.clone(),
        };
        let server = Server::bind(&config.socket, options, Box::new(runner))?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| host(e.into()))?);
        let thread_stop = Arc::clone(&stop);
        let thread = Builder::new()
            .name(config.name.clone())
            .stack_size(256 << 10)
            .spawn(move || server.run(&thread_stop))
            .map_err(host)?;
        Ok(Self {
            name: config.name,
            image_path: config.image,
            socket: config.socket,
            stack,
            shared,
            queues,
            stop,
            thread: Some(thread),
        })
    }

    /// Whether an operator means this disk by `name`: its name, or the path of its image.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.image_path.as_deref().is_some_and(|path| same(path, name))
    }

    /// Makes the disk larger while its guest runs. Returns whether a guest was told.
    pub fn grow(&self, bytes: u64) -> Result<bool> {
        let what = || format!("resize {}", self.name);
        let Some(image) = &self.stack.image else {
            return Err(Error::invalid(what(), "it has no image", "restart it with another size"));
        };
        let capacity = SectorCount::from_bytes(bytes).ok_or_else(|| {
            Error::invalid(what(), "the size is not a multiple of 512 bytes", "round it")
        })?;
        if capacity < image.geometry().capacity {
            let why = "a guest would lose the end of a disk it is using";
            return Err(Error::invalid(what(), why, "stop the daemon to shrink an image"));
        }
        image.resize(capacity)?;
        self.shared
            .announce_capacity(capacity)
            .map_err(|error| Error::host(what(), error, "reboot the guest to show it the size"))
    }

    /// Stops taking requests, waits for what is in flight, and makes all of it durable.
    pub fn stop(mut self) -> Result<()> {
        // The counter cannot be full after one write.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            warn!(disk = self.name, "the disk's control thread has panicked");
        }
        let flushed = BlockingDisk::new(&*self.stack.top)
            .and_then(|mut disk| disk.run(Op::Flush).map_err(Into::into));
        flushed.map_err(|error| {
            let what = format!("flush {}", self.name);
            Error::host(what, error, "check the host's disk: recent writes may be lost")
        })
    }
}

fn same(path: &Path, name: &str) -> bool {
    let canonical = |path: &Path| std::fs::canonicalize(path).ok();
    path == Path::new(name)
        || canonical(path).is_some_and(|mine| canonical(Path::new(name)) == Some(mine))
}
