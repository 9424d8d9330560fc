//! The control socket: one line of JSON in, one line of JSON out.
//!
//! ```text
//! -> {"command":"stats"}
//! <- {"ok":{"version":"0.1.0","disks":[...]}}
//! -> {"command":"resize","disk":"vm1","bytes":17179869184}
//! <- {"error":{"kind":"busy","what":"resize vm1","why":"...","advice":"..."}}
//! -> {"command":"resize","disk":"vm1","add_bytes":1073741824}
//! <- {"ok":{"capacity_bytes":18253611008,"guest_told":true}}
//! -> {"command":"set_disk","disk":"vm1","limit":"iops=20000","weight":200}
//! <- {"ok":{"limit":{"iops":20000,...},"weight":200,...}}
//! ```
//! Behind the answer to `record` comes a trace, and then nothing.
//!
//! A unix socket that only its owner may use. Not on the data path: a slow client waits alone.
//! Clients are bounded in number, and a command in the time that its line may take.

use std::error::Error as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use flowstone_block::{Error, ErrorKind, LogBudget, Result};
use flowstone_frontend::{BoundSocket, SocketAccess, bind_socket};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tracing::warn;

/// Longest command line; a client that sends more is not one of ours.
const COMMAND_BYTES_MAX: u64 = 64 << 10;
/// How long either end waits for the other: for a whole command, and for room for an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Clients served at once, each by a thread; one more is sent away.
const CLIENTS_MAX: usize = 32;
/// How long to wait after a failed accept: what it lacks (descriptors) takes time to come back.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// What a client can ask for.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// The counters of everything.
    Stats,
    /// On which NUMA nodes guests' memory and queues are.
    Numa,
    /// What has been recognised on a disk.
    Layout {
        /// The disk's name or the path of its image.
        disk: String,
        /// The image that `disk` is where the client runs; `disk` is then no path to us.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<PathBuf>,
    },
    /// Make a disk larger while its guest runs.
    Resize {
        /// The disk's name or the path of its image.
        disk: String,
        /// The image that `disk` is where the client runs; `disk` is then no path to us.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<PathBuf>,
        /// The new size; or
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes: Option<u64>,
        /// how much larger it becomes. The daemon adds it up: of two clients, both are right.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        add_bytes: Option<u64>,
    },
    /// Change what a disk may use; what is not given stays.
    SetDisk {
        /// The disk's name or the path of its image.
        disk: String,
        /// The image that `disk` is where the client runs; `disk` is then no path to us.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<PathBuf>,
        /// Its whole limit, as `serve --limit` takes it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<String>,
        /// Its weight beside others.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        weight: Option<u32>,
    },
    /// Send what a disk is asked for from now on, until the client shuts its side down.
    Record {
        /// The disk's name or the path of its image.
        disk: String,
        /// The image that `disk` is where the client runs; `disk` is then no path to us.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<PathBuf>,
        /// Whether times are rounded down to a millisecond.
        #[serde(default)]
        coarse: bool,
    },
    /// Change what the disks of a group may use together.
    SetGroup {
        /// The group's name.
        group: String,
        /// Its whole limit, as `serve --limit` takes it.
        limit: String,
    },
}

impl Command {
    /// Makes a disk so large.
    pub fn resize(disk: String, path: Option<PathBuf>, bytes: u64) -> Self {
        Self::Resize { disk, path, bytes: Some(bytes), add_bytes: None }
    }

    /// Makes a disk so much larger.
    pub fn grow(disk: String, path: Option<PathBuf>, add_bytes: u64) -> Self {
        Self::Resize { disk, path, bytes: None, add_bytes: Some(add_bytes) }
    }
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    Ok(Value),
    Error(Failure),
}

/// The parts of an [`Error`], so that the other end can show the same line.
#[derive(Deserialize, Serialize)]
struct Failure {
    kind: String,
    what: String,
    why: String,
    advice: String,
}

impl From<Result<Value>> for Reply {
    fn from(outcome: Result<Value>) -> Self {
        let failure = |error: &Error| Failure {
            kind: error.kind().name().into(),
            what: error.what().into(),
            why: error.source().map(ToString::to_string).unwrap_or_default(),
            advice: error.advice().to_owned(),
        };
        outcome.map_or_else(|error| Self::Error(failure(&error)), Self::Ok)
    }
}

