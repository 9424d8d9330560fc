//! The demo's output in the terminal: 80 columns, a tick and a time for each step.

use std::fmt::Display;
use std::io::{IsTerminal, Write, stdout};
use std::time::Instant;

use anyhow::{Context, Result};
use flowstone_vmtest::framework::log_image::LogCounters;
use flowstone_vmtest::framework::qemu::Setting;
use flowstone_vmtest::framework::stats::DiskStats;
use flowstone_vmtest::framework::workspace;

const WIDTH: usize = 80;
const KINDS: [&str; 5] = ["read", "write", "flush", "discard", "write_zeroes"];

/// Starts a section.
pub fn heading(title: &str) {
    println!("\n{}", styled("1", title));
}

/// Prints a name and its value.
pub fn fact(name: &str, value: impl Display) {
    println!("  {name:<10} {value}");
}

/// Runs one step and prints its result; the returned text is a remark, or empty.
pub fn step(what: &str, act: impl FnOnce() -> Result<String>) -> Result<()> {
    if stdout().is_terminal() {
        print!("  … {what}\r");
        stdout().flush()?;
    }
    let start = Instant::now();
    let outcome = act();
    let seconds = format!("{:.1} s", start.elapsed().as_secs_f64());
    let (sign, text) = match &outcome {
        Ok(remark) if remark.is_empty() => (styled("32", "✓"), what.to_owned()),
        Ok(remark) => (styled("32", "✓"), format!("{what}: {remark}")),
        Err(_) => (styled("31", "✗"), what.to_owned()),
    };
    println!("  {sign} {text:<0$}{seconds:>8}", WIDTH - 12);
    outcome.map(drop).with_context(|| what.to_owned())
}

/// Prints requests, bytes and latencies by kind.
pub fn request_table(stats: &DiskStats) {
    println!("  {:<14}{:>10}{:>12}{:>14}{:>14}", "", "requests", "MiB", "p50", "p99");
    for kind in KINDS {
        let Some(latency) = stats.latency(kind) else { continue };
        println!(
            "  {:<14}{:>10}{:>12.1}{:>11.0} µs{:>11.0} µs",
            kind.replace('_', " "),
            stats.requests(kind),
            mebibytes(stats.bytes(kind)),
            latency.p50,
            latency.p99,
        );
    }
}

/// Prints the space of a disk before and after a deletion, and its discards.
pub fn space_table(before: &DiskStats, after: &DiskStats) -> Result<()> {
    println!();
    println!(
        "  {:<14}{:>10}{:>10}{:>10}{:>10}{:>12}",
        "MiB", "virtual", "live", "on host", "dead", "reclaimed"
    );
    for (when, stats) in [("before", before), ("after fstrim", after)] {
        let space = stats.space()?;
        let known = |bytes: Option<u64>| {
            bytes.map_or_else(|| "-".into(), |bytes| format!("{:.1}", mebibytes(bytes)))
        };
        println!(
            "  {when:<14}{:>10}{:>10}{:>10}{:>10}{:>12}",
            known(Some(space.virtual_bytes)),
            known(space.live_bytes),
            known(Some(space.allocated_bytes)),
            known(space.dead_bytes),
            known(Some(space.reclaimed_bytes)),
        );
    }
    let (was, is) = (before.discards()?, after.discards()?);
    println!(
        "  {} discard requests in ({} ranges, {:.1} MiB), {} punches out",
        is.requests - was.requests,
        is.ranges - was.ranges,
        mebibytes(is.bytes - was.bytes),
        is.punches - was.punches,
    );
    Ok(())
}

/// Prints the writes of a guest, and those of its log image.
pub fn write_shape(guest: &DiskStats, log: &LogCounters) {
    const BLOCK_BYTES: u64 = 4096;
    let line = |name: &str, count: u64, bytes: u64, remark: &str| {
        let each = bytes as f64 / 1024.0 / count.max(1) as f64;
        let size = mebibytes(bytes);
        println!("  {name:<10} {count:>6} writes,{size:>7.1} MiB,{each:>6.1} KiB each{remark}");
    };
    line("guest", guest.requests("write"), guest.bytes("write"), ": a raw image's writes too");
    let log_bytes = log.guest_records_blocks() * BLOCK_BYTES;
    line("log image", log.records, log_bytes, ", one after the other");
    let amplification = log.write_amplification();
    fact("in all", format!("{amplification:.2} blocks written for each block of the guest"));
}

/// Prints a command as a user would type it, one long option per line.
pub fn command(program: &str, settings: &[Setting]) {
    let mut lines = vec![format!("  {program}")];
    for (name, value) in settings {
        let option = format!(" {name} {}", relative(value));
        let last = lines.last_mut().expect("starts with one line");
        let short = last.starts_with("    ") && last.len() + option.len() < WIDTH - 22;
        match short {
            true => last.push_str(option.trim_end()),
            false => lines.push(format!("   {}", option.trim_end())),
        }
    }
    println!("{}", lines.join(" \\\n"));
}

/// Makes the paths in a text relative to the source tree.
pub fn relative(text: &str) -> String {
    text.replace(&format!("{}/", workspace::root().display()), "")
}

/// Converts bytes to mebibytes.
pub fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn styled(code: &str, text: &str) -> String {
    match stdout().is_terminal() {
        true => format!("\x1b[{code}m{text}\x1b[0m"),
        false => text.to_owned(),
    }
}
