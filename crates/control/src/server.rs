//! The server side of the control socket.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use flowstone_block::{Error, LogBudget, Result};
use flowstone_host::{BoundSocket, SocketAccess, bind_socket};
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioTimer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Builder;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::failure::{Body, Failure};
use super::listener::{Address, Connection, Listener};
use super::patient::Patient;
use super::stream::{self, Stream};
use super::{
    Answer, CLIENTS_MAX, Command, Handler, PATIENCE, REQUEST_BYTES_MAX, Refused, json_line,
};

/// Time limit for sending a refusal: a new connection has room for it at once.
const REFUSAL_TIME: Duration = Duration::from_millis(10);
/// Pause after a failed accept: missing resources (descriptors) take time to be freed.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

type Sent = Response<Either<Full<Bytes>, Stream>>;

/// A listening control socket, or a socket for metrics only. Dropping it removes the socket.
pub struct ControlServer {
    _socket: Option<BoundSocket>,
}

impl ControlServer {
    /// Listens at `path`, for peers allowed by `access`.
    pub fn start(path: &Path, access: SocketAccess, handler: Arc<Handler>) -> Result<Self> {
        let socket = bind_socket("control socket", path, access)?;
        let name = || format!("control socket {}", path.display());
        let clone = socket.listener().try_clone();
        clone
            .and_then(|listener| serve("control", || Listener::unix(listener), handler, PATIENCE))
            .map_err(|error| Error::host(name(), error, "free resources"))?;
        Ok(Self { _socket: Some(socket) })
    }

    /// Listens at `address` for `GET /metrics` only.
    pub fn start_metrics(
        address: &Address,
        access: SocketAccess,
        handler: Arc<Handler>,
    ) -> Result<Self> {
        let only = move |command: Command| match command {
            Command::Metrics => handler(command),
            _ => {
                let why = "only GET /metrics is answered here";
                let error = Error::invalid("request", why, "ask on the control socket");
                Err(Refused::unknown(error))
            }
        };
        let name = format!("metrics socket {address}");
        let host = |error| Error::host(name.clone(), error, "choose another address");
        let handler: Arc<Handler> = Arc::new(only);
        match address {
            Address::Unix(path) => {
                let socket = bind_socket("metrics socket", path, access)?;
                let listener = socket.listener().try_clone().map_err(host)?;
                serve("metrics", || Listener::unix(listener), handler, PATIENCE).map_err(host)?;
                Ok(Self { _socket: Some(socket) })
            }
            Address::Tcp(address) => {
                let listener = TcpListener::bind(address).map_err(host)?;
                serve("metrics", || Listener::tcp(listener), handler, PATIENCE).map_err(host)?;
                Ok(Self { _socket: None })
            }
        }
    }
}

/// Serves clients on a new thread; `listener` is called on that thread.
fn serve(
    name: &str,
    listener: impl FnOnce() -> io::Result<Listener> + Send + 'static,
    handler: Arc<Handler>,
    patience: Duration,
) -> io::Result<()> {
    // All connections are on the thread that runs it; commands have threads of their own.
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let serve = move || {
        runtime.block_on(async {
            match listener() {
                Ok(listener) => accept(listener, handler, patience).await,
                Err(error) => warn!(%error, "cannot serve control clients"),
            }
        });
    };
    thread::Builder::new().name(name.into()).spawn(serve)?;
    Ok(())
}

