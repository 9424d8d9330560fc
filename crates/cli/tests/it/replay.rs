//! `flowstone replay`: the interface for scripts.

use std::process::Command;

use flowstone_testkit::Status;
use serde_json::Value;

use crate::fixture::{Place, stop};

const SMALL: [&str; 9] =
    ["replay", "--size", "64M", "--fill", "0.4", "--ssd", "op=28%", "--json", "--warmup=20000"];

#[test]
fn a_replay_says_what_was_written_at_each_level() {
    let place = Place::new();
    for format in ["raw", "log"] {
        let load = ["--generate", "zipf:0.99", "--ops", "30000", "--format", format];
        let args = [&SMALL[..], &load].concat();
        let text = place.succeed(&args);
        let report: Value = serde_json::from_str(&text).unwrap();
        let number =
            |key: &str| report[key].as_f64().unwrap_or_else(|| panic!("{key} in {report}"));
        assert_eq!((number("guest_blocks"), number("requests")), (30_000.0, 30_000.0));
        let (host, device) = (number("host_blocks"), number("device_blocks"));
        assert_eq!(number("host_waf"), host / 30_000.0);
        assert_eq!(number("device_waf"), device / host);
        assert_eq!(number("total_waf"), device / 30_000.0);
        assert!(number("erases") > 0.0 && number("device_seconds") > 0.0, "{report}");
        assert_eq!((number("seed"), number("punches") >= 0.0), (1.0, true));
        assert_eq!(place.succeed(&args), text, "another run says something else");
    }
}

/// One request at a time: with several, the speed of the medium decides how many share a record.
/// It also decides how much is cleaned in pauses: 3.94 blocks were written for one in 1.3 s in
/// memory, 4.5 in 4 s on a disk as in the replay, 4.61 in 44 s on a busy one.
#[test]
fn a_log_writes_in_a_replay_what_it_writes_in_the_daemon() {
    let place = Place::new();
    let mut random = fastrand::Rng::with_seed(1);
    let offsets: Vec<u64> = (0..50_000).map(|_| random.u64(..8192) * 4096).collect();
    let lines = (0..).zip(&offsets).map(|(at, offset): (u64, _)| format!("{at},W,{offset},4096\n"));
    std::fs::write(place.path("trace.csv"), lines.collect::<String>()).unwrap();
    let image = ["--size", "32M", "--segment", "1M", "--reserve", "30"];
    place.succeed(&[&["create"], &image[..], &["disk.flow"]].concat());
    let daemon = place.serve(&["--name", "disk", "disk.flow"]);
    let mut client = place.client();
    for offset in &offsets {
        assert_eq!(client.write(offset / 512, &[1; 4096]).unwrap(), Status::Ok);
    }
    let served = place.disk_stats("disk")["log"]["write_amplification"].as_f64().unwrap();
    drop(client);
    stop(daemon);
    let trace = ["replay", "--trace", "trace.csv", "--format", "log", "--json"];
    let one_by_one = ["--iodepth", "1", "--timing", "asap", "--fill", "0.4"];
    let report = place.succeed(&[&trace[..], &image, &one_by_one].concat());
    let report: Value = serde_json::from_str(&report).unwrap();
    let replayed = report["host_waf"].as_f64().unwrap();
    assert!(served > 2.5 && (replayed / served - 1.0).abs() < 0.15, "{replayed} for {served}");
}

#[test]
fn a_trace_is_replayed_as_it_is_and_its_mistakes_are_named() {
    let place = Place::new();
    std::fs::write(place.path("trace.csv"), "0,P,0,1048576\n1,W,0,4096\n2,R,0,512\n3,F,0,0\n")
        .unwrap();
    let trace = ["replay", "--trace", "trace.csv", "--size", "64M", "--format", "raw", "--json"];
    let args = [&trace[..], &["--ssd", "op=28%"]].concat();
    let report: Value = serde_json::from_str(&place.succeed(&args)).unwrap();
    for (key, count) in [("requests", 3), ("reads", 1), ("writes", 1), ("flushes", 1)] {
        assert_eq!(report[key], count, "{key} in {report}");
    }
    std::fs::write(place.path("trace.csv"), "0,W,0,4096\n1,W,oops,4096\n").unwrap();
    let refusal = place.refused(&args);
    assert!(refusal.contains("trace.csv: line 2:"), "{refusal}");
    let refusal = place.refused(&["replay", "--trace", "none.csv", "--format", "raw"]);
    assert!(refusal.contains("none.csv"), "{refusal}");
    let full =
        ["replay", "--generate", "uniform", "--size", "1G", "--fill", "0.8", "--format", "log"];
    let refusal = place.refused(&full);
    assert!(refusal.contains("the largest --fill is 0.7"), "{refusal}");
}