impl From<Reply> for Result<Value> {
    fn from(reply: Reply) -> Self {
        match reply {
            Reply::Ok(value) => Ok(value),
            Reply::Error(Failure { kind, what, why, advice }) => {
                let kind = ErrorKind::from_name(&kind).unwrap_or(ErrorKind::Host);
                Err(Error::new(kind, what, why, advice))
            }
        }
    }
}

/// What a command comes to.
pub struct Answer {
    value: Value,
    rest: Option<Rest>,
}

/// Sends what follows the line of an answer. That is the last that the client hears.
type Rest = Box<dyn FnOnce(&UnixStream)>;

impl Answer {
    /// An answer of more than its line.
    pub fn and_then(value: Value, rest: impl FnOnce(&UnixStream) + 'static) -> Self {
        Self { value, rest: Some(Box::new(rest)) }
    }
}

impl From<Value> for Answer {
    fn from(value: Value) -> Self {
        Self { value, rest: None }
    }
}

/// Carries out a command.
pub type Handler = dyn Fn(Command) -> Result<Answer> + Send + Sync;

/// A listening control socket. Dropping it removes the socket.
pub struct ControlServer {
    _socket: BoundSocket,
}

impl ControlServer {
    /// Listens at `path` on a thread of its own.
    pub fn start(path: &Path, handler: Arc<Handler>) -> Result<Self> {
        let socket = bind_socket("control socket", path, SocketAccess::OWNER)?;
        let name = || format!("control socket {}", path.display());
        let listener = socket.listener().try_clone();
        listener
            .and_then(|listener| {
                let serve = move || accept(&listener, &handler);
                thread::Builder::new().name("control".into()).spawn(serve)
            })
            .map_err(|error| Error::host(name(), error, "free resources"))?;
        Ok(Self { _socket: socket })
    }
}

fn accept(listener: &UnixListener, handler: &Arc<Handler>) {
    // Each client's thread has a clone of it.
    let clients = Arc::new(());
    let mut trouble = LogBudget::new();
    for stream in listener.incoming() {
        let served = stream.and_then(|stream| {
            if Arc::strong_count(&clients) > CLIENTS_MAX {
                return send_away(stream);
            }
            let (client, handler) = (Arc::clone(&clients), Arc::clone(handler));
            let talk = move || {
                converse(stream, &*handler, PATIENCE);
                drop(client);
            };
            thread::Builder::new().name("control".into()).spawn(talk).map(drop)
        });
        if let Err(error) = served {
            if let Some(unsaid) = trouble.spend() {
                warn!(%error, unsaid, "cannot serve a control client");
            }
            thread::sleep(ACCEPT_RETRY);
        }
    }
}

/// One line says why; a client that does not read it is not waited for.
fn send_away(mut stream: UnixStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    let why = format!("{CLIENTS_MAX} clients are being served");
    let refusal = Error::busy("control socket", why, "try again later");
    let _ = stream.write_all(line_of(Err(refusal)).as_bytes());
    Ok(())
}

/// An answer as it is sent.
fn line_of(outcome: Result<Value>) -> String {
    serde_json::to_string(&Reply::from(outcome)).expect("a reply is plain values") + "\n"
}

/// Neither end may keep the other waiting for ever.
fn limit(stream: &UnixStream, patience: Duration) -> io::Result<()> {
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))
}

/// A stream whose reads all end by a deadline: a client that sends a byte now and then does not
/// put it off.
struct Until {
    stream: UnixStream,
    deadline: Instant,
}

impl Read for Until {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(target)
    }
}

