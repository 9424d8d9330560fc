//! Limits of disks and groups, seen by operators and guests.
//!
//! No test here requires a rate: a busy machine cannot provide it. A limit is kept if the requests
//! took long enough; shares are tested on simulated time (`crates/qos`) and measured by
//! `flowstone-bench qos`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flowstone_testkit::load::{LoadOptions, run};
use flowstone_testkit::{Client, ClientOptions, Request, Status};

use crate::fixture::{Over, Place, ask, pattern, stop};
use crate::many_disks::{config, serve};

/// Runs this many requests, `iodepth` at a time. Returns the time, including the connection.
fn load(
    place: &Place,
    name: &str,
    queues: usize,
    iodepth: u16,
    block_bytes: u64,
    ops: u64,
) -> Duration {
    let socket = place.path(&format!("{name}.sock"));
    let mut options = LoadOptions::new(socket).workload("randrw").iodepth(iodepth).ops(ops);
    options.client = options.client.queues(queues);
    options.block_bytes = block_bytes;
    let began = Instant::now();
    let report = run(&options).unwrap();
    assert_eq!((report.errors, report.ops), (0, ops), "{:?}", report.first_error);
    began.elapsed()
}

/// Returns whether this many requests in that time keep a limit of `limit` a second, with the
/// default burst and the debt allowed to a queue.
fn keeps(limit: f64, requests: u64, time: Duration) -> bool {
    (requests as f64) < limit * (time.as_secs_f64() + 0.01) * 1.05 + 2.0
}

/// Runs `flowstone disk set` or `group set` with the daemon's control socket.
fn set(place: &Place, what: &str, args: &[&str]) -> String {
    let control = place.text("control.sock");
    place.succeed(&[&[what, "set", "--control", &control], args].concat())
}

#[test]
fn a_disk_gets_no_more_requests_and_bytes_than_its_limit_says() {
    for (limit, queues, block_bytes, wanted) in [
        // What is in flight is more than the burst, however slow the client is.
        ("iops=1000", 1, 4096, 1000.0),
        ("iops=1000", 3, 4096, 1000.0),
        ("iops=100000,bw=16M", 1, 16384, 1024.0),
    ] {
        let place = Place::new();
        let daemon = place.serve(&["--backend", "mem:64M", "--name", "disk", "--limit", limit]);
        let time = load(&place, "disk", queues, 32, block_bytes, 1000);
        assert!(keeps(wanted, 1000, time), "{limit}: {time:?}");
        let stats = place.disk_stats("disk");
        assert!(stats["throttled"].as_u64().unwrap() > 0, "{stats}");
        assert!(stats["throttled_s"].as_f64().unwrap() > 0.0, "{stats}");
        let shown = place.succeed(&["stats", "--control", &place.text("control.sock")]);
        assert!(shown.contains(&format!("  limit {limit},burst=0.01s, weight 100; ")), "{shown}");
        stop(daemon);
    }
}

/// One disk with a high load, one with a low one, and a common limit.
#[test]
fn disks_of_a_group_share_its_limit_and_none_starves() {
    // With a thread for each queue a disk wakes the thread of another one.
    for threads in ["pollers = 'per-queue'\n", "pollers = 1\n"] {
        a_group_shares_its_limit(threads);
    }
}

