//! What is done about each subcommand.

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

use flowstone_block::{Error, Result, SECTOR_BYTES, SectorCount};
use flowstone_daemon::DiskWord;
use flowstone_fileio::{Access, FileOpener, LockPatience, OpenOptions};
use flowstone_image::{Format, Image, ImageOptions};
use flowstone_qos::Limit;

use crate::args::Command;

/// A tool that comes right after the kill of a daemon waits for it as the next daemon would.
const LOCK_PATIENCE: LockPatience = LockPatience::telling(|what| eprintln!("flowstone: {what}"));

/// Carries out what was typed. What is served is opened by `opener`.
pub fn run(command: Command, opener: FileOpener) -> Result<ExitCode> {
    outlive_size_limits();
    match command {
        Command::Create(args) => create::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Compact(args) => compact::run(&args),
        Command::Convert(args) => convert::run(&args),
        Command::Resize(args) => resize::run(&args),
        Command::Record(args) => record::run(&args),
        Command::Replay(args) => replay::run(&args, opener),
        Command::Advise(args) => advise::run(&args),
        Command::Serve(args) => serve::run(*args, opener),
        Command::Stats(args) => stats::run(&args),
        Command::Events(args) => events::run(&args),
        Command::Reload(args) => reload::run(&args),
        Command::Disk(args) => disk::run(args.command),
        Command::Group(args) => group::run(args.command),
    }
}

/// A file that may not become larger (`RLIMIT_FSIZE`) is an error as a full host is one, and not
/// the end of all disks.
fn outlive_size_limits() {
    // SAFETY: no code of ours runs when an ignored signal comes.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// A tool that has nothing left to do but print ends quietly when its reader has gone, as with
/// `flowstone stats | head -1`.
fn only_print_from_now_on() {
    // SAFETY: the default action of a signal runs no code of ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// The disk that a word means: it may be the name of a disk, or of a file in our folder, which may
/// not be the daemon's; that knows which of them it serves. It is the daemon that follows links: a
/// process that looks at a file system which does not answer cannot even end.
fn disk_meant_by(word: &Path) -> DiskWord {
    DiskWord { name: word.display().to_string(), path: std::path::absolute(word).ok() }
}

/// Opens an image for a tool.
/// Says what is worth knowing of an image that has just been made.
fn print_notice(image: &Path, notice: Option<String>) {
    if let Some(notice) = notice {
        eprintln!("flowstone: {}: {notice}", image.display());
    }
}

fn open_image(
    path: &Path,
    format: Option<Format>,
    access: Access,
    backing_dirs: &[PathBuf],
) -> Result<Box<dyn Image>> {
    let format = Format::choose(format, path)?;
    let backing_dirs = backing_dirs.to_vec();
    let file = OpenOptions { lock_patience: LOCK_PATIENCE, ..OpenOptions::new(access) };
    let options = ImageOptions { backing_dirs, ..ImageOptions::new(file) };
    flowstone_image::open(path, format, options)
}

/// A size that a disk can have; the message says what to type instead.
fn sector_count(what: &str, bytes: u64) -> Result<SectorCount> {
    SectorCount::from_bytes(bytes).ok_or_else(|| {
        let why = format!("{bytes} is not a multiple of {SECTOR_BYTES} bytes");
        Error::invalid(what, why, "round it, e.g. to a whole number of M")
    })
}

/// A limit in a daemon's answer, as it is typed.
fn limit_text(limit: &serde_json::Value) -> String {
    let rate = |key: &str| limit[key].as_u64();
    let burst = Duration::from_secs_f64(limit["burst_s"].as_f64().unwrap_or(0.0));
    Limit { iops: rate("iops"), bytes_per_s: rate("bytes_per_s"), burst }.to_string()
}

/// Prints a value as JSON.
fn print_json(value: &impl serde::Serialize) {
    let text = serde_json::to_string_pretty(value).expect("plain values are valid JSON");
    println!("{text}");
}