async fn accept(listener: Listener, handler: Arc<Handler>, patience: Duration) {
    let places = Arc::new(Semaphore::new(CLIENTS_MAX));
    let leaving = Arc::new(Semaphore::new(CLIENTS_MAX));
    let mut trouble = LogBudget::default();
    loop {
        match listener.accept().await {
            Ok(stream) => match Arc::clone(&places).try_acquire_owned() {
                Ok(place) => {
                    let client = Client { handler: Arc::clone(&handler), place: place.into() };
                    tokio::spawn(client.converse(stream, patience));
                }
                Err(_) => send_away(stream, Arc::clone(&leaving), patience).await,
            },
            Err(error) => {
                if let Some(unsaid) = trouble.spend() {
                    warn!(%error, unsaid, "cannot serve a control client");
                }
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Refuses a client with the reason. Its request is read, too, for a limited time and for as many
/// clients as `leaving` permits: a client whose request meets a closed socket reports that instead
/// of the answer.
async fn send_away(mut stream: Box<dyn Connection>, leaving: Arc<Semaphore>, patience: Duration) {
    let why = format!("{CLIENTS_MAX} clients are being served");
    let refusal = Error::busy("control socket", why, "try again later");
    let body = json_line(&Body { error: Failure::of(&refusal) });
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let answer = [head.as_bytes(), &body].concat();
    let Ok(room) = leaving.try_acquire_owned() else {
        let _ = timeout(REFUSAL_TIME, stream.write_all(&answer)).await;
        return;
    };
    tokio::spawn(async move {
        let leave = async {
            let _ = stream.write_all(&answer).await;
            let _ = stream.shutdown().await;
            let mut request = [0; 1024];
            while matches!(stream.read(&mut request).await, Ok(1..)) {}
        };
        let _ = timeout(patience, leave).await;
        drop(room);
    });
}

/// A client's connection.
#[derive(Clone)]
struct Client {
    handler: Arc<Handler>,
    /// Held until its request is done, even if the client has disconnected: so there are never more
    /// working threads than permitted clients.
    place: Arc<OwnedSemaphorePermit>,
}

impl Client {
    async fn converse(self, stream: Box<dyn Connection>, patience: Duration) {
        let service = service_fn(move |request| {
            let client = self.clone();
            async move { Ok::<_, Infallible>(client.answer(request, patience).await) }
        });
        // Errors are the client's: it disconnected, was too slow, or does not speak HTTP.
        let _ = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(patience)
            .max_buf_size(REQUEST_BYTES_MAX)
            .serve_connection(Patient::new(stream, patience), service)
            .await;
    }

    async fn answer(self, request: Request<Incoming>, patience: Duration) -> Sent {
        let (head, body) = request.into_parts();
        // The body of a recording stays open until it ends.
        let streams = head.method == hyper::Method::POST;
        let (body, rest) = if streams {
            (Bytes::new(), Some(body))
        } else {
            match whole(body, patience).await {
                Ok(body) => (body, None),
                Err(refusal) => return refusal,
            }
        };
        match Command::of(&head.method, &head.uri, &body) {
            Ok(command) => self.carry_out(command, rest, patience).await,
            Err(refused) => refusal(&refused),
        }
    }

    /// Runs the command on a thread of its own.
    async fn carry_out(self, command: Command, rest: Option<Incoming>, patience: Duration) -> Sent {
        let (handler, place) = (self.handler, Arc::clone(&self.place));
        let work = move || {
            let outcome = handler(command);
            drop(place);
            outcome
        };
        let outcome = match beside(work) {
            Ok(outcome) => outcome.await,
            Err(error) => return refusal(&error.into()),
        };
        match outcome {
            Ok(Ok(Answer::Document(value))) => sent(StatusCode::OK, JSON, json_line(&value)),
            Ok(Ok(Answer::Begun(value))) => sent(StatusCode::ACCEPTED, JSON, json_line(&value)),
            Ok(Ok(Answer::Text(kind, text))) => {
                sent(StatusCode::OK, HeaderValue::from_static(kind), text.into_bytes())
            }
            Ok(Ok(Answer::Events(listener))) => streamed(JSON_LINES, listener.into()),
            Ok(Ok(Answer::Trace(trace))) => {
                let Some(rest) = rest else { return refusal(&died().into()) };
                let (sink, enough, stream) = stream::answer(rest, patience);
                let place = self.place;
                let work = move || {
                    trace(sink, enough);
                    drop(place);
                };
                match beside(work) {
                    Ok(_) => streamed(ZSTD, stream),
                    Err(error) => refusal(&error.into()),
                }
            }
            Ok(Err(refused)) => refusal(&refused),
            Err(_) => refusal(&died().into()),
        }
    }
}

/// Runs `work` on a new thread, which may block. If none can be started the work is dropped: tokio
/// would queue it, and a command that was refused would take effect later.
fn beside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<oneshot::Receiver<T>> {
    let (tell, told) = oneshot::channel();
    // The client may have disconnected.
    let run = move || drop(tell.send(work()));
    match thread::Builder::new().name("command".into()).spawn(run) {
        Ok(_) => Ok(told),
        Err(error) => {
            Err(Error::host("the thread of a request", error, "raise the limit of processes"))
        }
    }
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const JSON_LINES: HeaderValue = HeaderValue::from_static("application/x-ndjson");
const ZSTD: HeaderValue = HeaderValue::from_static("application/zstd");

/// The error of a request whose thread has panicked.
fn died() -> Error {
    Error::host("request", "its thread has panicked", "report this as a defect")
}

/// Reads a body with limits on length and time.
async fn whole(body: Incoming, patience: Duration) -> std::result::Result<Bytes, Sent> {
    let refuse = |status, why: &str, advice: &'static str| {
        let error = Error::invalid("request", why.to_owned(), advice);
        sent(status, JSON, json_line(&Body { error: Failure::of(&error) }))
    };
    match timeout(patience, Limited::new(body, REQUEST_BYTES_MAX).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(_)) => Err(refuse(
            StatusCode::PAYLOAD_TOO_LARGE,
            "its body is too long",
            "send at most 64 KiB",
        )),
        Err(_) => {
            Err(refuse(StatusCode::REQUEST_TIMEOUT, "its body takes too long", "send it whole"))
        }
    }
}

fn streamed(kind: HeaderValue, stream: Stream) -> Sent {
    let mut response = Response::new(Either::Right(stream));
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

fn refusal(refused: &Refused) -> Sent {
    sent(refused.status(), JSON, json_line(&Body { error: Failure::of(&refused.error) }))
}

fn sent(status: StatusCode, kind: HeaderValue, body: Vec<u8>) -> Sent {
    let mut response = Response::new(Either::Left(Full::new(body.into())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests;
