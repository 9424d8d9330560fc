//! `flowstone stats`

use std::path::Path;

use flowstone_block::{Printable, Result, format_size};
use flowstone_control::Command;
use serde_json::Value;

use super::disk::error_of;
use super::{disk_meant_by, limit_text, print_answer, text};
use crate::args::Stats;
use crate::output::out;

/// Parts of a disk's report that are printed separately.
const TOLD: [&str; 2] = ["limit", "total"];
const KINDS: [&str; 5] = ["read", "write", "flush", "discard", "write_zeroes"];

pub fn run(args: &Stats) -> Result<()> {
    let (command, print): (_, fn(&Value)) = match &args.layout {
        Some(disk) => (layout_of(disk), print_layout),
        None if args.numa => (Command::Numa, print_numa),
        None => (Command::Stats { buckets: args.buckets }, print_disks),
    };
    print_answer(&args.query, &command, print)
}

fn layout_of(disk: &str) -> Command {
    Command::Layout(disk_meant_by(Path::new(disk)))
}

/// Prints the recognised layout as a tree.
fn print_layout(report: &Value) {
    let found = report["found"].as_array().map_or(&[][..], Vec::as_slice);
    if found.is_empty() {
        out!("nothing recognised");
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
        out!("{line}");
    }
    if report["truncated"] == true {
        out!("there is more: what is missing counts as data");
    }
}

