//! `GET /metrics`, as Prometheus reads it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;

use flowstone_testkit::fuse::FuseHost;
use flowstone_testkit::load::{LoadOptions, run};
use flowstone_testkit::{HANG, Status, skip, wait_for, wait_until};

use crate::fixture::{Place, ask, pattern, stop};
use crate::many_disks::{config, serve};

/// Scrapes the metrics. Returns the values by name and labels as written.
fn scrape(place: &Place) -> BTreeMap<String, f64> {
    let (status, text) = ask(place, "GET", "/metrics", "");
    assert_eq!(status, 200, "{text}");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
        .collect()
}

/// Returns the path of a program of Debian's package, from where scripts/setup puts it, or from the
/// system. Prints a note if there is none.
pub fn of_prometheus(name: &str) -> Option<PathBuf> {
    let ours = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("../tools").join(name);
    let all = [ours, name.into()];
    let found = all.into_iter().find(|it| Command::new(it).arg("--version").output().is_ok());
    if found.is_none() {
        skip(format_args!("no {name}; scripts/setup --ci"));
    }
    found
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
    for label in [r#"format="log""#, r#"serial="s""#] {
        assert!(info.contains(label), "{info}");
    }
    let (direct, engine) = (&stats["direct"], stats["engine"].as_str().unwrap());
    assert!(info.contains(&format!("direct=\"{direct}\",")), "{info}");
    assert!(info.contains(&format!("engine=\"{engine}\",")), "{info}");
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
    let Some(promtool) = of_prometheus("promtool") else { return };
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

/// All buckets of the daemon; `stats` shows the same.
#[test]
fn buckets_are_as_fine_as_they_are_asked_for() {
    const OPS: u64 = 3000;
    let place = Place::new();
    let args =
        ["--metrics-buckets", "fine", "--backend", "null:1M", "--name", "a", "--vm", "name=v"];
    let daemon = place.serve(&args);
    let options = LoadOptions::new(place.path("disk.sock")).workload("randread").ops(OPS);
    assert_eq!(run(&options).unwrap().errors, 0);
    let all = scrape(&place);
    let buckets = |le: f64| {
        let key = format!(
            "flowstone_request_duration_seconds_bucket{{disk=\"a\",op=\"read\",le=\"{le}\"}}"
        );
        all.get(&key).copied()
    };
    let ends =
        all.keys().filter(|key| key.starts_with("flowstone_request_duration_seconds_bucket"));
    assert_eq!(ends.count(), 1 + 23 * 8 + 1);
    let control = place.text("control.sock");
    let stats = ["stats", "--control", &control, "--json", "--buckets"];
    let stats: serde_json::Value = serde_json::from_str(&place.succeed(&stats)).unwrap();
    let disk = &stats["disks"][0];
    let times = &disk["total"]["device_us"]["read"];
    let mut counted = 0.0;
    for bucket in times["buckets"].as_array().unwrap() {
        let (end_us, count) = (bucket[0].as_f64().unwrap(), bucket[1].as_f64().unwrap());
        assert!(count > 0.0, "{times}");
        counted += count;
        if (1.024..8_589_934.0).contains(&end_us) {
            assert_eq!(buckets((end_us * 1e3).round() / 1e9), Some(counted), "{end_us}");
        }
    }
    assert_eq!(Some(counted), times["count"].as_f64());
    assert!(counted >= OPS as f64);
    assert!(place.stats()["disks"][0]["total"]["device_us"]["read"].get("buckets").is_none());
    assert!(
        all.keys().any(|key| key.starts_with("flowstone_disk_info") && key.contains("vm=\"v\""))
    );
    // Without a guest there are no negotiated features; the disk has no image.
    wait_until("the load has gone", || place.disk_stats("a")["features"] == serde_json::json!([]));
    assert!(disk.get("direct").is_none() && disk.get("engine").is_none(), "{disk}");
    let guest = place.client();
    let features = place.disk_stats("a")["features"].clone();
    for feature in ["version_1", "flush", "event_idx"] {
        assert!(features.as_array().unwrap().contains(&feature.into()), "{features}");
    }
    drop(guest);
    stop(daemon);
}

/// A scraper cannot remove disks.
#[test]
fn an_address_of_its_own_answers_scrapes_and_nothing_else() {
    let place = Place::new();
    // A port that is free now may be taken meanwhile; then the next one is tried.
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

#[test]
fn two_hundred_disks_are_scraped_while_one_is_resized_and_one_hangs() {
    let place = Place::new();
    let [at, behind] = ["at", "behind"].map(|name| place.path(name));
    fs::create_dir(&at).unwrap();
    fs::create_dir(&behind).unwrap();
    let Some(host) = FuseHost::mount_or_skip(&at, &behind) else { return };
    let mut disks = Vec::new();
    for index in 0..50 {
        for suffix in ["flow", "qcow2"] {
            let image = format!("d{index}.{suffix}");
            place.succeed(&["create", "--size", "4M", &image]);
            disks.push((image.clone(), format!("image = {:?}", place.text(&image))));
        }
    }
    disks.extend((0..99).map(|index| (format!("null{index}"), "backend = 'null:1M'".to_owned())));
    place.succeed(&["create", "--size", "4M", "at/hung.raw"]);
    disks.push(("hung".into(), format!("image = {:?}", place.text("at/hung.raw"))));
    let named: Vec<_> = disks.iter().map(|(name, line)| (&**name, &**line)).collect();
    let daemon = serve(&config(&place, &named), named.len());
    // For longer than a scrape may take.
    host.stop();
    let capacity = "flowstone_disk_capacity_bytes{disk=\"d0.flow\"}";
    for mib in 5..10_u64 {
        let size = format!("{mib}M");
        let set = ["disk", "set", "--control", &place.text("control.sock"), "d0.flow", "--size"];
        thread::scope(|scope| {
            let resize = scope.spawn(|| place.succeed(&[&set[..], &[&size]].concat()));
            let all = scrape(&place);
            let up = all.iter().filter(|(name, _)| name.starts_with("flowstone_disk_up{"));
            assert_eq!(up.map(|(_, value)| *value).sum::<f64>(), 200.0);
            assert_eq!(place.stats()["disks"].as_array().unwrap().len(), 200);
            resize.join().unwrap();
        });
        assert_eq!(scrape(&place)[capacity], (mib << 20) as f64);
    }
    host.release();
    stop(daemon);
}