#[test]
fn the_age_of_segments_may_count_less_or_not_at_all() {
    let place = Place::new();
    let copies = |power: &str| {
        let load = ["replay", "--generate", "hotcold:95/5", "--size", "64M", "--fill", "0.6"];
        let image = ["--format", "log", "--json", "--age-power", power];
        let report: Value =
            serde_json::from_str(&place.succeed(&[&load[..], &image].concat())).unwrap();
        report["host_blocks"].as_f64().unwrap()
    };
    assert!(copies("0") > 1.2 * copies("0.5"), "greedy is no worse under skew");
    let raw =
        [&SMALL[..], &["--generate", "uniform", "--format", "raw", "--age-power", "0"]].concat();
    let refusal = place.refused(&raw);
    assert!(refusal.contains("leave out --age-power"), "{refusal}");
    let usage = place.run(&["replay", "--format", "log", "--age-power", "2"]);
    assert!(String::from_utf8_lossy(&usage.stderr).contains("give a number from 0 to 1"));
}

#[test]
fn how_an_image_is_made_and_opened_can_be_said_as_create_and_serve_have_it() {
    let place = Place::new();
    let load = ["--generate", "uniform", "--ops", "1000"];
    let json = |more: &[&str]| -> Value {
        serde_json::from_str(&place.succeed(&[&SMALL[..], &load, more].concat())).unwrap()
    };
    let log = json(&["--format", "log", "--create-arg=--segment=2M", "--create-arg=--reserve=9"]);
    assert_eq!(
        (log["segment_bytes"].as_u64(), log["reserve_percent"].as_u64()),
        (Some(2 << 20), Some(9))
    );
    let cached = json(&["--format", "qcow2", "--create-arg=--cluster-size=128K", "--cache=4M"]);
    assert_eq!(cached["hits"]["data"]["hits"], 0, "nothing was read: {cached}");
    assert_eq!(json(&["--format=raw", "--serve-arg=--discard=ignore"])["hits"], Value::Null);
    let refused = |more: &[&str]| place.refused(&[&SMALL[..], &load, more].concat());
    for (arg, why) in [
        ("--serve-arg=--limit=iops=1", "--serve-arg (of `serve`): unexpected argument '--limit'"),
        ("--create-arg=--size=1G", "--create-arg (of `create`): unexpected argument '--size'"),
        ("--cache=1", "--serve-arg (of `serve`): invalid value '1' for '--cache <SIZE>'"),
        ("--create-arg=--segment=2M", "has no segments, reserve or streams"),
        ("--serve-arg=--resort=1G", "only a log image is put in order"),
    ] {
        let refusal = refused(&["--format=raw", arg]);
        assert!(refusal.contains(why) && refusal.lines().count() == 1, "{refusal}");
    }
}

#[test]
fn a_load_goes_onto_a_file_through_each_engine() {
    let place = Place::new();
    for engine in ["uring", "sync"] {
        let engine = format!("--serve-arg=--engine={engine}");
        let args = [
            "replay",
            "--generate=uniform",
            "--size=4M",
            "--warmup=100",
            "--ops=500",
            "--format=log",
            "--onto=it.flow",
            "--overwrite",
            &engine,
            "--json",
        ];
        let report: Value = serde_json::from_str(&place.succeed(&args)).unwrap();
        assert_eq!(
            (report["requests"].as_u64(), report["device_blocks"].as_u64()),
            (Some(500), None)
        );
        assert!(report["seconds"].as_f64().unwrap() > 0.0);
        place.succeed(&["check", "--data", "it.flow"]);
    }
    std::fs::write(place.path("it.raw"), "theirs").unwrap();
    let refusal = place.refused(&[
        "replay",
        "--generate=uniform",
        "--size=4M",
        "--format=raw",
        "--onto=it.raw",
    ]);
    assert!(refusal.contains("it.raw is not empty"), "{refusal}");
    assert_eq!(std::fs::read_to_string(place.path("it.raw")).unwrap(), "theirs");
}

