//! `flowstone record`: a trace has the guest's requests, whatever happens to the recorder, the
//! guest, and the daemon between them.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;

use flowstone_testkit::load::{LoadOptions, run};
use flowstone_testkit::process::Ready;
use flowstone_testkit::{
    Client, Daemon, DaemonCommand, HANG, Request, Status, virtio, wait_for, wait_until,
};
use flowstone_trace::{Class, Event, Kind, Totals, Trace, read};
use rustix::process::Signal;
use serde_json::Value;

use crate::fixture::{Place, has_redo_file, pattern, stop};

/// I/O priorities of jbd2, and of metadata marked by the guest module.
const JOURNAL_IOPRIO: u32 = 0x4003;
const METADATA_IOPRIO: u32 = 0x4304;
/// As in the daemon.
const RECORDINGS_MAX: usize = 8;

/// Starts `flowstone record`, and waits until it records.
fn record(place: &Place, output: &str, more: &[&str]) -> Daemon {
    DaemonCommand::new(env!("CARGO_BIN_EXE_flowstone"))
        .args(["record", "--json", "--control", &place.text("control.sock"), "disk"])
        .args(["--output", &place.text(output)])
        .args(more.iter().copied())
        .ready(Ready::Sockets(vec![place.path(output)]))
        .spawn()
        .unwrap()
}

/// Returns the totals that it prints at its end.
fn totals(mut recorder: Daemon) -> Totals {
    let status = recorder.wait(HANG).unwrap();
    let (printed, errors) = (recorder.stdout(), recorder.stderr());
    assert!(status.success(), "{status}: {printed}{errors}");
    let totals: Value = serde_json::from_str(&printed).unwrap();
    let [requests, lost] = ["requests", "lost"].map(|key| totals[key].as_u64().unwrap());
    Totals { requests, lost }
}

/// Ends it by SIGINT, as an operator does.
fn end(mut recorder: Daemon) -> Totals {
    recorder.signal(Signal::INT).unwrap();
    totals(recorder)
}

/// Returns the requests of a whole trace, without the initial contents.
fn requests(place: &Place, name: &str) -> Vec<Event> {
    let trace = read(&place.path(name)).unwrap();
    assert_eq!((trace.is_cut, trace.lost), (false, 0));
    assert!(is_in_order(&trace));
    asked(&trace)
}

fn asked(trace: &Trace) -> Vec<Event> {
    trace.events.iter().filter(|event| event.kind != Kind::Present).copied().collect()
}

fn is_in_order(trace: &Trace) -> bool {
    asked(trace).is_sorted_by_key(|event| event.at.unwrap())
}

fn write(client: &mut Client, block: u64, ioprio: u32) {
    let data = pattern(4096, block as u8);
    let request = Request::write(block * 8, &data).with_ioprio(ioprio);
    assert_eq!(client.request(&request).unwrap().status, Status::Ok);
}

fn writes(client: &mut Client, blocks: std::ops::Range<u64>) {
    blocks.for_each(|block| write(client, block, 0));
}

/// Returns the blocks of the writes in a trace.
fn blocks(events: &[Event]) -> Vec<u64> {
    assert!(events.iter().all(|event| (event.kind, event.bytes) == (Kind::Write, 4096)));
    events.iter().map(|event| event.offset / 4096).collect()
}

