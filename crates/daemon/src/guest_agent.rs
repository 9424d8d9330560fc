//! The file caches of guests, each at the other end of a virtio port: what they report, and what
//! they are granted (S5.4). The lines are those of [`flowstone_memory::message`].
//!
//! A thread listens to each guest. What a guest sends is bounded in bytes, lines and time; what it
//! does not read is not kept.

use std::io::{self, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use flowstone_block::{Error, LogBudget, Peer, Result, mutant};
use flowstone_host::{BoundSocket, SocketAccess, bind_socket, peer_of};
use flowstone_memory::message::{
    self, Grant, LEASE, LINE_BYTES_MAX, Lines, Refusal, Report, ToGuest, ToHost,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use tracing::warn;

/// Connections at once, a thread each; one more is sent away.
const GUESTS_MAX: usize = 256;
/// Of one process. A VM may have several ports, and the host does not know which one its cache has.
const PORTS_MAX: usize = 4;
const STACK_BYTES: usize = 128 << 10;
/// A guest may send a line so often, and as many more as this time has at once.
const LINE_EVERY: Duration = Duration::from_millis(50);
const BURST: Duration = Duration::from_secs(1);
/// Why a guest is not heard.
const TAKEN: &str = "another port of this VM has its place";
/// How long to wait after a failed accept: what it lacks (descriptors) takes time to come back.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// All guests that talk to us. Dropping it removes the socket.
pub struct GuestAgents {
    guests: Arc<Guests>,
    _socket: BoundSocket,
}

/// What the file cache of a guest has said last.
#[derive(Clone, Debug, PartialEq)]
pub struct Heard {
    /// The process that runs the guest.
    pub peer: Peer,
    /// What it said.
    pub report: Report,
    /// So long ago.
    pub age: Duration,
    /// What it has been granted, if anything was.
    pub grant: Option<u64>,
}

#[derive(Default)]
struct Guests {
    table: Mutex<Vec<Guest>>,
    /// A guest that is hung up on connects again each second.
    trouble: Mutex<LogBudget>,
}

struct Guest {
    stream: Arc<UnixStream>,
    peer: Peer,
    /// Of the one among the connections of its process that has the VM's place.
    heard: Option<(Instant, Report)>,
    /// When it was last told that another one has.
    refused: Option<Instant>,
    grant: Option<(Instant, u64)>,
    /// The rest of a line that it had no room for.
    unsent: Vec<u8>,
}

impl GuestAgents {
    /// Listens at `path`, for those whom `access` allows.
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

    /// What each guest has said last.
    pub fn heard(&self) -> Vec<Heard> {
        let heard = |guest: &Guest| {
            let (at, report) = guest.heard.as_ref()?;
            let grant = guest.grant.map(|(_, bytes)| bytes);
            Some(Heard { peer: guest.peer, report: report.clone(), age: at.elapsed(), grant })
        };
        self.guests.lock().iter().filter_map(heard).collect()
    }

    /// Tells a guest what it may have, if that is new or a third of the lease is over.
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

    /// A guest has connected.
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

    /// A guest has reported. A VM has one place: of several connections, the first one that says
    /// something has it until it goes, or is silent for a lease. The others stay, and are told so:
    /// QEMU would connect one that is hung up on again within a second.
    fn heard(&self, stream: &Arc<UnixStream>, report: Report) {
        let mut guests = self.lock();
        let is_it = |guest: &Guest| Arc::ptr_eq(&guest.stream, stream);
        let Some(peer) = guests.iter().find(|it| is_it(it)).map(|it| it.peer) else { return };
        let is_other = |guest: &Guest| guest.peer == peer && !is_it(guest);
        let is_taken = guests.iter().any(|guest| is_other(guest) && guest.has_place());
        if is_taken && !mutant("daemon.agent.last-one-has-the-place") {
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

    /// Listens to a guest until it goes, or sends what no guest of ours would.
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
            // What comes meanwhile stays with the kernel.
            if goes_within(stream, wait)? {
                return Ok(());
            }
        }
    }
}

/// Waits for so long, or until a guest goes or is hung up on.
fn goes_within(stream: &UnixStream, wait: Duration) -> io::Result<bool> {
    let time = Timespec::try_from(wait).map_err(io::Error::other)?;
    match poll(&mut [PollFd::new(stream, PollFlags::RDHUP)], Some(&time)) {
        Err(Errno::INTR) => Ok(false),
        gone => Ok(gone? > 0),
    }
}

/// A guest is forgotten when its thread ends, however that ends.
struct Conversation<'a> {
    guests: &'a Guests,
    stream: &'a Arc<UnixStream>,
}

impl Drop for Conversation<'_> {
    fn drop(&mut self) {
        self.guests.remove(self.stream);
    }
}

/// How many lines a guest may send.
struct LineBudget {
    /// Until when its lines are paid for.
    paid: Instant,
}

impl LineBudget {
    /// How long nothing more may be read from a guest that has sent so many lines.
    fn spend(&mut self, lines: u32, now: Instant) -> Duration {
        self.paid = self.paid.max(now) + LINE_EVERY * lines;
        if mutant("daemon.agent.hears-any-number-of-lines") {
            return Duration::ZERO;
        }
        self.paid.saturating_duration_since(now).saturating_sub(BURST)
    }
}

impl Guest {
    /// It speaks for its VM.
    fn has_place(&self) -> bool {
        self.heard.as_ref().is_some_and(|(at, _)| at.elapsed() < LEASE) && !self.is_gone()
    }

    /// Another one does from now on.
    fn leave_place(&mut self) {
        (self.heard, self.grant) = (None, None);
    }

    /// Another one does, and it is told so, now and then. Returns whether this is the first time.
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

    /// Its end is closed, and its thread has not seen it yet.
    fn is_gone(&self) -> bool {
        goes_within(&self.stream, Duration::ZERO).unwrap_or(true)
    }

    /// Sends a line, if there is room for its beginning. One that is begun is ended first.
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

    /// Sends what is left, as far as there is room. Returns whether all has gone.
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
