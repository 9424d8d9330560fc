use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use flowstone_testkit::{HANG, wait_until};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;

use super::*;
use crate::Client;

/// A server with a given patience, and the folder of its socket.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new(patience: Duration, handler: impl Fn(Command) -> Value + Send + Sync + 'static) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("control.sock")).unwrap();
        let handler = move |command| Ok(Answer::from(handler(command)));
        serve("control", || Listener::unix(listener), Arc::new(handler), patience).unwrap();
        Self { folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("control.sock")
    }

    fn connect(&self) -> UnixStream {
        let client = UnixStream::connect(self.path()).unwrap();
        client.set_read_timeout(Some(HANG)).unwrap();
        client.set_write_timeout(Some(HANG)).unwrap();
        client
    }
}

fn nothing(_: Command) -> Value {
    unreachable!("no command")
}

const IMPATIENT: Duration = Duration::from_millis(100);

#[test]
fn a_client_that_sends_a_byte_now_and_then_is_hung_up_on() {
    let place = Place::new(IMPATIENT, nothing);
    for (beginning, more) in [
        ("GET /v1/stats HTTP/1.1\r\nx: ", "x"),
        (
            "PATCH /v1/disks/d HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n",
            "1\r\nx\r\n",
        ),
    ] {
        let mut client = place.connect();
        client.write_all(beginning.as_bytes()).unwrap();
        wait_until("it is hung up on", || {
            thread::sleep(Duration::from_millis(5));
            client.write_all(more.as_bytes()).is_err()
        });
    }
}

#[test]
fn a_client_that_says_nothing_is_hung_up_on() {
    let place = Place::new(IMPATIENT, |_| Value::Null);
    assert_eq!(place.connect().read(&mut [0; 1]).unwrap(), 0);
    // Nor after an answer.
    let mut client = place.connect();
    client.write_all(b"GET /v1/stats HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    client.read_to_end(&mut Vec::new()).unwrap();
}

#[test]
fn a_client_that_reads_no_answer_is_hung_up_on() {
    let place = Place::new(IMPATIENT, |_| "x".repeat(1 << 20).into());
    let mut client = place.connect();
    wait_until("it is hung up on", || {
        client.write_all(b"GET /v1/stats HTTP/1.1\r\nhost: x\r\n\r\n").is_err()
    });
}

#[test]
fn a_request_that_does_not_end_is_answered_at_64_kib() {
    let place = Place::new(HANG, nothing);
    let (head, body) =
        ("GET /v1/stats HTTP/1.1\r\nx: ", "PATCH /v1/disks/d HTTP/1.1\r\nhost: x\r\n");
    let body = format!("{body}transfer-encoding: chunked\r\n\r\n20000\r\n");
    for (beginning, status) in [(head, "431"), (&body, "413")] {
        let mut client = place.connect();
        client.write_all(beginning.as_bytes()).unwrap();
        // The connection may be closed meanwhile.
        let _ = client.write_all(&[b'x'; REQUEST_BYTES_MAX + 4096]);
        let mut answer = [0; 13];
        client.read_exact(&mut answer[..12]).unwrap();
        assert!(answer.starts_with(format!("HTTP/1.1 {status}").as_bytes()), "{answer:?}");
    }
}

/// The daemon ended when the last part had been handed over, so that a recorder missed its end.
#[test]
fn a_streamed_answer_ends_when_its_last_part_has_been_sent() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let (written, is_written) = std::sync::mpsc::channel();
    let (ended, is_ended) = std::sync::mpsc::channel();
    let handler = move |_| {
        let (written, ended) = (written.clone(), ended.clone());
        Ok(Answer::Trace(Box::new(move |mut sink, _| {
            sink.write_all(&[b'x'; 1 << 20]).unwrap();
            written.send(()).unwrap();
            drop(sink);
            ended.send(()).unwrap();
        })))
    };
    serve("control", || Listener::unix(listener), Arc::new(handler), HANG).unwrap();
    let mut client = UnixStream::connect(&path).unwrap();
    let head = "POST /v1/disks/d/record HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n";
    client.write_all(format!("{head}connection: close\r\n\r\n").as_bytes()).unwrap();
    is_written.recv_timeout(HANG).unwrap();
    // More than a socket holds has not been read.
    assert!(is_ended.recv_timeout(Duration::from_millis(100)).is_err(), "nothing has been read");
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert!(answer.len() > 1 << 20 && answer.ends_with(b"0\r\n\r\n"));
    is_ended.recv_timeout(HANG).unwrap();
}

