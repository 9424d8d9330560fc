//! Protocol with the guests' file caches, each at the other end of a virtio port: their reports,
//! and the memory they are granted (S5.4). The lines are those of [`flowstone_memory::message`].
//!
//! Each guest has a thread. Input is limited in bytes, lines and time; output that a guest does not
//! read is dropped.

use std::io::{self, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use flowstone_block::{Error, LogBudget, Peer, Result, mutated};
use flowstone_host::{BoundSocket, SocketAccess, bind_socket, peer_of};
use flowstone_memory::message::{
    self, Grant, LEASE, LINE_BYTES_MAX, Lines, Refusal, Report, ToGuest, ToHost,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use tracing::warn;

/// Simultaneous connections, a thread each; further ones are refused.
const GUESTS_MAX: usize = 256;
/// Connections of one process. A VM may have several ports, and the host does not know which one
/// its file cache uses.
const PORTS_MAX: usize = 4;
const STACK_BYTES: usize = 128 << 10;
/// Minimum mean interval between a guest's lines; it may send as many at once as fit in [`BURST`].
const LINE_EVERY: Duration = Duration::from_millis(50);
const BURST: Duration = Duration::from_secs(1);
/// Reason for ignoring a guest's reports.
const TAKEN: &str = "another port of this VM has its place";
/// Pause after a failed accept: missing resources (descriptors) take time to be freed.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// The connections of all guests. Dropping it removes the socket.
pub struct GuestAgents {
    guests: Arc<Guests>,
    _socket: BoundSocket,
}

/// The last report of a guest's file cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Heard {
    /// The process that runs the guest.
    pub peer: Peer,
    /// The report.
    pub report: Report,
    /// Age of the report.
    pub age: Duration,
    /// Granted bytes, if any.
    pub grant: Option<u64>,
}

#[derive(Default)]
struct Guests {
    table: Mutex<Vec<Guest>>,
    /// Limits log lines: a guest that is disconnected reconnects each second.
    trouble: Mutex<LogBudget>,
}

struct Guest {
    stream: Arc<UnixStream>,
    peer: Peer,
    /// The last report, of the connection that speaks for its VM.
    heard: Option<(Instant, Report)>,
    /// When it was last told that another connection speaks for the VM.
    refused: Option<Instant>,
    grant: Option<(Instant, u64)>,
    /// Unsent rest of a line.
    unsent: Vec<u8>,
}

impl GuestAgents {
    /// Listens at `path`, for peers allowed by `access`.
    pub fn start(path: &Path, access: SocketAccess) -> Result<Self> {
        let socket = bind_socket("guest agent socket", path, access)?;
        let guests = Arc::<Guests>::default();
        let theirs = Arc::clone(&guests);
        let listener = socket.listener().try_clone();
        listener
            .and_then(|listener| {
                let accept = move || accept(&listener, &theirs);
                Builder::new().name("agents".into()).stack_size(STACK_BYTES).spawn(accept)
            })
            .map_err(|error| {
                let name = format!("guest agent socket {}", path.display());
                Error::host(name, error, "free resources")
            })?;
        Ok(Self { guests, _socket: socket })
    }

    /// Returns the last report of each guest.
    pub fn heard(&self) -> Vec<Heard> {
        let heard = |guest: &Guest| {
            let (at, report) = guest.heard.as_ref()?;
            let grant = guest.grant.map(|(_, bytes)| bytes);
            Some(Heard { peer: guest.peer, report: report.clone(), age: at.elapsed(), grant })
        };
        self.guests.lock().iter().filter_map(heard).collect()
    }

    /// Sends a grant to a guest, if it is new or a third of the lease has passed.
    pub fn grant(&self, peer: Peer, bytes: u64, reason: &str) {
        let mut guests = self.guests.lock();
        let is_it = |guest: &&mut Guest| guest.peer == peer && guest.heard.is_some();
        let Some(guest) = guests.iter_mut().find(is_it) else { return };
        let holds = |(at, granted): (Instant, u64)| granted == bytes && at.elapsed() < LEASE / 3;
        if guest.grant.is_some_and(holds) {
            return;
        }
        let grant = Grant { bytes, lease_s: LEASE.as_secs(), reason: reason.to_owned() };
        if guest.send(&message::line(&ToGuest::Grant(grant))) {
            guest.grant = Some((Instant::now(), bytes));
        }
    }
}

impl Guests {
    fn lock(&self) -> MutexGuard<'_, Vec<Guest>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection.
    fn add(&self, stream: UnixStream) -> io::Result<Arc<UnixStream>> {
        let Some(peer) = peer_of(&stream) else {
            return Err(io::Error::other("its process is in another PID namespace"));
        };
        let mut guests = self.lock();
        let is_its = |guest: &&Guest| guest.peer == peer && !guest.is_gone();
        if guests.iter().filter(is_its).count() >= PORTS_MAX {
            return Err(io::Error::other(format!("its process has {PORTS_MAX} others open")));
        }
        if guests.len() >= GUESTS_MAX {
            return Err(io::Error::other(format!("{GUESTS_MAX} are being served")));
        }
        let stream = Arc::new(stream);
        let to_listen = Arc::clone(&stream);
        guests.push(Guest {
            stream,
            peer,
            heard: None,
            refused: None,
            grant: None,
            unsent: Vec::new(),
        });
        Ok(to_listen)
    }

    fn complain(&self, error: &io::Error, what: &str) {
        let unsaid = self.trouble.lock().unwrap_or_else(PoisonError::into_inner).spend();
        if let Some(unsaid) = unsaid {
            warn!(%error, unsaid, "{what}");
        }
    }

    fn remove(&self, stream: &Arc<UnixStream>) {
        self.lock().retain(|guest| !Arc::ptr_eq(&guest.stream, stream));
    }

    /// Stores a report. One connection speaks for each VM: the first one that reports, until it
    /// closes or is silent for a lease. The others stay open and are told so: QEMU would reconnect
    /// a closed one within a second.
    fn heard(&self, stream: &Arc<UnixStream>, report: Report) {
        let mut guests = self.lock();
        let is_it = |guest: &Guest| Arc::ptr_eq(&guest.stream, stream);
        let Some(peer) = guests.iter().find(|it| is_it(it)).map(|it| it.peer) else { return };
        let is_other = |guest: &Guest| guest.peer == peer && !is_it(guest);
        let is_taken = guests.iter().any(|guest| is_other(guest) && guest.has_place());
        let is_taken = mutated("resources.agent.last-one-has-the-place", is_taken, false);
        if is_taken {
            let refused = guests.iter_mut().find(|it| is_it(it)).is_some_and(Guest::refuse);
            drop(guests);
            if refused {
                self.complain(&io::Error::other(TAKEN), "a guest's file cache is not heard");
            }
            return;
        }
        guests.iter_mut().filter(|it| is_other(it)).for_each(Guest::leave_place);
        if let Some(guest) = guests.iter_mut().find(|it| is_it(it)) {
            (guest.heard, guest.refused) = (Some((Instant::now(), report)), None);
        }
    }

    /// Reads from a guest until it disconnects or violates the protocol.
    fn listen(&self, stream: &Arc<UnixStream>) -> io::Result<()> {
        let (mut lines, mut buffer) = (Lines::default(), [0; LINE_BYTES_MAX]);
        let mut budget = LineBudget { paid: Instant::now() };
        loop {
            let bytes = match (&**stream).read(&mut buffer) {
                Ok(0) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            let mut said = Vec::new();
            lines
                .push(&buffer[..bytes], |line| said.push(serde_json::from_slice(line)))
                .map_err(|_| io::Error::other("a line is too long"))?;
            let wait = budget.spend(said.len() as u32, Instant::now());
            for message in said {
                let ToHost::Report(report) = message?;
                self.heard(stream, report);
            }
            // Input that arrives meanwhile stays in the kernel.
            if goes_within(stream, wait)? {
                return Ok(());
            }
        }
    }
}

/// Waits for `wait`, or until the guest disconnects or is disconnected. Returns whether it has.
fn goes_within(stream: &UnixStream, wait: Duration) -> io::Result<bool> {
    let time = Timespec::try_from(wait).map_err(io::Error::other)?;
    match poll(&mut [PollFd::new(stream, PollFlags::RDHUP)], Some(&time)) {
        Err(Errno::INTR) => Ok(false),
        gone => Ok(gone? > 0),
    }
}

/// Removes a guest when its thread ends, also on a panic.
struct Conversation<'a> {
    guests: &'a Guests,
    stream: &'a Arc<UnixStream>,
}

impl Drop for Conversation<'_> {
    fn drop(&mut self) {
        self.guests.remove(self.stream);
    }
}

