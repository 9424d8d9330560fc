//! Events of disks, as received by listeners.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use flowstone_testkit::{Client, ClientOptions, Daemon, HANG, Status, wait_until};
use serde_json::{Value, json};

use crate::fixture::{Place, ask, pattern, stop};
use crate::host_trouble::SmallFileSystem;
use crate::openapi;

/// A listener to events from now on.
struct Listener(BufReader<UnixStream>);

impl Listener {
    fn new(place: &Place) -> Self {
        let mut socket = UnixStream::connect(place.path("control.sock")).unwrap();
        socket.set_read_timeout(Some(HANG)).unwrap();
        socket.write_all(b"GET /v1/events HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        let mut lines = BufReader::new(socket);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(lines.read_line(&mut head).unwrap() > 0, "{head}");
        }
        assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("x-ndjson"), "{head}");
        Self(lines)
    }

    fn next(&mut self) -> Value {
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the daemon hung up");
            // Lines are separated by the lengths of chunks.
            if line.starts_with('{') {
                let event = serde_json::from_str(&line).unwrap();
                openapi::holds("Event", &event);
                return event;
            }
        }
    }

    /// Returns the next events of this disk, which must be of these kinds.
    fn hear(&mut self, disk: &str, kinds: &[&str]) -> Vec<Value> {
        let mut heard = Vec::new();
        while heard.len() < kinds.len() {
            let event = self.next();
            assert!(event["time_s"].as_f64().unwrap() > 1e9, "{event}");
            if event["disk"] == disk {
                assert_eq!(event["event"], kinds[heard.len()], "{event} after {heard:?}");
                heard.push(event);
            }
        }
        heard
    }
}

fn put(place: &Place, name: &str, keys: &Value) {
    let mut keys = keys.clone();
    keys["socket"] = place.text(&format!("{name}.sock")).into();
    let (status, said) = ask(place, "PUT", &format!("/v1/disks/{name}"), &keys.to_string());
    assert_eq!(status, 202, "{said}");
}

fn client(place: &Place, name: &str) -> Client {
    Client::connect(ClientOptions::new(place.path(&format!("{name}.sock")))).unwrap()
}