#[test]
fn each_request_is_recorded_as_it_was() {
    for image in ["disk.raw", "disk.qcow2", "disk.flow"] {
        let place = Place::new();
        place.succeed(&["create", "--size", "64M", image]);
        let daemon = place.serve(&["--name", "disk", "--cache", "4M", image]);
        let mut client = place.client();
        write(&mut client, 900, 0);
        let recorder = record(&place, "t.zst", &[]);
        write(&mut client, 1, JOURNAL_IOPRIO);
        write(&mut client, 5, METADATA_IOPRIO);
        write(&mut client, 1000, 0);
        assert_eq!(client.read(8000, &mut [0; 512]).unwrap(), Status::Ok);
        assert_eq!(client.flush().unwrap(), Status::Ok);
        assert_eq!(client.discard(&[(8, 8)]).unwrap(), Status::Ok);
        assert_eq!(client.write_zeroes(&[(40, 8)], true).unwrap(), Status::Ok);
        drop(client);
        // A guest that cannot flush: its writes are durable.
        let old = place.options().without(virtio::F_CONFIG_WCE | virtio::F_FLUSH);
        write(&mut Client::connect(old).unwrap(), 2, 0);
        assert_eq!(end(recorder), Totals { requests: 8, lost: 0 });
        let data = |kind, offset, bytes, class| Event {
            class: Some(class),
            ..Event::new(kind, offset, bytes)
        };
        let wanted = [
            data(Kind::Write, 4096, 4096, Class::Journal),
            data(Kind::Write, 5 * 4096, 4096, Class::Metadata),
            data(Kind::Write, 1000 * 4096, 4096, Class::Data),
            data(Kind::Read, 1000 * 4096, 512, Class::Data),
            Event::new(Kind::Flush, 0, 0),
            Event::new(Kind::Discard, 4096, 4096),
            Event::new(Kind::WriteZeroes, 5 * 4096, 4096),
            Event { durable: true, ..data(Kind::Write, 8192, 4096, Class::Data) },
        ];
        let seen = requests(&place, "t.zst");
        let seen: Vec<_> = seen.into_iter().map(|event| Event { at: None, ..event }).collect();
        assert_eq!(seen, wanted, "{image}");
        let mode = fs::metadata(place.path("t.zst")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        stop(daemon);
    }
}

/// A load of all kinds from several queues, compared with the daemon's and the replay's counts.
#[test]
fn a_load_is_recorded_whole_and_replayed_as_it_was() {
    let place = Place::new();
    place.image("64M");
    let daemon = place.serve(&["--name", "disk", "--pollers", "2", "disk.raw"]);
    let recorder = record(&place, "t.zst", &["--coarse"]);
    // Fewer requests per queue than a ring has room for, so that none is lost however busy the
    // machine is.
    let mut options =
        LoadOptions::new(place.path("disk.sock")).workload("mix").iodepth(16).ops(20_000);
    options.client = options.client.queues(4);
    options.flush_every = 50;
    let report = run(&options).unwrap();
    assert_eq!((report.errors, report.first_error), (0, None));
    let counted = place.disk_stats("disk")["total"]["requests"].clone();
    let Totals { requests: all, lost: 0 } = end(recorder) else { panic!("requests are lost") };
    let events = requests(&place, "t.zst");
    assert_eq!(events.len() as u64, all);
    let count = |kind| events.iter().filter(|event| event.kind == kind).count();
    for (name, kind) in [
        ("read", Kind::Read),
        ("write", Kind::Write),
        ("flush", Kind::Flush),
        ("discard", Kind::Discard),
        ("write_zeroes", Kind::WriteZeroes),
    ] {
        assert_eq!(counted[name], count(kind), "{name}");
    }
    assert!(events.iter().all(|event| event.at.unwrap().subsec_micros() % 1000 == 0), "coarse");
    stop(daemon);
    let replay = ["replay", "--trace", "t.zst", "--format", "raw", "--fill", "0.5", "--json"];
    let report: Value = serde_json::from_str(&place.succeed(&replay)).unwrap();
    let written: u64 =
        events.iter().filter(|it| it.kind == Kind::Write).map(|event| event.bytes).sum();
    assert_eq!(report["guest_blocks"].as_f64().unwrap() * 4096.0, written as f64);
    assert_eq!((&report["requests"], &report["disk_bytes"]), (&all.into(), &(64 << 20).into()));
}

/// Begins a recording on a raw connection, as programs do. Returns the head of the answer, and its
/// body.
fn by_hand(place: &Place) -> (String, BufReader<UnixStream>) {
    let mut socket = UnixStream::connect(place.path("control.sock")).unwrap();
    socket.set_read_timeout(Some(HANG)).unwrap();
    let head = "POST /v1/disks/disk/record HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked";
    socket.write_all(format!("{head}\r\n\r\n").as_bytes()).unwrap();
    let (mut answer, mut rest) = (String::new(), BufReader::new(socket));
    while !answer.ends_with("\r\n\r\n") {
        assert_ne!(rest.read_line(&mut answer).unwrap(), 0, "{answer}");
    }
    (answer, rest)
}

/// Reads chunks of an answer until the text of their zstd frames ends with `end`.
fn text_until(answer: &mut BufReader<UnixStream>, frames: &mut Vec<u8>, end: &str) -> String {
    loop {
        let mut length = String::new();
        answer.read_line(&mut length).unwrap();
        let length = usize::from_str_radix(length.trim(), 16).unwrap();
        let begin = frames.len();
        frames.resize(begin + length + 2, 0);
        answer.read_exact(&mut frames[begin..]).unwrap();
        frames.truncate(begin + length);
        let mut text = String::new();
        // The last frame may not be whole yet.
        let _ = zstd::Decoder::new(&frames[..]).unwrap().read_to_string(&mut text);
        if text.ends_with(end) {
            return text;
        }
        assert_ne!(length, 0, "{text}");
    }
}

#[test]
fn a_trace_begins_with_what_the_disk_is_and_holds() {
    for (image, format) in [("disk.raw", "raw"), ("disk.qcow2", "qcow2"), ("disk.flow", "log")] {
        let place = Place::new();
        place.succeed(&["create", "--size", "64M", image]);
        let daemon = place.serve(&["--name", "disk", image]);
        let data = pattern(1 << 20, 1);
        let mut client = place.client();
        for mib in [3, 4, 40] {
            assert_eq!(client.write(mib * 2048, &data).unwrap(), Status::Ok);
        }
        assert_eq!(client.flush().unwrap(), Status::Ok);
        let (answer, mut trace) = by_hand(&place);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(answer.contains("content-type: application/zstd\r\n"), "{answer}");
        let beginning = format!(
            "# flowstone-trace 1 size=67108864 format={format}\n\
             timestamp_us,op,offset_bytes,length_bytes,class,durable\n\
             0,P,3145728,2097152\n0,P,41943040,1048576\n"
        );
        let mut frames = Vec::new();
        assert_eq!(text_until(&mut trace, &mut frames, "1048576\n"), beginning);
        trace.get_mut().write_all(b"0\r\n\r\n").unwrap();
        let end = "# requests=0 lost=0\n";
        assert_eq!(text_until(&mut trace, &mut frames, end), format!("{beginning}{end}"));
        stop(daemon);
    }
}

/// Regression: what reads the contents of the disk for a recording kept the image open after the
/// disk had been removed, and was cut off by the end of the daemon: the redo file stayed.
#[test]
fn an_image_is_closed_though_a_recording_reads_its_contents() {
    let place = Place::new();
    // One range of data, which takes long to find.
    let create = ["create", "--size", "32G", "--preallocation", "metadata", "disk.qcow2"];
    for is_removed in [true, false] {
        place.succeed(&create);
        let mut daemon = place.serve(&["--name", "disk", "disk.qcow2"]);
        let mut recorder = record(&place, "trace", &[]);
        daemon.wait_stderr("a recording begins", HANG).unwrap();
        if is_removed {
            let control = place.text("control.sock");
            place.succeed(&["disk", "remove", "--force", "--control", &control, "disk"]);
        } else {
            daemon.signal(Signal::TERM).unwrap();
            assert!(daemon.wait(HANG).unwrap().success());
        }
        assert!(!has_redo_file(&place.path("")), "it was removed: {is_removed}");
        recorder.wait(HANG).unwrap();
        for name in ["disk.qcow2", "trace"] {
            fs::remove_file(place.path(name)).unwrap();
        }
    }
}

#[test]
fn guests_come_and_go_and_several_record() {
    let place = Place::new();
    let daemon = place.serve(&["--backend", "mem:16M", "--name", "disk"]);
    let first = record(&place, "first.zst", &[]);
    writes(&mut place.client(), 0..10);
    let second = record(&place, "second.zst", &[]);
    let mut client = Client::connect(place.options().queues(2)).unwrap();
    writes(&mut client, 10..20);
    client.stop().unwrap();
    client.start().unwrap();
    writes(&mut client, 20..30);
    assert_eq!(end(first), Totals { requests: 30, lost: 0 });
    writes(&mut client, 30..40);
    assert_eq!(end(second), Totals { requests: 30, lost: 0 });
    assert_eq!(blocks(&requests(&place, "first.zst")), (0..30).collect::<Vec<_>>());
    assert_eq!(blocks(&requests(&place, "second.zst")), (10..40).collect::<Vec<_>>());
    stop(daemon);
}

/// The recording waits for nothing, and lost requests are counted: here, in the daemon and in the
/// trace.
#[test]
fn a_reader_that_stops_holds_no_guest() {
    const OPS: u64 = 300_000;
    let place = Place::new();
    let daemon = place.serve(&["--backend", "null:16M", "--name", "disk"]);
    let mut recorder = record(&place, "t.zst", &[]);
    recorder.signal(Signal::STOP).unwrap();
    let options = LoadOptions::new(place.path("disk.sock")).iodepth(32).ops(OPS);
    assert_eq!(run(&options).unwrap().errors, 0);
    recorder.signal(Signal::CONT).unwrap();
    recorder.signal(Signal::INT).unwrap();
    let status = recorder.wait(HANG).unwrap();
    if recorder.stderr().contains("the daemon hung up") {
        // On a very slow machine: the daemon does not wait for ever either.
        assert_eq!(status.code(), Some(1));
    } else {
        let Totals { requests, lost } = totals(recorder);
        assert_eq!((requests + lost, lost > 0), (OPS, true));
        let trace = read(&place.path("t.zst")).unwrap();
        assert_eq!((asked(&trace).len() as u64, trace.lost), (requests, lost));
        assert_eq!(trace.warnings(), [format!("it lacks {lost} requests that its recorder lost")]);
        assert!(is_in_order(&trace));
    }
    stop(daemon);
}

/// Writes until a frame is in the file. Returns the number of writes.
fn write_until_saved(place: &Place, client: &mut Client, output: &str) -> u64 {
    let mut written = 0;
    wait_until("a frame is in the file", || {
        writes(client, written..written + 1);
        written += 1;
        fs::metadata(place.path(output)).unwrap().len() > 0
    });
    written
}

/// Checks that a truncated file contains the first requests.
fn check_cut(place: &Place, output: &str, written: u64) {
    let trace = read(&place.path(output)).unwrap();
    let blocks = blocks(&asked(&trace));
    assert!(trace.is_cut && !blocks.is_empty() && blocks.len() as u64 <= written);
    assert_eq!(blocks, (0..blocks.len() as u64).collect::<Vec<_>>());
}

#[test]
fn a_recorder_that_is_killed_leaves_what_it_has_and_its_place() {
    let place = Place::new();
    let daemon = place.serve(&["--backend", "mem:64M", "--name", "disk"]);
    let mut client = place.client();
    let mut recorder = record(&place, "t.zst", &[]);
    let written = write_until_saved(&place, &mut client, "t.zst");
    recorder.kill().unwrap();
    writes(&mut client, 0..100);
    check_cut(&place, "t.zst", written);
    for turn in 0..3 * RECORDINGS_MAX {
        let killed = |name: &str| {
            record(&place, name, &[]).kill().unwrap();
            fs::remove_file(place.path(name)).unwrap();
        };
        // The daemon notices the end of the previous recording a moment later.
        killed(&format!("{turn}.zst"));
        wait_for("a place", || {
            let (answer, _gone) = by_hand(&place);
            if answer.contains(" 200 ") { Ok(()) } else { Err(answer) }
        });
    }
    stop(daemon);
}

#[test]
fn a_daemon_that_is_killed_leaves_a_trace_that_says_so() {
    let place = Place::new();
    let mut daemon = place.serve(&["--backend", "mem:64M", "--name", "disk"]);
    let mut recorder = record(&place, "t.zst", &[]);
    let mut client = place.client();
    let written = write_until_saved(&place, &mut client, "t.zst");
    daemon.kill().unwrap();
    assert_eq!(recorder.wait(HANG).unwrap().code(), Some(1));
    assert_eq!(
        recorder.stderr(),
        "flowstone: record disk: the daemon hung up; the file has what came before\n"
    );
    check_cut(&place, "t.zst", written);
    let replay = ["replay", "--trace", "t.zst", "--format", "raw", "--json"];
    let said = String::from_utf8(place.run(&replay).stderr).unwrap();
    assert!(said.contains("t.zst: its end is missing"), "{said}");
}

#[test]
fn a_daemon_that_stops_ends_its_recordings() {
    let place = Place::new();
    place.image("16M");
    let daemon = place.serve(&["--name", "disk", "disk.raw"]);
    let recorder = record(&place, "t.zst", &[]);
    let mut client = place.client();
    writes(&mut client, 0..50);
    stop(daemon);
    assert_eq!(totals(recorder), Totals { requests: 50, lost: 0 });
    assert_eq!(blocks(&requests(&place, "t.zst")), (0..50).collect::<Vec<_>>());
}

#[test]
fn a_recording_that_cannot_be_is_refused() {
    let place = Place::new();
    let daemon = place.serve(&["--backend", "mem:1M", "--name", "disk"]);
    fs::write(place.path("taken"), "mine").unwrap();
    let control = place.text("control.sock");
    let args = ["record", "--control", &control, "--output"];
    let said = place.refused(&[&args[..], &["taken", "disk"]].concat());
    assert!(said.starts_with("flowstone: taken: File exists"), "{said}");
    assert_eq!(fs::read(place.path("taken")).unwrap(), b"mine");
    let said = place.refused(&[&args[..], &["new", "nobody"]].concat());
    assert!(said.contains("record nobody: no disk is called that"), "{said}");
    // The previous one may not have ended yet.
    let others: Vec<_> = (0..RECORDINGS_MAX)
        .map(|_| {
            wait_for("a place", || match by_hand(&place) {
                (answer, other) if answer.contains(" 200 ") => Ok(other),
                (answer, _) => Err(answer),
            })
        })
        .collect();
    let said = place.refused(&[&args[..], &["new", "disk"]].concat());
    assert!(said.contains("record disk: 8 recordings are running; try again"), "{said}");
    assert!(!place.path("new").exists());
    // Places for control clients are left.
    assert_eq!(place.disk_stats("disk")["name"], "disk");
    drop(others);
    let quick = [&args[..], &["new", "disk", "--seconds", "0"]].concat();
    wait_until("a place", || place.run(&quick).status.success());
    let trace = zstd::decode_all(fs::File::open(place.path("new")).unwrap()).unwrap();
    let trace = String::from_utf8(trace).unwrap();
    assert!(trace.starts_with("# flowstone-trace 1 size=1048576 format=none\n"), "{trace}");
    assert!(trace.ends_with("# requests=0 lost=0\n"), "{trace}");
    stop(daemon);
}