fn a_group_shares_its_limit(threads: &str) {
    let place = Place::new();
    let line = "backend = 'mem:16M'\ngroup = 'web'";
    let file = config(&place, &[("hog", line), ("modest", line), ("free", "backend = 'mem:16M'")]);
    let groups = "[[group]]\nname = 'web'\niops = 3000\n";
    let text = threads.to_owned() + &std::fs::read_to_string(&file).unwrap() + groups;
    std::fs::write(&file, text).unwrap();
    let daemon = serve(&file, 3);
    // The hog always has more to do until the modest one is done, which would never be if it
    // starved.
    let both = |place: &Place, limit: f64| {
        let (began, is_done) = (Instant::now(), AtomicBool::new(false));
        let hogs = std::thread::scope(|scope| {
            let hog = scope.spawn(|| {
                let mut requests = 0;
                while !is_done.load(Ordering::Relaxed) {
                    load(place, "hog", 2, 128, 4096, 1000);
                    requests += 1000;
                }
                requests
            });
            let over = Over(&is_done);
            load(place, "modest", 1, 1, 4096, 300);
            drop(over);
            hog.join().unwrap()
        });
        let time = began.elapsed();
        assert!(keeps(limit, hogs + 300, time), "{hogs} and 300 in {time:?}");
    };
    both(&place, 3000.0);
    let throttled = || place.disk_stats("free")["throttled"].clone();
    load(&place, "free", 1, 8, 4096, 1000);
    assert_eq!(throttled(), 0, "what is in no group has no limit");

    assert_eq!(
        set(&place, "group", &["web", "--limit", "bw=4M"]),
        "web: limit bw=4M,burst=0.01s\n"
    );
    both(&place, 1024.0);
    let stats = place.stats();
    assert_eq!(stats["groups"][0]["limit"]["bytes_per_s"], 4 << 20);
    assert_eq!(place.disk_stats("hog")["group"], "web");
    assert!(place.disk_stats("free")["group"].is_null());
    set(&place, "group", &["web", "--limit", "off"]);
    let before = place.disk_stats("modest")["throttled"].clone();
    load(&place, "modest", 1, 8, 4096, 1000);
    assert_eq!(place.disk_stats("modest")["throttled"], before);
    stop(daemon);
}

/// Makes a client with `count` writes in flight, of which all but one wait.
fn held(place: &Place, count: u64) -> Client {
    let mut client = place.client();
    for at in 0..count {
        client.submit(0, &Request::write(at * 8, &pattern(4096, at as u8))).unwrap();
    }
    client.notify(0).unwrap();
    assert_eq!(client.wait(0).unwrap().status, Status::Ok);
    client
}

fn check_all(client: &mut Client, count: u64) {
    for at in 0..count {
        let mut back = [0; 4096];
        assert_eq!(client.read(at * 8, &mut back).unwrap(), Status::Ok);
        assert!(back == *pattern(4096, at as u8), "block {at} is wrong");
    }
}

/// At one request in two hours the held ones complete only because of events in the test.
const NEVER: [&str; 4] = ["--limit", "bw=1", "--name", "disk"];

fn serve_held(place: &Place) -> flowstone_testkit::Daemon {
    place.image("1M");
    place.serve(&[&NEVER[..], &["disk.raw"]].concat())
}

#[test]
fn a_limit_that_is_changed_counts_for_what_waits_already() {
    let place = Place::new();
    let daemon = serve_held(&place);
    let mut client = held(&place, 16);
    let said = set(&place, "disk", &["disk", "--weight", "250"]);
    assert_eq!(said, "disk: limit bw=1,burst=0.01s, weight 250\n");
    assert_eq!(client.in_flight(0), 15);
    let image = place.text("disk.raw");
    assert_eq!(
        set(&place, "disk", &[&image, "--limit", "off"]),
        format!("{image}: limit off, weight 250\n")
    );
    assert!(client.drain(0).unwrap().iter().all(|done| done.status == Status::Ok));
    check_all(&mut client, 16);
    let stats = place.disk_stats("disk");
    assert!(stats["limit"].is_null(), "{stats}");
    assert_eq!((&stats["weight"], &stats["throttled"]), (&250.into(), &15.into()));
    set(&place, "disk", &["disk", "--limit", "iops=100000,burst=2s"]);
    let limit = &place.disk_stats("disk")["limit"];
    assert_eq!((&limit["iops"], &limit["burst_s"]), (&100_000.into(), &2.0.into()));
    check_all(&mut client, 16);
    stop(daemon);
}

/// Regression: a stop released all waiting requests, so a guest that toggled its cache mode had no
/// limit. And waiting requests must not delay the daemon, or the monitor, for as long as the limit
/// demands.
#[test]
fn what_waits_at_a_stop_stays_in_the_ring() {
    let place = Place::new();
    let daemon = serve_held(&place);
    let mut client = held(&place, 16);
    // GET_VRING_BASE, as at a reset of the guest.
    for _ in 0..20 {
        client.stop().unwrap();
        client.start().unwrap();
    }
    assert_eq!(client.in_flight(0), 15);
    assert_eq!(place.disk_stats("disk")["total"]["requests"]["write"], 1);
    // SIGTERM.
    stop(daemon);
    let daemon = place.serve(&["disk.raw"]);
    client.reconnect().unwrap();
    let done = client.drain(0).unwrap();
    assert!(done.len() == 15 && done.iter().all(|done| done.status == Status::Ok));
    check_all(&mut client, 16);
    stop(daemon);
}

