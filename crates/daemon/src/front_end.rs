//! The front end of a disk: a socket, and the thread that serves its monitor. The only file that
//! names a front end.

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use flowstone_block::{Error, QueueRunner, Result, lock};
use flowstone_frontend::vhost_user::{
    self, DeviceOptions, DeviceShared, HangUp, Server, VirtQueue,
};
use rustix::event::{EventfdFlags, eventfd};
use tracing::warn;

use crate::SocketAccess;

/// State of a disk shared by the front end and the control plane.
pub type Device = DeviceShared;

/// A monitor has connected or disconnected.
pub type GuestChange<'a> = vhost_user::MonitorChange<'a>;

/// Settings of a front end for a disk.
pub type FrontEndOptions = DeviceOptions;

/// Reserves address space for the guests of `count` disks, with up to `guest_bytes_max` of memory
/// each.
pub fn expect_disks(count: usize, guest_bytes_max: u64) {
    vhost_user::expect_disks(count, guest_bytes_max);
}

/// The front end of a listening disk.
pub struct FrontEnd {
    stop: Arc<OwnedFd>,
    hang_up: HangUp,
    thread: Mutex<Option<Serving>>,
}

/// The thread that serves a disk's monitors.
struct Serving {
    thread: JoinHandle<()>,
    /// Disconnected when the thread is about to end.
    end: Receiver<Infallible>,
}

impl FrontEnd {
    /// Starts listening at `socket` for the disk called `name`; `runner` runs the queues.
    pub fn start(
        name: &str,
        socket: &Path,
        access: SocketAccess,
        options: FrontEndOptions,
        runner: impl QueueRunner<VirtQueue> + 'static,
    ) -> Result<Self> {
        let host = |error| Error::host(format!("disk {name}"), error, "free resources");
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| host(e.into()))?);
        let server = Server::bind(socket, access, options, Box::new(runner))?;
        let hang_up = server.hang_up();
        let (thread_stop, (running, end)) = (Arc::clone(&stop), mpsc::channel());
        let serve = move || {
            let _running: Sender<Infallible> = running;
            server.run(&thread_stop);
        };
        let thread = Builder::new().name(name.into()).stack_size(256 << 10).spawn(serve);
        let thread = thread.map_err(host)?;
        Ok(Self { stop, hang_up, thread: Mutex::new(Some(Serving { thread, end })) })
    }

    /// Tells it to end; does not wait.
    pub fn begin_stop(&self) {
        // The counter cannot be full after one write.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
    }

    /// After [`begin_stop`](Self::begin_stop): waits for requests in flight. A monitor that is
    /// still connected at `deadline` is disconnected. `disk` is the disk's name.
    pub fn stop(&self, disk: &str, deadline: Instant) {
        let serving = lock(&self.thread).take();
        let Some(Serving { thread, end }) = serving else { return };
        let left = deadline.saturating_duration_since(Instant::now());
        if end.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
            // The thread may be reading a message that never ends, or waiting for a slow host. Then
            // the guest misses the last interrupts, which a restarted queue repeats.
            warn!(disk, "hanging up on a monitor that does not let go");
            self.hang_up.now();
        }
        if thread.join().is_err() {
            warn!(disk, "the disk's control thread has panicked");
        }
    }
}