#[test]
fn the_life_of_a_disk_is_heard() {
    let place = Place::new();
    place.succeed(&["create", "--size", "8M", "a.flow"]);
    let daemon = place.serve(&["--backend", "null:1M", "--name", "other"]);
    let mut listener = Listener::new(&place);
    put(&place, "a", &json!({ "image": place.text("a.flow") }));
    let heard = listener.hear("a", &["added", "opening", "serving"]);
    assert_eq!(
        (&heard[0]["origin"], &heard[2]["socket"]),
        (&"api".into(), &place.text("a.sock").into())
    );
    let mut guest = client(&place, "a");
    let heard = listener.hear("a", &["connected"]);
    assert_eq!(heard[0]["process"], std::process::id());
    // A block is corrupted, and read twice.
    let content = pattern(4096, 7);
    assert_eq!(guest.write(80, &content).unwrap(), Status::Ok);
    let bytes = fs::read(place.path("a.flow")).unwrap();
    let offset = bytes.windows(4096).position(|window| window == content).unwrap() as u64;
    let file = fs::File::options().write(true).open(place.path("a.flow")).unwrap();
    file.write_all_at(&[!content[0]], offset).unwrap();
    for _ in 0..2 {
        assert_eq!(guest.read(80, &mut [0; 4096]).unwrap(), Status::IoErr);
    }
    let (status, said) = ask(&place, "PATCH", "/v1/disks/a", r#"{"size":"16M"}"#);
    assert_eq!(status, 200, "{said}");
    let heard = listener.hear("a", &["damaged", "resized"]);
    assert_eq!((&heard[0]["lba"], &heard[0]["offset"]), (&80.into(), &offset.into()));
    assert_eq!(heard[1]["capacity_bytes"], 16 << 20);
    drop(guest);
    let heard = listener.hear("a", &["disconnected"]);
    assert_eq!(heard[0]["reason"], "it hung up");
    // A client that does not speak the protocol: the event has the reason of the log.
    UnixStream::connect(place.path("a.sock")).unwrap().write_all(&[0xff; 64]).unwrap();
    let heard = listener.hear("a", &["connected", "disconnected"]);
    assert_ne!(heard[1]["reason"], "it hung up", "{heard:?}");
    let _guest = client(&place, "a");
    listener.hear("a", &["connected"]);
    assert_eq!(ask(&place, "DELETE", "/v1/disks/a?force=1", "").0, 200);
    let heard = listener.hear("a", &["disconnected", "removed"]);
    assert_eq!(heard[0]["reason"], "the disk stops");
    put(&place, "b", &json!({ "image": place.text("missing.raw") }));
    let heard = listener.hear("b", &["added", "opening", "failed"]);
    assert_eq!(heard[2]["error"]["kind"], "invalid");
    put(&place, "b", &json!({ "backend": "null:1M" }));
    listener.hear("b", &["opening", "serving"]);
    stop(daemon);
}

#[test]
fn a_host_without_room_is_heard() {
    let place = Place::new();
    let Some(small) = SmallFileSystem::mount(place.path("small")) else { return };
    let image = small.0.join("a.raw").display().to_string();
    place.succeed(&["create", "--size", "64M", &image]);
    let daemon = place.serve(&["--name", "a", &image]);
    let mut listener = Listener::new(&place);
    let mut guest = place.client();
    let data = pattern(1 << 20, 3);
    let failed = (0..16).find(|it| guest.write(it * 2048, &data).unwrap() != Status::Ok);
    assert!(failed.is_some(), "4 MiB had room for 16");
    let heard = listener.hear("a", &["connected", "full"]);
    assert_eq!(heard[1]["request"], "write");
    drop(guest);
    stop(daemon);
}

/// Connects to a disk without an image and disconnects.
fn come_and_go(place: &Place) {
    drop(UnixStream::connect(place.path("disk.sock")).unwrap());
}

#[test]
fn the_command_prints_lines_until_the_daemon_ends() {
    let place = Place::new();
    let daemon = place.serve(&["--backend", "null:1M", "--name", "a"]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_flowstone"))
        .args(["events", "--control", &place.text("control.sock")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (sender, lines) = mpsc::channel();
    let printed = BufReader::new(command.stdout.take().unwrap());
    let reader = thread::spawn(move || {
        printed.lines().map_while(Result::ok).for_each(|line| sender.send(line).unwrap());
    });
    let mut first = None;
    wait_until("it listens", || {
        come_and_go(&place);
        first = lines.recv_timeout(Duration::from_millis(100)).ok();
        first.is_some()
    });
    let event: Value = serde_json::from_str(&first.unwrap()).unwrap();
    assert_eq!(event["disk"], "a");
    assert!(["connected", "disconnected"].map(Value::from).contains(&event["event"]), "{event}");
    stop(daemon);
    reader.join().unwrap();
    let mut said = String::new();
    command.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(command.wait().unwrap().code(), Some(1), "{said}");
    assert!(said.contains("control.sock: the daemon hung up; "), "{said}");
}

/// The other listeners receive everything, and the daemon keeps a bounded number of lines.
#[test]
fn one_who_does_not_read_hears_how_much_is_lost() {
    const TIMES: usize = 2000;
    // Time after which the daemon may disconnect a client that does not read.
    const TIME: Duration = Duration::from_secs(10);
    let place = Place::new();
    // The longest possible line.
    let name = "\"".repeat(128);
    let daemon = place.serve(&["--backend", "null:1M", "--name", &name]);
    let (mut slow, mut quick) = (Listener::new(&place), Listener::new(&place));
    let begin = Instant::now();
    let mut told = 0;
    while told < TIMES && begin.elapsed() < TIME {
        come_and_go(&place);
        quick.hear(&name, &["connected", "disconnected"]);
        told += 1;
    }
    let (mut heard, mut lost) = (0, 0);
    while heard + lost < 2 * told as u64 {
        let event = slow.next();
        if event["event"] == "lost" {
            lost += event["count"].as_u64().unwrap();
        } else {
            assert_eq!(lost, 0, "it reads now: {event}");
            heard += 1;
        }
    }
    assert_eq!(heard + lost, 2 * told as u64);
    assert!(lost > 0 || told < TIMES, "{heard} lines were kept");
    stop(daemon);
}

/// Returns the sleeps of the thread of all connections; `None` while there are others of its name,
/// which execute requests and end soon.
fn sleeps(daemon: &Daemon) -> Option<u64> {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    let status = |task: std::io::Result<fs::DirEntry>| {
        let text = fs::read_to_string(task.unwrap().path().join("status")).unwrap_or_default();
        text.contains("Name:\tcontrol\n").then_some(text)
    };
    let all: Vec<String> = tasks.filter_map(status).collect();
    let [text] = &all[..] else { return None };
    let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    Some(line.unwrap().trim().parse().unwrap())
}

#[test]
fn one_who_hears_nothing_wakes_no_thread() {
    let place = Place::new();
    let daemon = place.serve(&["--backend", "null:1M", "--name", "a"]);
    let mut listener = Listener::new(&place);
    come_and_go(&place);
    listener.hear("a", &["connected", "disconnected"]);
    let mut before = None;
    wait_until("the thread rests", || {
        thread::sleep(Duration::from_secs(1));
        let last = std::mem::replace(&mut before, sleeps(&daemon));
        last.is_some() && last == before
    });
    thread::sleep(Duration::from_secs(2));
    assert_eq!(sleeps(&daemon), before);
    come_and_go(&place);
    listener.hear("a", &["connected", "disconnected"]);
    // The sleep is counted when it sleeps again.
    wait_until("the thread has been awake", || sleeps(&daemon) != before);
    stop(daemon);
}