#[test]
fn what_waits_at_a_kill_is_carried_out_by_the_next_daemon() {
    let place = Place::new();
    let mut daemon = serve_held(&place);
    let mut client = held(&place, 16);
    daemon.kill().unwrap();
    let daemon = place.serve(&["disk.raw"]);
    client.reconnect().unwrap();
    assert!(client.drain(0).unwrap().iter().all(|done| done.status == Status::Ok));
    check_all(&mut client, 16);
    stop(daemon);
}

/// Reordering would show: blocks are rewritten before they have been read.
#[test]
fn data_is_right_and_in_order_while_requests_wait() {
    for image in ["disk.raw", "disk.qcow2", "disk.flow"] {
        let place = Place::new();
        place.succeed(&["create", "--size", "64M", image]);
        // The first requests of a queue are more than the burst, however slow the client is.
        let daemon = place.serve(&["--limit", "iops=1000,bw=16M", "--cache", "4M", image]);
        let mut options =
            LoadOptions::new(place.path("disk.sock")).workload("mix").iodepth(16).ops(1000);
        options.client = options.client.queues(2);
        options.block_bytes = 16384;
        (options.span_bytes, options.flush_every) = (4 << 20, 20);
        (options.verify, options.verify_final, options.discard_zeroes) = (true, true, true);
        let report = run(&options).unwrap();
        assert_eq!(report.errors, 0, "{:?}", report.first_error);
        assert!(place.disk_stats("disk")["throttled"].as_u64().unwrap() > 0);
        stop(daemon);
    }
}

#[test]
fn what_is_no_limit_is_refused_with_what_to_do() {
    let place = Place::new();
    let daemon = place.serve(&["--backend", "mem:1M", "--name", "disk"]);
    let control = place.text("control.sock");
    let serve = ["serve", "--socket", "s", "--backend", "mem:1M", "--limit"];
    let set = ["disk", "set", "--control", &control, "disk"];
    let of_group = ["group", "set", "--control", &control, "web"];
    for (args, expected) in [
        ([&serve[..], &["iops=0"]].concat(), "`iops=0` is no rate; use 20000"),
        ([&serve[..], &["5000"]].concat(), "use iops=N,bw=SIZE,burst=TIME, or off"),
        ([&set[..], &["--limit", "bw=fast"]].concat(), "`bw=fast` is no rate; use bytes"),
        ([&set[..], &["--weight", "0"]].concat(), "a weight of 0; use one from 1 to 10000"),
        (set.to_vec(), "<--limit <PARTS>|--weight <N>|--size <SIZE>>"),
        (of_group.to_vec(), "--limit <PARTS>"),
    ] {
        let output = place.run(&args);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {errors}");
        assert!(errors.contains(expected), "{args:?}: {errors}");
    }
    let nobody = ["disk", "set", "--control", &control, "nobody", "--limit", "off"];
    assert!(place.refused(&nobody).contains("disk set nobody: no disk is called that; see"));
    let group = [&of_group[..], &["--limit", "off"]].concat();
    assert!(place.refused(&group).contains("group set web: no group is called that; see"));
    // Programs use the socket directly.
    let (status, answer) =
        ask(&place, "PATCH", "/v1/disks/disk", r#"{"limit":"iops=9","weight":0}"#);
    let why = r#""kind":"invalid","what":"disk set disk","why":"a weight of 0;"#;
    assert!(status == 400 && answer.contains(why), "{status} {answer}");
    assert!(place.disk_stats("disk")["limit"].is_null(), "all of a command or nothing");
    let client = Client::connect(ClientOptions::new(place.path("disk.sock"))).unwrap();
    drop(client);
    stop(daemon);
}
