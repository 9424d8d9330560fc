//! The control socket: one line of JSON in, one line of JSON out.
//!
//! ```text
//! -> {"command":"stats"}
//! <- {"ok":{"version":"0.1.0","disks":[...]}}
//! -> {"command":"resize","disk":"vm1","bytes":17179869184}
//! <- {"error":"resize vm1: ..."}
//! ```
//! A unix socket that only its owner may use. Not on the data path: a slow client waits alone.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use flowstone_block::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tracing::warn;

/// Longest command line; a client that sends more is not one of ours.
const COMMAND_BYTES_MAX: u64 = 64 << 10;
const CLIENT_TIMEOUT: Duration = Duration::from_secs(30);

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
        /// The new size.
        bytes: u64,
    },
}

/// Carries out a command; the message of an error goes to the client.
pub type Handler = dyn Fn(Command) -> std::result::Result<Value, String> + Send + Sync;

/// A listening control socket. Dropping it removes the socket.
pub struct ControlServer {
    path: PathBuf,
}

impl ControlServer {
    /// Listens at `path` on a thread of its own.
    pub fn start(path: &Path, handler: Arc<Handler>) -> Result<Self> {
        let name = format!("control socket {}", path.display());
        if UnixStream::connect(path).is_ok() {
            let why = "another daemon is listening there";
            return Err(Error::invalid(name, why, "choose another path"));
        }
        let host = |error| Error::host(name.clone(), error, "choose a path that you may write");
        if std::fs::symlink_metadata(path).is_ok() {
            std::fs::remove_file(path).map_err(host)?;
        }
        let listener = UnixListener::bind(path).map_err(host)?;
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).map_err(host)?;
        let accept = move || {
            for stream in listener.incoming().flatten() {
                let handler = Arc::clone(&handler);
                let spawned = thread::Builder::new()
                    .name("control".into())
                    .spawn(move || converse(stream, &*handler));
                if let Err(error) = spawned {
                    warn!(%error, "cannot serve a control client");
                }
            }
        };
        thread::Builder::new().name("control".into()).spawn(accept).map_err(host)?;
        Ok(Self { path: path.to_owned() })
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn converse(stream: UnixStream, handler: &Handler) {
    let timeout = Some(CLIENT_TIMEOUT);
    let limited = stream.set_read_timeout(timeout).and(stream.set_write_timeout(timeout));
    let Ok(Ok(reader)) = limited.map(|()| stream.try_clone()) else {
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
        let answer = match serde_json::from_str(&line) {
            Ok(command) => handler(command),
            Err(error) => Err(format!("control command: {error}; send one JSON object per line")),
        };
        let reply = match answer {
            Ok(value) => json!({ "ok": value }),
            Err(message) => json!({ "error": message }),
        };
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
        let stream = UnixStream::connect(path).map_err(|error| {
            Error::invalid(name.clone(), error, "check the path, and that the daemon runs")
        })?;
        Ok(Self { stream: BufReader::new(stream), name })
    }

    /// Sends a command and waits for its answer.
    pub fn run(&mut self, command: &Command) -> Result<Value> {
        let host = |error: std::io::Error| {
            Error::host(self.name.clone(), error, "check that the daemon runs")
        };
        let line = serde_json::to_string(command).map_err(std::io::Error::other).map_err(host)?;
        self.stream.get_mut().write_all(format!("{line}\n").as_bytes()).map_err(host)?;
        let mut answer = String::new();
        self.stream.read_line(&mut answer).map_err(host)?;
        let mut answer: Value =
            serde_json::from_str(&answer).map_err(std::io::Error::other).map_err(host)?;
        match answer["error"].as_str() {
            None => Ok(answer["ok"].take()),
            Some(message) => {
                Err(Error::invalid("daemon", message.to_owned(), "see its log for more"))
            }
        }
    }
}
