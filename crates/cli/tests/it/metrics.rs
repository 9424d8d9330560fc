//! `GET /metrics`, as Prometheus reads it.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use flowstone_testkit::load::{LoadOptions, run};
use flowstone_testkit::{HANG, Status, skip, wait_for, wait_until};

use crate::fixture::{Place, ask, pattern, stop};

/// The figures of a scrape, by name and labels as they are written.
fn scrape(place: &Place) -> BTreeMap<String, f64> {
    let (status, text) = ask(place, "GET", "/metrics", "");
    assert_eq!(status, 200, "{text}");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
        .collect()
}

/// Of Debian's package, where scripts/setup puts it, or from the system.
fn promtool() -> Option<PathBuf> {
    let ours = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("../tools/promtool");
    let all = [ours, "promtool".into()];
    all.into_iter().find(|it| Command::new(it).arg("--version").output().is_ok())
}

#[test]
fn figures_are_those_of_the_guest() {
    const OPS: u64 = 5000;
    let place = Place::new();
    place.succeed(&["create", "--size", "64M", "disk.flow"]);
    let name = "a \"b\" \\ ä";
    let daemon = place.serve(&["--cache", "8M", "--name", name, "--serial", "s", "disk.flow"]);
    let disk = r#"disk="a \"b\" \\ ä""#;
    let at = |all: &BTreeMap<String, f64>, name: &str, labels: &str| {
        all.get(&format!("{name}{{{disk}{labels}}}")).copied()
    };
    let idle = scrape(&place);
    assert_eq!(at(&idle, "flowstone_disk_up", ""), Some(1.0));
    assert_eq!(at(&idle, "flowstone_disk_connected", ""), Some(0.0));
    assert!(idle.keys().all(|name| !name.starts_with("flowstone_requests_total")), "{idle:?}");
    let mut guest = place.client();
    assert_eq!(guest.write(0, &pattern(4096, 1)).unwrap(), Status::Ok);
    assert_eq!(guest.read(0, &mut [0; 4096]).unwrap(), Status::Ok);
    assert_eq!(at(&scrape(&place), "flowstone_disk_connected", ""), Some(1.0));
    drop(guest);
    let options = LoadOptions::new(place.path("disk.sock")).workload("randread").ops(OPS);
    assert_eq!(run(&options).unwrap().errors, 0);
    let all = wait_for("the guest has gone", || {
        let all = scrape(&place);
        if at(&all, "flowstone_disk_connected", "") == Some(0.0) { Ok(all) } else { Err(all) }
    });
    let read = r#",op="read""#;
    let reads = at(&all, "flowstone_requests_total", read).unwrap();
    let stats = place.disk_stats(name);
    assert_eq!(Some(reads), stats["total"]["requests"]["read"].as_f64());
    assert!(reads >= OPS as f64);
    let bytes = stats["total"]["bytes"]["read"].as_f64();
    assert_eq!(at(&all, "flowstone_request_bytes_total", read), bytes);
    assert_eq!(at(&all, "flowstone_disk_connections_total", ""), Some(2.0));
    assert_eq!(at(&all, "flowstone_requests_in_flight", ""), Some(0.0));
    assert_eq!(at(&all, "flowstone_log_segments", r#",state="dead""#), Some(0.0));
    assert!(at(&all, "flowstone_cache_hit_blocks_total", r#",class="data""#).is_some());
    assert!(at(&all, "flowstone_requests_total", r#",op="discard""#).is_none());
    let info = all.keys().find(|key| key.starts_with("flowstone_disk_info{")).unwrap();
    assert!(info.contains(r#"format="log""#) && info.contains(r#"serial="s""#), "{info}");
    // The buckets.
    let bucket = |le: &str| {
        at(&all, "flowstone_request_duration_seconds_bucket", &format!("{read},le=\"{le}\""))
    };
    let ends: Vec<f64> = [10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 33]
        .map(|log2: u32| bucket(&format!("{}", (1u64 << log2) as f64 / 1e9)).unwrap())
        .to_vec();
    assert!(ends.is_sorted() && ends[12] == reads, "{ends:?}");
    assert_eq!(bucket("+Inf"), Some(reads));
    let sum = at(&all, "flowstone_request_duration_seconds_sum", read).unwrap();
    let mean = stats["total"]["device_us"]["read"]["mean"].as_f64().unwrap();
    assert!((sum / reads * 1e6 / mean - 1.0).abs() < 0.01, "{sum} {mean}");
    stop(daemon);
}

#[test]
fn promtool_finds_nothing_to_say() {
    let Some(promtool) = promtool() else { return skip("no promtool; scripts/setup --ci") };
    let place = Place::new();
    place.succeed(&["create", "--size", "64M", "disk.flow"]);
    let daemon = place.serve(&["--cache", "8M", "disk.flow"]);
    let options = LoadOptions::new(place.path("disk.sock")).workload("mix").ops(1000);
    assert_eq!(run(&options).unwrap().errors, 0);
    let (_, text) = ask(&place, "GET", "/metrics", "");
    let mut check = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    check.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = check.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert_eq!(String::from_utf8_lossy(&said), "", "{text}");
    assert!(output.status.success());
    stop(daemon);
}

fn answer(mut socket: impl Read + Write, request: &str) -> String {
    let head = format!("{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    socket.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

/// A scraper cannot remove disks.
#[test]
fn an_address_of_its_own_answers_scrapes_and_nothing_else() {
    let place = Place::new();
    // A port that is free now may be taken meanwhile; then the next one.
    let (daemon, port) = wait_for("a port", || {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("127.0.0.1:{port}");
        let args = ["--metrics-listen", &address, "--backend", "null:1M", "--name", "a"];
        place.serve_command(&args).spawn().map(|daemon| (daemon, port))
    });
    let tcp = || TcpStream::connect(("127.0.0.1", port)).unwrap();
    let scraped = answer(tcp(), "GET /metrics");
    assert!(scraped.contains("text/plain; version=0.0.4") && scraped.contains("flowstone_disk_up"));
    for request in ["DELETE /v1/disks/a?force=1", "GET /v1/stats", "GET /v1/disks"] {
        let refused = answer(tcp(), request);
        assert!(refused.starts_with("HTTP/1.1 404 "), "{refused}");
    }
    assert_eq!(place.disk_stats("a")["name"], "a");
    stop(daemon);
    let path = place.text("metrics.sock");
    let address = format!("unix:{path}");
    let mut daemon = place.serve(&["--metrics-listen", &address, "--backend", "null:1M"]);
    let unix = UnixStream::connect(&path).unwrap();
    assert!(answer(unix, "GET /metrics").contains("flowstone_build_info"));
    assert!(daemon.terminate(HANG).unwrap().success());
    wait_until("its socket is gone", || !place.path("metrics.sock").exists());
}
