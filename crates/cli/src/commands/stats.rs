//! `flowstone stats`

use std::process::ExitCode;

use flowstone_block::{Result, format_size};
use flowstone_daemon::{Client, Command};
use serde_json::Value;

use super::print_json;
use crate::args::Stats;

const KINDS: [&str; 5] = ["read", "write", "flush", "discard", "write_zeroes"];

pub fn run(args: &Stats) -> Result<ExitCode> {
    let report = Client::connect(&args.control)?.run(&Command::Stats)?;
    if args.json {
        print_json(&report);
    } else {
        report["disks"].as_array().into_iter().flatten().for_each(print_disk);
    }
    Ok(ExitCode::SUCCESS)
}

/// What the disk takes and gives back.
fn print_space(space: &Value) {
    let part = |key: &str, what: &str| {
        space[key].as_u64().map(|bytes| format!("{} {what}", format_size(bytes)))
    };
    let parts = [
        part("virtual_bytes", "virtual"),
        part("live_bytes", "live"),
        part("allocated_bytes", "on host"),
        part("dead_bytes", "dead"),
        part("reclaimed_bytes", "reclaimed"),
    ];
    println!("  space: {}", parts.into_iter().flatten().collect::<Vec<_>>().join(", "));
}

/// Discards on their way from the guest to the host.
fn print_discards(discards: &Value) {
    let number = |key: &str| discards[key].as_u64().unwrap_or(0);
    if number("ranges") + number("punches") == 0 {
        return;
    }
    println!(
        "  discards: {} requests, {} ranges ({}), {} waiting; {} runs, {} punches ({})",
        number("requests"),
        number("ranges"),
        format_size(number("bytes")),
        number("waiting"),
        number("merged"),
        number("punches"),
        format_size(number("punched_bytes")),
    );
}

/// What only a log image has.
fn print_log(log: &Value) {
    let number = |key: &str| log[key].as_u64().unwrap_or(0);
    println!(
        "  map {} of memory, write amplification {:.2}",
        format_size(number("map_memory_bytes")),
        log["write_amplification"].as_f64().unwrap_or(0.0),
    );
    println!(
        "  segments: {} used, {} ready, {} dead, at most {}{}",
        number("segments_used"),
        number("segments_ready"),
        number("segments_dead"),
        number("segments_limit"),
        if log["full"] == true { "; full: writes are refused" } else { "" },
    );
}

fn print_disk(disk: &Value) {
    let text = |key: &str| disk[key].as_str().unwrap_or("-").to_owned();
    let bytes = |key: &str| disk[key].as_u64().map_or_else(|| "-".into(), format_size);
    println!("{}  {}", text("name"), text("serving"));
    match disk.get("space") {
        Some(space) => print_space(space),
        None => println!("  size {}", bytes("capacity_bytes")),
    }
    if let Some(log) = disk.get("log") {
        print_log(log);
    }
    if let Some(discards) = disk.get("discards") {
        print_discards(discards);
    }
    let total = &disk["total"];
    let number = |key: &str| total[key].as_f64().unwrap_or(0.0);
    println!(
        "  kicks/request {:.3}, calls/request {:.3}, looked {:.1} s, slept {:.1} s",
        number("kicks_per_request"),
        number("calls_per_request"),
        number("spin_s"),
        number("sleep_s"),
    );
    println!(
        "  {:<13}{:>12}{:>11}{:>8}{:>10}{:>10}",
        "", "requests", "bytes", "errors", "p50 us", "p99 us"
    );
    for kind in KINDS {
        let count = |key: &str| total[key][kind].as_u64().unwrap_or(0);
        let latency = |key: &str| total["device_us"][kind][key].as_f64().unwrap_or(0.0);
        println!(
            "  {kind:<13}{:>12}{:>11}{:>8}{:>10.1}{:>10.1}",
            count("requests"),
            format_size(count("bytes")),
            count("errors"),
            latency("p50"),
            latency("p99"),
        );
    }
}