fn converse(stream: UnixStream, handler: &Handler, patience: Duration) {
    let Ok(Ok(reader)) = limit(&stream, patience).map(|()| stream.try_clone()) else {
        return;
    };
    let mut reader = BufReader::new(Until { stream: reader, deadline: Instant::now() });
    let mut writer = stream;
    loop {
        let mut line = String::new();
        reader.get_mut().deadline = Instant::now() + patience;
        match (&mut reader).take(COMMAND_BYTES_MAX).read_line(&mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let outcome = match serde_json::from_str(&line) {
            Ok(command) => handler(command),
            Err(error) => {
                Err(Error::invalid("control command", error, "send one JSON object per line"))
            }
        };
        let (outcome, rest) = match outcome {
            Ok(Answer { value, rest }) => (Ok(value), rest),
            Err(error) => (Err(error), None),
        };
        if writer.write_all(line_of(outcome).as_bytes()).is_err() {
            return;
        }
        if let Some(rest) = rest {
            return rest(&writer);
        }
    }
}

/// The other end, for the command line tools.
pub struct Client {
    stream: BufReader<UnixStream>,
    name: String,
}

impl Client {
    /// Connects to a daemon.
    pub fn connect(path: &Path) -> Result<Self> {
        let name = format!("control socket {}", path.display());
        let stream = UnixStream::connect(path)
            .and_then(|stream| limit(&stream, PATIENCE).map(|()| stream))
            .map_err(|error| {
                Error::invalid(name.clone(), error, "check the path, and that the daemon runs")
            })?;
        Ok(Self { stream: BufReader::new(stream), name })
    }

    /// Sends a command and waits for its answer; an error is the daemon's own.
    pub fn run(&mut self, command: &Command) -> Result<Value> {
        let reply = self
            .exchange(command)
            .map_err(|error| Error::host(self.name.clone(), error, "check that the daemon runs"))?;
        reply.into()
    }

    /// What follows the answer to a command that has more to say.
    pub fn into_rest(self) -> BufReader<UnixStream> {
        self.stream
    }

    fn exchange(&mut self, command: &Command) -> io::Result<Reply> {
        let line = serde_json::to_string(command)?;
        self.stream.get_mut().write_all(format!("{line}\n").as_bytes())?;
        let mut answer = String::new();
        match self.stream.read_line(&mut answer) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the daemon hung up")),
            Ok(_) => Ok(serde_json::from_str(&answer)?),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(io::Error::new(io::ErrorKind::TimedOut, "the daemon does not answer"))
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use flowstone_testkit::{HANG, wait_until};

    use super::*;

    /// A client whose thread answers nothing but errors.
    fn client(patience: Duration) -> UnixStream {
        let (client, served) = UnixStream::pair().unwrap();
        thread::spawn(move || converse(served, &|_| unreachable!("no command"), patience));
        client.set_read_timeout(Some(HANG)).unwrap();
        client.set_write_timeout(Some(HANG)).unwrap();
        client
    }

    #[test]
    fn a_client_that_sends_a_byte_now_and_then_is_hung_up_on() {
        let mut client = client(Duration::from_millis(100));
        wait_until("it is hung up on", || {
            thread::sleep(Duration::from_millis(5));
            client.write_all(b"x").is_err()
        });
    }

    #[test]
    fn a_client_that_reads_no_answer_is_hung_up_on() {
        let mut client = client(Duration::from_millis(100));
        wait_until("it is hung up on", || client.write_all(b"x\n").is_err());
    }

    #[test]
    fn a_command_that_does_not_end_is_answered_at_64_kib() {
        let mut client = client(HANG);
        client.write_all(&[b'x'; COMMAND_BYTES_MAX as usize]).unwrap();
        let mut answer = String::new();
        BufReader::new(client).read_line(&mut answer).unwrap();
        assert!(answer.contains("send one JSON object per line"), "{answer}");
    }

    /// More of them than there are places for clients.
    #[test]
    fn a_command_that_panics_ends_its_client_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let handler = |command| match command {
            Command::Stats => panic!("the mistake"),
            _ => Ok(Value::Null.into()),
        };
        let _server = ControlServer::start(&path, Arc::new(handler)).unwrap();
        for _ in 0..=CLIENTS_MAX {
            let mut dies = Client::connect(&path).unwrap();
            assert!(dies.run(&Command::Stats).is_err());
        }
        let free = || {
            let mut client = Client::connect(&path).unwrap();
            client.run(&Command::resize("vm".into(), None, 512)).is_ok()
        };
        wait_until("a client is served", free);
    }
}
