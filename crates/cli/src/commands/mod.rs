//! Implementation of the subcommands.

mod advise;
mod check;
mod compact;
mod convert;
mod create;
mod disk;
mod events;
mod group;
mod info;
mod record;
mod reload;
mod replay;
mod resize;
mod serve;
mod stats;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use flowstone_block::{Error, Printable, Result, SECTOR_BYTES, SectorCount};
use flowstone_control::{self as control, Client, DiskWord};
use flowstone_fileio::{Access, FileOpener, LockPatience, OpenOptions};
use flowstone_formats::ImageOptions;
use flowstone_image::{Format, Image};
use flowstone_qos::Limit;
use serde::Serialize;
use serde_json::Value;

use crate::args::{Command, Query};
use crate::output::{out, tell};

/// A tool that runs right after the kill of a daemon waits for the lock as the next daemon would.
const LOCK_PATIENCE: LockPatience = LockPatience::telling(|what| tell!("{what}"));

/// Runs a command. `opener` opens the files of served images. Only the status of `check` says what
/// it has found.
pub fn run(command: Command, opener: FileOpener) -> Result<ExitCode> {
    outlive_size_limits();
    match command {
        Command::Create(args) => create::run(&args)?,
        Command::Info(args) => info::run(&args)?,
        Command::Check(args) => return check::run(&args),
        Command::Compact(args) => compact::run(&args)?,
        Command::Convert(args) => convert::run(&args)?,
        Command::Resize(args) => resize::run(&args)?,
        Command::Record(args) => record::run(&args)?,
        Command::Replay(args) => replay::run(&args, opener)?,
        Command::Advise(args) => advise::run(&args)?,
        Command::Serve(args) => serve::run(*args, opener)?,
        Command::Stats(args) => stats::run(&args)?,
        Command::Events(args) => events::run(&args)?,
        Command::Reload(args) => reload::run(&args)?,
        Command::Disk(args) => disk::run(args.command)?,
        Command::Group(args) => group::run(args.command)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes exceeding the file size limit (`RLIMIT_FSIZE`) an error like a full host, instead of a
/// signal that ends all disks.
fn outlive_size_limits() {
    // SAFETY: no code of ours runs when an ignored signal comes.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Lets a tool that has only to print end quietly when its reader is gone, as with `flowstone stats
/// | head -1`.
fn only_print_from_now_on() {
    // SAFETY: the default action of a signal runs no code of ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Returns the disk that a word may name: a disk's name, or a file relative to our working
/// directory, which may differ from the daemon's; the daemon knows which of them it serves. Links
/// are resolved by the daemon: a process that accesses a hanging file system cannot even be ended.
fn disk_meant_by(word: &Path) -> DiskWord {
    DiskWord { name: word.display().to_string(), path: std::path::absolute(word).ok() }
}

/// Prints a notice about an image that has just been created, if there is one.
fn print_notice(image: &Path, notice: Option<String>) {
    if let Some(notice) = notice {
        tell!("{}: {notice}", image.display());
    }
}

fn open_image(
    path: &Path,
    format: Option<Format>,
    access: Access,
    backing_dirs: &[PathBuf],
) -> Result<Box<dyn Image>> {
    let format = Format::choose(format, path)?;
    flowstone_formats::open(path, format, image_options(access, backing_dirs))
}

fn image_options(access: Access, backing_dirs: &[PathBuf]) -> ImageOptions {
    let file = OpenOptions { lock_patience: LOCK_PATIENCE, ..OpenOptions::new(access) };
    let mut options = ImageOptions::new(file);
    options.args.backing_dirs = backing_dirs.to_vec();
    options
}

/// Converts a size to sectors; the error names a valid size.
fn sector_count(what: &str, bytes: u64) -> Result<SectorCount> {
    SectorCount::from_bytes(bytes).ok_or_else(|| {
        let why = format!("{bytes} is not a multiple of {SECTOR_BYTES} bytes");
        Error::invalid(what, why, "round it, e.g. to a whole number of M")
    })
}

/// Returns a text of a daemon's answer.
fn text(of: &Value, key: &str) -> Printable<String> {
    Printable(of[key].as_str().unwrap_or("-").to_owned())
}

/// Returns a limit of a daemon's answer in the syntax of the command line.
fn limit_text(limit: &Value) -> String {
    let rate = |key: &str| limit[key].as_u64();
    let burst = Duration::from_secs_f64(limit["burst_s"].as_f64().unwrap_or(0.0));
    Limit { iops: rate("iops"), bytes_per_s: rate("bytes_per_s"), burst }.to_string()
}

/// Asks a daemon, and prints its answer.
fn print_answer(
    query: &Query,
    command: &control::Command,
    print: impl FnOnce(&Value),
) -> Result<()> {
    let answer = Client::connect(&query.daemon.control)?.run(command)?;
    print_report(&answer, query.json, print);
    Ok(())
}

/// Prints what a tool has found out, as JSON or with `print`; it has nothing else to do.
fn print_report<T: Serialize>(report: &T, json: bool, print: impl FnOnce(&T)) {
    only_print_from_now_on();
    if json { print_json(report) } else { print(report) }
}

/// Prints a value as JSON.
fn print_json(value: &impl Serialize) {
    let text = serde_json::to_string_pretty(value).expect("plain values are valid JSON");
    out!("{text}");
}
