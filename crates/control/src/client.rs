//! The client's side, for the command line tools.

use std::error::Error as _;
use std::future::Future;
use std::io;
use std::path::Path;
use std::time::Duration;

use flowstone_block::{Error, Result};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::HOST;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::Sender;
use tokio::time::timeout;

use super::failure::Body;
use super::paths::Asked;
use super::stream::Stream;
use super::{Command, PATIENCE};

/// Time limit for a removal or reload: a host may need that long to flush a disk.
const PATIENCE_OF_A_REMOVAL: Duration = Duration::from_secs(3600);

/// A connection to a daemon.
pub struct Client {
    runtime: Runtime,
    requests: SendRequest<Either<Full<Bytes>, Stream>>,
    name: String,
}

impl Client {
    /// Connects to a daemon.
    pub fn connect(path: &Path) -> Result<Self> {
        let name = format!("control socket {}", path.display());
        let connect = || -> io::Result<_> {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let requests = runtime.block_on(async {
                let stream = UnixStream::connect(path).await?;
                let (requests, connection) =
                    handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
                tokio::spawn(connection);
                Ok::<_, io::Error>(requests)
            })?;
            Ok((runtime, requests))
        };
        let (runtime, requests) = connect().map_err(|error| {
            Error::invalid(name.clone(), error, "check the path, and that the daemon runs")
        })?;
        Ok(Self { runtime, requests, name })
    }

    /// Sends a command and waits for its answer; an error may be the daemon's own.
    pub fn run(&mut self, command: &Command) -> Result<Value> {
        let body = command.request().body.map(|body| body.to_string()).unwrap_or_default();
        // A disk that is removed is flushed first.
        let is_long = matches!(command, Command::Remove { .. } | Command::Reload);
        let patience = if is_long { PATIENCE_OF_A_REMOVAL } else { PATIENCE };
        let response = self.ask(command, Either::Left(Full::new(body.into())), patience)?;
        let body = self.whole(response, patience)?;
        serde_json::from_slice(&body).map_err(|error| self.lost(error.into()))
    }

    /// Begins to record a disk.
    pub fn record(mut self, command: &Command) -> Result<Received> {
        let (until, body) = Stream::silent();
        let response = self.ask(command, Either::Right(body), PATIENCE)?;
        let (runtime, body) = (self.runtime, response.into_body());
        Ok(Received { runtime, body, until: Some(until) })
    }

    /// Starts to stream events of disks.
    pub fn events(mut self) -> Result<Received> {
        let response = self.ask(&Command::Events, Either::Left(Full::default()), PATIENCE)?;
        Ok(Received { runtime: self.runtime, body: response.into_body(), until: None })
    }

    /// Sends a command and waits for the beginning of its answer.
    fn ask(
        &mut self,
        command: &Command,
        body: Either<Full<Bytes>, Stream>,
        patience: Duration,
    ) -> Result<Response<Incoming>> {
        let Asked { method, target, .. } = command.request();
        let request = Request::builder().method(method).uri(target).header(HOST, "flowstone");
        let response = request.body(body).map_err(io::Error::other).and_then(|request| {
            self.runtime.block_on(in_time(patience, self.requests.send_request(request)))
        });
        let response = response.map_err(|error| self.lost(error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let text = self.whole(response, patience)?;
        let refused: serde_json::Result<Body> = serde_json::from_slice(&text);
        let unclear = |_| self.lost(io::Error::other(format!("the daemon answers {status}")));
        Err(refused.map_or_else(unclear, |it| it.error.into_error()))
    }

    /// Waits for the rest of an answer.
    fn whole(&self, response: Response<Incoming>, patience: Duration) -> Result<Bytes> {
        let body = self.runtime.block_on(in_time(patience, response.into_body().collect()));
        Ok(body.map_err(|error| self.lost(error))?.to_bytes())
    }

    fn lost(&self, error: io::Error) -> Error {
        Error::host(self.name.clone(), error, "check that the daemon runs")
    }
}

/// A streamed answer.
pub struct Received {
    runtime: Runtime,
    body: Incoming,
    until: Option<Sender<Bytes>>,
}

impl Received {
    /// Returns the next part; empty if none arrives within `moment`, `None` at the end.
    pub fn next(&mut self, moment: Duration) -> io::Result<Option<Bytes>> {
        let Self { runtime, body, .. } = self;
        let part = runtime.block_on(async { timeout(moment, body.frame()).await });
        part.map_or(Ok(Some(Bytes::new())), part_of)
    }

    /// Waits for the next part; `None` at the end.
    pub fn wait(&mut self) -> io::Result<Option<Bytes>> {
        let Self { runtime, body, .. } = self;
        part_of(runtime.block_on(body.frame()))
    }

    /// Tells the daemon to end the recording: it sends the rest.
    pub fn end(&mut self) {
        self.until = None;
    }
}

fn part_of(frame: Option<hyper::Result<Frame<Bytes>>>) -> io::Result<Option<Bytes>> {
    let frame = frame.transpose().map_err(lost)?;
    Ok(frame.map(|frame| frame.into_data().unwrap_or_default()))
}

/// Applies a time limit to the daemon's answer.
async fn in_time<T>(
    patience: Duration,
    answer: impl Future<Output = hyper::Result<T>>,
) -> io::Result<T> {
    match timeout(patience, answer).await {
        Ok(answer) => answer.map_err(lost),
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the daemon does not answer")),
    }
}

fn lost(error: hyper::Error) -> io::Error {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    let kind = source.map(io::Error::kind);
    let is_closed = matches!(kind, Some(BrokenPipe | ConnectionReset | UnexpectedEof));
    if is_closed || error.is_incomplete_message() || error.is_canceled() {
        return io::Error::new(UnexpectedEof, "the daemon hung up");
    }
    io::Error::other(error)
}
