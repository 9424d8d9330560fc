//! The control socket: one line of JSON in, one line of JSON out.
//!
//! ```text
//! -> {"command":"stats"}
//! <- {"ok":{"version":"0.1.0","disks":[...]}}
//! -> {"command":"resize","disk":"vm1","bytes":17179869184}
//! <- {"error":{"what":"resize vm1","why":"...","advice":"..."}}
//! ```
//! A unix socket that only its owner may use. Not on the data path: a slow client waits alone.

use std::error::Error as _;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use flowstone_block::{Error, Result};
use flowstone_frontend::bind_socket;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tracing::warn;

/// Longest command line; a client that sends more is not one of ours.
const COMMAND_BYTES_MAX: u64 = 64 << 10;
/// How long either end waits for the other.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long to wait after a failed accept: what it lacks (descriptors) takes time to come back.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// What a client can ask for.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// The counters of everything.
    Stats,
    /// Make a disk larger while its guest runs.
    Resize {
        /// The disk's name or the path of its image.
        disk: String,
        /// The image that `disk` is where the client runs; `disk` is then no path to us.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<PathBuf>,
        /// The new size.
        bytes: u64,
    },
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
    what: String,
    why: String,
    advice: String,
}

impl From<Result<Value>> for Reply {
    fn from(outcome: Result<Value>) -> Self {
        let failure = |error: &Error| Failure {
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
            Reply::Error(Failure { what, why, advice }) => Err(Error::invalid(what, why, advice)),
        }
    }
}

/// Carries out a command.
pub type Handler = dyn Fn(Command) -> Result<Value> + Send + Sync;

/// A listening control socket. Dropping it removes the socket.
pub struct ControlServer {
    path: PathBuf,
}

impl ControlServer {
    /// Listens at `path` on a thread of its own.
    pub fn start(path: &Path, handler: Arc<Handler>) -> Result<Self> {
        let listener = bind_socket("control socket", path)?;
        // From here on there is a file to remove, whatever fails.
        let server = Self { path: path.to_owned() };
        let name = || format!("control socket {}", path.display());
        // Not by the umask, which belongs to all threads. Until here the umask alone says who may
        // connect: a folder that is the daemon's own closes that moment.
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o600))
            .map_err(|error| Error::host(name(), error, "choose a folder of your own"))?;
        thread::Builder::new()
            .name("control".into())
            .spawn(move || accept(&listener, &handler))
            .map_err(|error| Error::host(name(), error, "free resources"))?;
        Ok(server)
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn accept(listener: &UnixListener, handler: &Arc<Handler>) {
    for stream in listener.incoming() {
        let handler = Arc::clone(handler);
        let served = stream.and_then(|stream| {
            let talk = move || converse(stream, &*handler);
            thread::Builder::new().name("control".into()).spawn(talk)
        });
        if let Err(error) = served {
            warn!(%error, "cannot serve a control client");
            thread::sleep(ACCEPT_RETRY);
        }
    }
}

/// Neither end may keep the other waiting for ever.
fn limit(stream: &UnixStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))
}

fn converse(stream: UnixStream, handler: &Handler) {
    let Ok(Ok(reader)) = limit(&stream).map(|()| stream.try_clone()) else {
        return;
    };
    let mut reader = BufReader::new(reader);
    let mut writer = stream;
    loop {
        let mut line = String::new();
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
        let reply = serde_json::to_string(&Reply::from(outcome)).expect("a reply is plain values");
        if writer.write_all(format!("{reply}\n").as_bytes()).is_err() {
            return;
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
            .and_then(|stream| limit(&stream).map(|()| stream))
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

    fn exchange(&mut self, command: &Command) -> io::Result<Reply> {
        let line = serde_json::to_string(command)?;
        self.stream.get_mut().write_all(format!("{line}\n").as_bytes())?;
        let mut answer = String::new();
        match self.stream.read_line(&mut answer) {
            Ok(0) => Err(io::Error::new(ErrorKind::UnexpectedEof, "the daemon hung up")),
            Ok(_) => Ok(serde_json::from_str(&answer)?),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                Err(io::Error::new(ErrorKind::TimedOut, "the daemon does not answer"))
            }
            Err(error) => Err(error),
        }
    }
}