/// An existing file is truncated, of which the kernel counts nothing. On tmpfs it counts nothing at
/// all.
#[test]
fn what_comes_to_storage_is_counted_onto_an_old_file_too() {
    let place = Place::new();
    std::fs::write(place.path("trace.csv"), "0,W,0,4096\n").unwrap();
    let is_counted = |more: &[&str]| {
        let onto = ["replay", "--trace=trace.csv", "--size=4M", "--json", "--onto=it"];
        let text = place.succeed(&[&onto[..], more].concat());
        let report: Value = serde_json::from_str(&text).unwrap();
        report["host_blocks"].is_number()
    };
    let is_on_storage = is_counted(&["--format=log"]);
    assert_eq!(is_counted(&["--format=raw", "--overwrite"]), is_on_storage);
}

/// Regression: the limit arrived as a signal that ended a daemon and its disks.
#[test]
fn a_file_that_may_not_become_larger_is_an_error() {
    let place = Place::new();
    for format in ["raw", "qcow2", "log"] {
        let onto = format!("--onto={}", place.text(format));
        let args = ["replay", "--generate=uniform", "--size=64M", "--format", format, &onto];
        let script = "ulimit -f 10000 && exec \"$0\" \"$@\"";
        let output = Command::new("sh")
            .args(["-c", script, env!("CARGO_BIN_EXE_flowstone")])
            .args(args)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{format}: {said}");
        assert!(said.lines().last().unwrap().starts_with("flowstone: replay: "), "{said}");
    }
}

#[test]
fn advice_is_given_on_a_trace() {
    let place = Place::new();
    let lines = (0..3000_u64).map(|at| format!("{},W,{},4096\n", at * 1000, at * 7 % 512 * 4096));
    let end = format!("0,R,{},4096\n", (64 << 20) - 4096);
    std::fs::write(place.path("trace.csv"), end + &lines.collect::<String>()).unwrap();
    let advise =
        ["advise", "--trace=trace.csv", "--ssd=op=28%", "--endurance=600TBW", "--price=99.5"];
    let text = place.succeed(&[&advise[..], &["--json"]].concat());
    let advice: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&advice["format"], &advice["cache_bytes"]), (&"raw".into(), &0.into()));
    for key in ["because", "alternatives", "changes", "unknown"] {
        assert!(advice[key].as_array().is_some_and(|list| !list.is_empty()), "{key} in {advice}");
    }
    for it in advice["alternatives"].as_array().unwrap() {
        assert!(it["format"].is_string() && it.get("total_waf").is_some(), "{it}");
    }
    for key in ["reserve_percent", "segment_bytes"] {
        assert_eq!(advice.get(key), Some(&Value::Null), "{key}");
    }
    assert!(advice["wear"]["years"].as_f64().unwrap() > 0.0, "{advice}");
    let card = place.succeed(&advise);
    assert!(card.starts_with("format     raw\ncache      none\n"), "{card}");
    let priced = ["advise", "--trace=trace.csv", "--ssd=op=28%", "--price=99.5"];
    let card = place.succeed(&priced);
    assert!(card.contains("money: ") && !card.contains("a year"), "{card}");
    for (arg, why) in [
        ("--endurance=much", "it is a number of TB, such as 600 or 600TBW"),
        ("--fill=2", "--fill is a share of the drive"),
        ("--ssd=op=x", "op"),
    ] {
        let output = place.run(&["advise", "--trace=trace.csv", arg]);
        assert!(!output.status.success(), "{arg}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(why), "{said}");
    }
}
