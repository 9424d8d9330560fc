//! The unix socket of a disk: serves one monitor at a time.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flowstone_block::{Errno, QueueRunner, Result, lock, mutated};
use flowstone_host::{BoundSocket, SocketAccess, bind_socket, peer_of};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tracing::{debug, info, warn};
use vhost::vhost_user::BackendReqHandler;

use super::device::{Device, DeviceOptions};
use super::queue::VirtQueue;
use super::shared::DeviceShared;

/// Time after which a monitor that does not read our answers is disconnected. Room is awaited
/// before each message: crate `vhost` retries forever to send an answer, whatever the socket's own
/// timeout is.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay after a failed accept: the missing descriptors take time to be freed.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A listening socket and the device behind it.
pub struct Server {
    socket: BoundSocket,
    device: Arc<Mutex<Device>>,
    shared: Arc<DeviceShared>,
    connection: HangUp,
    answer_timeout: Duration,
}

/// The current connection, so that another thread can end it.
#[derive(Clone, Default)]
pub struct HangUp(Arc<Mutex<Option<UnixStream>>>);

impl HangUp {
    /// Ends the connection in any state: a monitor that has sent half a message, or reads no
    /// answers, must not keep the daemon from stopping.
    pub fn now(&self) {
        if let Some(stream) = &*lock(&self.0) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Server {
    /// Binds the socket with the permissions of `access`.
    pub fn bind(
        path: &Path,
        access: SocketAccess,
        options: DeviceOptions,
        runner: Box<dyn QueueRunner<VirtQueue>>,
    ) -> Result<Self> {
        let socket = bind_socket("socket", path, access)?;
        let shared = Arc::clone(&options.shared);
        let device = Arc::new(Mutex::new(Device::new(options, runner)));
        let (connection, answer_timeout) = (HangUp::default(), ANSWER_TIMEOUT);
        Ok(Self { socket, device, shared, connection, answer_timeout })
    }

    /// Returns a handle that ends the connection from another thread.
    pub fn hang_up(&self) -> HangUp {
        self.connection.clone()
    }

    /// Returns the socket's path.
    pub fn path(&self) -> &Path {
        self.socket.path()
    }

    /// Serves monitors, one after the other, until `stop` becomes readable; then waits for the
    /// requests in flight and removes the socket.
    pub fn run(self, stop: &OwnedFd) {
        let listener = self.socket.listener();
        while wait_for(listener.as_fd(), stop) {
            match listener.accept() {
                Ok((stream, _)) => self.serve(stream, stop),
                Err(error) => {
                    if let Some(unsaid) = self.shared.may_log() {
                        warn!(path = %self.path().display(), %error, unsaid, "cannot accept");
                    }
                    std::thread::sleep(ACCEPT_RETRY);
                }
            }
        }
    }

    fn serve(&self, stream: UnixStream, stop: &OwnedFd) {
        let path = self.path().display();
        if let Some(unsaid) = self.shared.may_log() {
            info!(%path, unsaid, "monitor connected");
        }
        let outcome = self.converse(stream, stop);
        let Some(unsaid) = self.shared.may_log() else { return };
        match outcome {
            Ok(()) => info!(%path, unsaid, "monitor gone"),
            Err(error) => warn!(%path, %error, unsaid, "monitor dropped"),
        }
    }

    /// Serves one connection until it ends, with the socket or protocol error that ended it, if
    /// any.
    fn converse(
        &self,
        stream: UnixStream,
        stop: &OwnedFd,
    ) -> std::result::Result<(), Box<dyn std::error::Error>> {
        let watch = stream.try_clone()?;
        *lock(&self.connection.0) = Some(stream.try_clone()?);
        self.shared.connected(peer_of(&stream));
        let mut handler = BackendReqHandler::from_stream(stream, Arc::clone(&self.device));
        let outcome = self.answer_messages(&watch, &mut handler, stop).map_err(|error| {
            // Tested before descriptors are closed.
            let too_few = is_out_of_descriptors(&error) || watch.try_clone().is_err();
            if too_few { limit_of_descriptors() } else { error.into() }
        });
        // Before the connection closes: a monitor that sees it closed forwards no more interrupts,
        // and stopping the queues publishes the last completions to the guest.
        lock(&self.device).disconnect();
        match &outcome {
            Ok(()) if is_readable(stop) => self.shared.disconnected("the disk stops"),
            Ok(()) => self.shared.disconnected("it hung up"),
            Err(error) => self.shared.disconnected(&error.to_string()),
        }
        *lock(&self.connection.0) = None;
        outcome
    }

    fn answer_messages(
        &self,
        watch: &UnixStream,
        handler: &mut BackendReqHandler<Mutex<Device>>,
        stop: &OwnedFd,
    ) -> vhost::vhost_user::Result<()> {
        use vhost::vhost_user::Error::{Disconnected, InvalidOperation};
        while wait_for(watch.as_fd(), stop) {
            match wait_for_room(watch.as_fd(), stop, self.answer_timeout) {
                Room::Free => {}
                Room::Stops => break,
                Room::None => return Err(reads_no_answers()),
            }
            if let Some(channel) = peek_backend_channel(watch.as_fd()) {
                lock(&self.device).set_monitor(channel);
            }
            match handler.handle_request() {
                Ok(()) => {}
                Err(Disconnected) => break,
                // The monitor has been answered (if it asked for that); it may try something else.
                Err(InvalidOperation(why)) => {
                    debug!(path = %self.path().display(), why, "request refused");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Returns whether a queue did not start for lack of descriptors.
fn is_out_of_descriptors(error: &vhost::vhost_user::Error) -> bool {
    match error {
        vhost::vhost_user::Error::ReqHandlerError(why) => {
            Errno::from_io_error(why) == Some(Errno::MFILE)
        }
        _ => false,
    }
}

/// Names the limit and its value, which the kernel's message does not. (A message whose descriptors
/// did not fit does not even give an error of its own.)
fn limit_of_descriptors() -> Box<dyn std::error::Error> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let limit = limit.map_or_else(|| "none".into(), |limit| limit.to_string());
    format!(
        "too many open files: the limit (RLIMIT_NOFILE) is {limit}; raise it, or give the guest \
         fewer queues"
    )
    .into()
}

fn reads_no_answers() -> vhost::vhost_user::Error {
    let why = "it has not read our answers for too long";
    vhost::vhost_user::Error::SocketBroken(io::Error::new(io::ErrorKind::TimedOut, why))
}

/// Room for an answer in a monitor's socket.
enum Room {
    Free,
    None,
    /// The daemon is stopping.
    Stops,
}

/// Waits for room in the socket, for `patience` at most. The kernel reports room when three
/// quarters are free, far more than any answer takes.
fn wait_for_room(fd: BorrowedFd<'_>, stop: &OwnedFd, patience: Duration) -> Room {
    let waits = mutated("frontend.server.answers-without-room", true, false);
    if !waits {
        return Room::Free;
    }
    let deadline = Instant::now() + patience;
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::OUT), PollFd::new(stop, PollFlags::IN)];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let polled = poll(&mut fds, Timespec::try_from(left).ok().as_ref());
        if fds[1].revents().contains(PollFlags::IN) {
            return Room::Stops;
        }
        match polled {
            Ok(1..) => return Room::Free,
            _ if left.is_zero() => return Room::None,
            _ => {}
        }
    }
}

/// Waits until `fd` is readable; returns `false` if `stop` is.
fn wait_for(fd: BorrowedFd<'_>, stop: &OwnedFd) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
    loop {
        let polled = poll(&mut fds, None);
        if fds[1].revents().contains(PollFlags::IN) {
            return false;
        }
        if polled.is_ok_and(|ready| ready > 0) {
            return true;
        }
    }
}

fn is_readable(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Returns a duplicate of the descriptor of a waiting SET_BACKEND_REQ_FD message.
///
/// Crate `vhost` wraps the channel in a type that cannot announce configuration changes, so the
/// message is peeked at before the crate reads it.
fn peek_backend_channel(socket: BorrowedFd<'_>) -> Option<UnixStream> {
    const SET_BACKEND_REQ_FD: u32 = 21;
    let mut header = [0; 12];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::PEEK | RecvFlags::CMSG_CLOEXEC;
    let received =
        recvmsg(socket, &mut [IoSliceMut::new(&mut header)], &mut ancillary, flags).ok()?;
    let request = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
    if received.bytes < 4 || request != SET_BACKEND_REQ_FD {
        return None;
    }
    ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next().map(UnixStream::from),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