/// More panics than places for clients.
#[test]
fn a_command_that_panics_ends_its_client_alone() {
    let place = Place::new(HANG, |command| match command {
        Command::Stats { .. } => panic!("the mistake"),
        _ => Value::Null,
    });
    for _ in 0..=CLIENTS_MAX {
        let mut dies = Client::connect(&place.path()).unwrap();
        let error = dies.run(&Command::Stats { buckets: false }).unwrap_err();
        assert!(error.to_string().contains("its thread has panicked"), "{error}");
    }
    let free = || {
        let mut client = Client::connect(&place.path()).unwrap();
        client.run(&Command::Numa).is_ok()
    };
    wait_until("a client is served", free);
}

/// Otherwise a client that disconnects while its command waits for a host would leave its thread to
/// the next one.
#[test]
fn a_client_that_has_gone_keeps_its_place_until_its_command_ends() {
    let gate = Arc::new(std::sync::Mutex::new(()));
    let closed = gate.lock().unwrap();
    let waits = Arc::clone(&gate);
    let place = Place::new(HANG, move |command| {
        if matches!(command, Command::Stats { .. }) {
            drop(waits.lock());
        }
        Value::Null
    });
    let request = b"GET /v1/stats HTTP/1.1\r\nhost: x\r\n\r\n";
    wait_until("all places are taken", || {
        let mut client = place.connect();
        client.write_all(request).unwrap();
        client.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut answer = [0; 12];
        client.read_exact(&mut answer).is_ok() && answer.ends_with(b"503")
    });
    // A late request must not meet a closed socket, which its client would report.
    let (mut late, mut answer) = (place.connect(), Vec::new());
    late.read_exact(&mut [0; 12]).unwrap();
    late.write_all(request).unwrap();
    late.read_to_end(&mut answer).unwrap();
    assert!(String::from_utf8(answer).unwrap().contains("clients are being served"));
    drop(closed);
    wait_until("a client is served", || {
        Client::connect(&place.path()).is_ok_and(|mut it| it.run(&Command::Numa).is_ok())
    });
}

const CHILD: &str = "FLOWSTONE_TEST_PROCESS_LIMIT";
/// An unused user ID: its processes are counted separately.
const USER: libc::uid_t = 54_322;

/// Regression: a command that was refused because no thread could be started took effect with a
/// later one, and after as many as there are places the socket refused everybody for ever. The
/// limit applies to a whole process: this test runs itself in another one.
#[test]
fn a_command_without_a_thread_is_refused_for_good() {
    if std::env::var_os(CHILD).is_some() {
        return ask_without_threads();
    }
    let name = "server::tests::a_command_without_a_thread_is_refused_for_good";
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    let output = child.args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("asked without a thread"), "it ran something else: {said}");
}

fn ask_without_threads() {
    if rustix::process::geteuid().is_root() {
        // Root is exempt from the limit. SAFETY: it changes who this process is, and no memory.
        assert_eq!(unsafe { libc::setuid(USER) }, 0);
    }
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let place = Place::new(HANG, move |_| count.fetch_add(1, Ordering::Relaxed).into());
    let ask = || {
        let mut client = place.connect();
        client
            .write_all(b"GET /v1/stats HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    };
    let limit = getrlimit(Resource::Nproc);
    setrlimit(Resource::Nproc, Rlimit { current: Some(1), ..limit }).unwrap();
    assert!(thread::Builder::new().spawn(|| ()).is_err(), "the limit does not hold here");
    for _ in 0..=CLIENTS_MAX {
        let refused = ask();
        assert!(refused.contains("raise the limit of processes"), "{refused}");
    }
    setrlimit(Resource::Nproc, limit).unwrap();
    let answer = ask();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("0\n"), "{answer}");
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    println!("asked without a thread");
}
