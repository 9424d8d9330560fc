//! `flowstone stats`

use std::path::Path;
use std::process::ExitCode;

use flowstone_block::{Printable, Result, format_size};
use flowstone_daemon::{Client, Command};
use serde_json::Value;

use super::{file_meant_by, limit_text, only_print_from_now_on, print_json};
use crate::args::Stats;

const KINDS: [&str; 5] = ["read", "write", "flush", "discard", "write_zeroes"];

pub fn run(args: &Stats) -> Result<ExitCode> {
    let mut daemon = Client::connect(&args.control)?;
    let (command, print): (_, fn(&Value)) = match &args.layout {
        Some(disk) => (layout_of(disk), print_layout),
        None if args.numa => (Command::Numa, print_numa),
        None => (Command::Stats, print_disks),
    };
    let report = daemon.run(&command)?;
    only_print_from_now_on();
    if args.json {
        print_json(&report);
    } else {
        print(&report);
    }
    Ok(ExitCode::SUCCESS)
}

fn layout_of(disk: &str) -> Command {
    Command::Layout { disk: disk.to_owned(), path: file_meant_by(Path::new(disk)) }
}

/// What has been recognised, each thing below what it lies in.
fn print_layout(report: &Value) {
    let found = report["found"].as_array().map_or(&[][..], Vec::as_slice);
    if found.is_empty() {
        println!("nothing recognised");
    }
    for it in found {
        let number = |key: &str| it[key].as_u64().unwrap_or(0);
        let indent = "  ".repeat(usize::try_from(number("depth")).unwrap_or(0));
        let mut line = format!(
            "{indent}{} at sector {}, {}",
            it["kind"].as_str().unwrap_or("-"),
            number("start_lba"),
            format_size(number("bytes")),
        );
        for (key, what) in [("journal_bytes", "journal"), ("metadata_bytes", "fixed metadata")] {
            if number(key) > 0 {
                line += &format!(", {} of {what}", format_size(number(key)));
            }
        }
        let label = it["label"].as_str().unwrap_or_default();
        if !label.is_empty() {
            line += &format!(", called {label:?}");
        }
        println!("{line}");
    }
    if report["truncated"] == true {
        println!("there is more: what is missing counts as data");
    }
}

/// Nodes, what is on them, and advice.
fn print_numa(report: &Value) {
    let list = |key: &str| report[key].as_array().cloned().unwrap_or_default();
    let text =
        |value: &Value| Printable(value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    for node in list("nodes") {
        println!("node {}  CPUs {}", text(&node["node"]), text(&node["cpus"]));
    }
    for disk in list("disks") {
        let part = |it: &Value| format!("{} on node {}", text(&it["pages"]), text(&it["node"]));
        let pages: Vec<String> = disk["pages"].as_array().into_iter().flatten().map(part).collect();
        let pages = if pages.is_empty() { "no pages found".into() } else { pages.join(", ") };
        println!("disk {}  its guest's memory, of a sample: {pages}", text(&disk["name"]));
    }
    for (number, poller) in list("pollers").iter().enumerate() {
        let place =
            |key: &str| poller[key].as_u64().map_or_else(|| "any".into(), |it| it.to_string());
        let queues = text(&poller["queues"]);
        println!("poller {number}  CPU {}, node {}, {queues} queues", place("cpu"), place("node"));
    }
    list("advice").iter().for_each(|line| println!("{}", text(line)));
}

fn print_disks(report: &Value) {
    if let Some(cache) = report.get("cache") {
        let bytes = |key: &str| format_size(cache[key].as_u64().unwrap_or(0));
        let policy = cache["policy"].as_str().unwrap_or("-");
        println!("cache  {} of {}, {policy}", bytes("bytes"), bytes("target_bytes"));
    }
    let vms = report["vms"].as_array().map_or(&[][..], Vec::as_slice);
    if vms.len() > 1 {
        vms.iter().for_each(print_vm);
    }
    for group in report["groups"].as_array().into_iter().flatten() {
        println!(
            "group  {}: {}",
            Printable(group["name"].as_str().unwrap_or("-")),
            limit_text(&group["limit"])
        );
    }
    report["failed"].as_array().into_iter().flatten().for_each(print_failed);
    report["disks"].as_array().into_iter().flatten().for_each(print_disk);
}

/// A disk that could not be opened.
fn print_failed(failed: &Value) {
    let text = |key: &str| Printable(failed[key].as_str().unwrap_or("-").to_owned());
    println!("{}  not served: {}: {}; {}", text("name"), text("what"), text("why"), text("advice"));
}

/// One of several that share what there is.
fn print_vm(vm: &Value) {
    let disks = vm["disks"].as_array().into_iter().flatten().filter_map(Value::as_str);
    println!(
        "vm     {}: {} vCPUs, {}, a weight of {:.0} %; {}",
        Printable(vm["name"].as_str().unwrap_or("-")),
        vm["cpus"].as_u64().unwrap_or(0),
        format_size(vm["memory_bytes"].as_u64().unwrap_or(0)),
        100.0 * vm["weight"].as_f64().unwrap_or(0.0),
        Printable(disks.collect::<Vec<_>>().join(", ")),
    );
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

/// Reads and writes by what they carry, if anything but data has been seen.
fn print_classes(classes: &Value) {
    let count = |class: &str, key: &str| classes[class][key].as_u64().unwrap_or(0);
    let requests = |class: &str| count(class, "reads") + count(class, "writes");
    if requests("journal") + requests("metadata") == 0 {
        return;
    }
    let part = |class: &str| {
        let (read, written) = (count(class, "bytes_read"), count(class, "bytes_written"));
        format!(
            "{class} {} ({} read, {} written)",
            requests(class),
            format_size(read),
            format_size(written)
        )
    };
    println!("  classes: {}", ["journal", "metadata", "data"].map(part).join(", "));
}

/// What the cache does for the disk.
fn print_cache(cache: &Value) {
    let number = |key: &str| cache[key].as_u64().unwrap_or(0);
    let reads = number("hits") + number("misses");
    let share = 100.0 * number("hits") as f64 / reads.max(1) as f64;
    println!(
        "  cache: {share:.1} % of {reads} blocks read from memory; {} taken in, {} refused, {} given \
         up, {} passed by; holds {}",
        number("insertions"),
        number("refusals"),
        number("evictions"),
        number("bypassed"),
        format_size(number("bytes")),
    );
}

/// What the disk may use, if anything limits it.
fn print_limit(disk: &Value) {
    if disk["limit"].is_null() && disk["group"].is_null() {
        return;
    }
    let name = disk["group"].as_str().map(Printable);
    let group = name.map_or_else(String::new, |name| format!(", group {name}"));
    println!(
        "  limit {}{group}, weight {}; {} requests waited, {:.1} s in all",
        limit_text(&disk["limit"]),
        disk["weight"],
        disk["throttled"],
        disk["throttled_s"].as_f64().unwrap_or(0.0),
    );
}

fn print_disk(disk: &Value) {
    let text = |key: &str| Printable(disk[key].as_str().unwrap_or("-").to_owned());
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
    print_classes(&disk["classes"]);
    print_limit(disk);
    if let Some(cache) = disk.get("cache") {
        print_cache(cache);
    }
    for reason in disk["errors_by_errno"].as_array().into_iter().flatten() {
        let why = Printable(reason["text"].as_str().unwrap_or("-"));
        println!("  failed: {} requests, {why}", reason["count"]);
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