/// Rate limit of a guest's lines.
struct LineBudget {
    /// Time until which its lines are paid for.
    paid: Instant,
}

impl LineBudget {
    /// Charges `lines` lines. Returns for how long nothing more may be read from the guest.
    fn spend(&mut self, lines: u32, now: Instant) -> Duration {
        self.paid = self.paid.max(now) + LINE_EVERY * lines;
        let is_free = mutated("resources.agent.hears-any-number-of-lines", false, true);
        if is_free {
            return Duration::ZERO;
        }
        self.paid.saturating_duration_since(now).saturating_sub(BURST)
    }
}

impl Guest {
    /// Returns whether it speaks for its VM.
    fn has_place(&self) -> bool {
        self.heard.as_ref().is_some_and(|(at, _)| at.elapsed() < LEASE) && !self.is_gone()
    }

    /// Records that another connection speaks for the VM.
    fn leave_place(&mut self) {
        (self.heard, self.grant) = (None, None);
    }

    /// Tells it, at intervals, that another connection speaks for the VM. Returns whether this is
    /// the first time.
    fn refuse(&mut self) -> bool {
        self.leave_place();
        let is_first = self.refused.is_none();
        if self.refused.is_none_or(|at| at.elapsed() >= LEASE / 3) {
            self.refused = Some(Instant::now());
            let refusal = Refusal { reason: TAKEN.to_owned() };
            self.send(&message::line(&ToGuest::Refused(refusal)));
        }
        is_first
    }

