//! Streamed answers: sent by a blocking thread, received by the connection.

use std::convert::Infallible;
use std::io::{self, Write};
use std::pin::Pin;
use std::sync::mpsc as blocking;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::events::Listener;

/// Parts queued for a client, beside the one being made.
const PARTS_MAX: usize = 2;

/// Writer of an answer's text. It fails if the client has not read the previous part within the
/// server's patience. Its drop waits until the last part has been sent: the daemon may end then.
pub struct Sink {
    /// `None` after a failure, and in the drop.
    parts: Option<mpsc::Sender<Bytes>>,
    /// Disconnected when all has been sent, or the client is gone.
    sent: blocking::Receiver<Infallible>,
    runtime: Handle,
    patience: Duration,
}

/// End signal: disconnected when the client ends the recording or disconnects.
pub struct Enough(blocking::Receiver<Infallible>);

/// Body of a streamed answer.
pub struct Stream {
    source: Source,
    /// For a request without a body: dropped with the connection, which ends the recording.
    _enough: Option<blocking::Sender<Infallible>>,
    /// Tells the sink that all has been sent.
    sent: Option<blocking::Sender<Infallible>>,
}

/// Source of a stream's text.
enum Source {
    /// Parts, until their sender is dropped.
    Parts(mpsc::Receiver<Bytes>),
    /// Events, until the client disconnects.
    Events(Listener),
}

/// Makes the ends of the answer to a request with this body. A client that sends a body ends the
/// recording with the end of that body; another one by disconnecting.
pub fn answer(request: Incoming, patience: Duration) -> (Sink, Enough, Stream) {
    let (sender, parts) = mpsc::channel(PARTS_MAX);
    let (until, enough) = blocking::channel();
    let runtime = Handle::current();
    let until = if request.is_end_stream() {
        Some(until)
    } else {
        runtime.spawn(drain(request, until));
        None
    };
    let (is_sent, sent) = blocking::channel();
    let sink = Sink { parts: Some(sender), sent, runtime, patience };
    let stream = Stream { source: Source::Parts(parts), _enough: until, sent: Some(is_sent) };
    (sink, Enough(enough), stream)
}

/// Reads a body to its end, then drops `until`.
async fn drain(mut body: Incoming, until: blocking::Sender<Infallible>) {
    while let Some(Ok(_)) = body.frame().await {}
    drop(until);
}

impl Enough {
    /// Waits up to `moment` for the client to end the recording or disconnect. Returns whether it
    /// has.
    pub fn is_said(&self, moment: Duration) -> bool {
        let end = self.0.recv_timeout(moment);
        matches!(end, Err(blocking::RecvTimeoutError::Disconnected))
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(parts) = &self.parts else { return Err(io::ErrorKind::BrokenPipe.into()) };
        let part = Bytes::copy_from_slice(bytes);
        let sent = async { timeout(self.patience, parts.send(part)).await };
        let error = match self.runtime.block_on(sent) {
            Ok(Ok(())) => return Ok(bytes.len()),
            Ok(Err(_)) => io::ErrorKind::BrokenPipe,
            Err(_) => io::ErrorKind::TimedOut,
        };
        self.parts = None;
        Err(error.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        if self.parts.take().is_some() {
            let _ = self.sent.recv_timeout(self.patience);
        }
    }
}

impl Drop for Stream {
    /// The connection drops its body in the turn in which it sends the end of it, so the sink is
    /// told in a later turn of its thread.
    fn drop(&mut self) {
        if let (Some(sent), Ok(runtime)) = (self.sent.take(), Handle::try_current()) {
            runtime.spawn(async move { drop(sent) });
        }
    }
}

impl Stream {
    /// Makes a body on which nothing is sent. It ends when the sender is dropped.
    pub fn silent() -> (mpsc::Sender<Bytes>, Self) {
        let (sender, parts) = mpsc::channel(1);
        (sender, Self { source: Source::Parts(parts), _enough: None, sent: None })
    }
}

impl From<Listener> for Stream {
    fn from(listener: Listener) -> Self {
        Self { source: Source::Events(listener), _enough: None, sent: None }
    }
}

impl Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let part = match &mut self.source {
            Source::Parts(parts) => parts.poll_recv(context),
            Source::Events(listener) => listener.poll_lines(context).map(|it| Some(it.into())),
        };
        part.map(|part| part.map(|part| Ok(Frame::data(part))))
    }
}