/// Prints the nodes, what is on them, and advice.
fn print_numa(report: &Value) {
    let list = |key: &str| report[key].as_array().cloned().unwrap_or_default();
    let shown =
        |value: &Value| Printable(value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    for node in list("nodes") {
        out!("node {}  CPUs {}", shown(&node["node"]), shown(&node["cpus"]));
    }
    for disk in list("disks") {
        let part = |it: &Value| format!("{} on node {}", shown(&it["pages"]), shown(&it["node"]));
        let pages: Vec<String> = disk["pages"].as_array().into_iter().flatten().map(part).collect();
        let pages = if pages.is_empty() { "no pages found".into() } else { pages.join(", ") };
        out!("disk {}  its guest's memory, of a sample: {pages}", shown(&disk["name"]));
    }
    for (number, poller) in list("pollers").iter().enumerate() {
        let place =
            |key: &str| poller[key].as_u64().map_or_else(|| "any".into(), |it| it.to_string());
        let queues = shown(&poller["queues"]);
        out!("poller {number}  CPU {}, node {}, {queues} queues", place("cpu"), place("node"));
    }
    list("advice").iter().for_each(|line| out!("{}", shown(line)));
}

fn print_disks(report: &Value) {
    if let Some(cache) = report.get("cache") {
        let bytes = |key: &str| format_size(cache[key].as_u64().unwrap_or(0));
        let policy = cache["policy"].as_str().unwrap_or("-");
        out!("cache  {} of {}, {policy}", bytes("bytes"), bytes("target_bytes"));
    }
    let vms = report["vms"].as_array().map_or(&[][..], Vec::as_slice);
    if vms.len() > 1 {
        vms.iter().for_each(|vm| out!("{}", line_of_vm(vm)));
    }
    for group in report["groups"].as_array().into_iter().flatten() {
        out!("group  {}: {}", text(group, "name"), limit_text(&group["limit"]));
    }
    for failed in report["failed"].as_array().into_iter().flatten() {
        out!("{}  not served: {}", text(failed, "name"), error_of(failed));
    }
    report["disks"].as_array().into_iter().flatten().for_each(print_disk);
}

/// Returns the line of one of several VMs.
fn line_of_vm(vm: &Value) -> String {
    let disks = vm["disks"].as_array().into_iter().flatten().filter_map(Value::as_str);
    format!(
        "vm     {}: {} vCPUs, {}, a weight of {:.0} %; {}",
        text(vm, "name"),
        vm["cpus"].as_u64().unwrap_or(0),
        format_size(vm["memory_bytes"].as_u64().unwrap_or(0)),
        100.0 * vm["weight"].as_f64().unwrap_or(0.0),
        Printable(disks.collect::<Vec<_>>().join(", ")),
    )
}

/// Prints a part of a report in one line: its nonzero figures, named as in the JSON.
fn print_part(title: &str, part: &Value) {
    let mut figures = Vec::new();
    collect("", part, &mut figures);
    if !figures.is_empty() {
        out!("  {}: {}", title.replace('_', " "), figures.join(", "));
    }
}

fn collect(name: &str, value: &Value, figures: &mut Vec<String>) {
    match value {
        Value::Object(parts) => {
            let above = if name.is_empty() { String::new() } else { format!("{name}_") };
            for (part, value) in parts {
                collect(&format!("{above}{part}"), value, figures);
            }
        }
        Value::Bool(true) => figures.push(name.replace('_', " ")),
        Value::Number(number) if number.as_f64() != Some(0.0) => {
            figures.push(figure(name, value));
        }
        _ => {}
    }
}

/// Formats a figure by its name, whose last word may be the unit: `bytes`, `s` or `seconds`.
fn figure(name: &str, value: &Value) -> String {
    let words: Vec<&str> = name.split('_').collect();
    let is_unit = |word: &&&str| matches!(**word, "bytes" | "s" | "seconds");
    let what: Vec<&str> = words.iter().filter(|word| !is_unit(word)).copied().collect();
    let what = if what.is_empty() { words.join(" ") } else { what.join(" ") };
    let number = value.as_f64().unwrap_or(0.0);
    match words.iter().find(is_unit) {
        Some(&"bytes") => format!("{what} {}", format_size(value.as_u64().unwrap_or(0))),
        Some(_) => format!("{what} {number:.1} s"),
        None if value.is_f64() => format!("{what} {number:.2}"),
        None => format!("{what} {value}"),
    }
}

/// Prints the limits of a disk, if there are any.
fn print_limit(disk: &Value) {
    if disk["limit"].is_null() && disk["group"].is_null() {
        return;
    }
    let name = disk["group"].as_str().map(Printable);
    let group = name.map_or_else(String::new, |name| format!(", group {name}"));
    out!(
        "  limit {}{group}, weight {}; {} requests waited, {:.1} s in all",
        limit_text(&disk["limit"]),
        disk["weight"],
        disk["throttled"],
        disk["throttled_s"].as_f64().unwrap_or(0.0),
    );
}

fn print_disk(disk: &Value) {
    let bytes = |key: &str| disk[key].as_u64().map_or_else(|| "-".into(), format_size);
    out!("{}  {}", text(disk, "name"), text(disk, "serving"));
    if disk.get("space").is_none() {
        out!("  size {}", bytes("capacity_bytes"));
    }
    print_limit(disk);
    let parts = disk.as_object().into_iter().flatten();
    // The others are printed separately.
    let plain =
        |(name, part): &(&String, &Value)| part.is_object() && !TOLD.contains(&name.as_str());
    parts.filter(plain).for_each(|(name, part)| print_part(name, part));
    for reason in disk["errors_by_errno"].as_array().into_iter().flatten() {
        out!("  failed: {} requests, {}", reason["count"], text(reason, "text"));
    }
    let total = &disk["total"];
    let number = |key: &str| total[key].as_f64().unwrap_or(0.0);
    out!(
        "  kicks/request {:.3}, calls/request {:.3}, looked {:.1} s, slept {:.1} s",
        number("kicks_per_request"),
        number("calls_per_request"),
        number("spin_s"),
        number("sleep_s"),
    );
    out!(
        "  {:<13}{:>12}{:>11}{:>8}{:>10}{:>10}",
        "",
        "requests",
        "bytes",
        "errors",
        "p50 us",
        "p99 us"
    );
    for kind in KINDS {
        let count = |key: &str| total[key][kind].as_u64().unwrap_or(0);
        let latency = |key: &str| total["device_us"][kind][key].as_f64().unwrap_or(0.0);
        out!(
            "  {kind:<13}{:>12}{:>11}{:>8}{:>10.1}{:>10.1}",
            count("requests"),
            format_size(count("bytes")),
            count("errors"),
            latency("p50"),
            latency("p99"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Regression: names from a monitor's command line were printed raw.
    #[test]
    fn names_of_a_vm_and_its_disks_send_nothing_to_the_terminal() {
        for (name, disk) in [("web\u{1b}]0;x", "root"), ("web", "root\u{1b}[2J")] {
            let line = line_of_vm(&json!({ "name": name, "disks": [disk] }));
            assert!(!line.contains(char::is_control), "{line:?}");
            assert!(line.contains("web") && line.contains("root"), "{line:?}");
        }
    }
}