    /// Returns whether its end is closed, which its thread may not have noticed yet.
    fn is_gone(&self) -> bool {
        goes_within(&self.stream, Duration::ZERO).unwrap_or(true)
    }

    /// Sends a line, if there is room for its beginning. A line begun before is completed first.
    fn send(&mut self, line: &[u8]) -> bool {
        if !self.flush() {
            return false;
        }
        self.unsent.extend_from_slice(line);
        self.flush() || self.unsent.len() < line.len() || {
            self.unsent.clear();
            false
        }
    }

    /// Sends the unsent rest, as far as there is room. Returns whether all is sent.
    fn flush(&mut self) -> bool {
        while !self.unsent.is_empty() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&*self.stream, &self.unsent, flags) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(_) => return false,
            }
        }
        true
    }
}

fn accept(listener: &UnixListener, guests: &Arc<Guests>) {
    for stream in listener.incoming() {
        let served = stream.and_then(|stream| {
            let stream = guests.add(stream)?;
            let (theirs, its) = (Arc::clone(guests), Arc::clone(&stream));
            let listen = move || {
                let conversation = Conversation { guests: &theirs, stream: &its };
                if let Err(error) = theirs.listen(conversation.stream) {
                    theirs.complain(&error, "hung up on the agent of a guest");
                }
            };
            let spawned = Builder::new().name("agent".into()).stack_size(STACK_BYTES).spawn(listen);
            spawned.inspect_err(|_| guests.remove(&stream)).map(drop)
        });
        if let Err(error) = served {
            guests.complain(&error, "cannot serve the agent of a guest");
            thread::sleep(ACCEPT_RETRY);
        }
    }
}

#[cfg(test)]
mod tests;
