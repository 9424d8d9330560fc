//! `flowstone record`

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flowstone_block::{Error, Result};
use flowstone_control::{Client, Command, Received};
use flowstone_trace::Totals;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::{disk_meant_by, print_report};
use crate::args::Record;
use crate::output::out;

/// Interval of checks whether to end.
const TICK: Duration = Duration::from_millis(100);
/// Time for the daemon to send the rest.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longer than the frame of the last line.
const TAIL_BYTES: usize = 256;

pub fn run(args: &Record) -> Result<()> {
    let what = || format!("record {}", args.disk.display());
    let host = |error| Error::host(what(), error, "the file has what came before");
    let is_signalled =
        signals().map_err(|error| Error::host("signals", error, "free resources"))?;
    let command = Command::Record { disk: disk_meant_by(&args.disk), coarse: args.coarse };
    let recorded = Client::connect(&args.query.daemon.control)?.record(&command)?;
    let begin = Instant::now();
    let time = args.seconds.map(Duration::from_secs);
    let is_enough = || {
        let is_late = time.is_some_and(|time| begin.elapsed() >= time);
        is_late || is_signalled.load(Ordering::Relaxed)
    };
    let file = create(&args.output)?;
    let totals = save(recorded, file, is_enough).map_err(host)?;
    let Some(Totals { requests, lost }) = totals else {
        return Err(host(io::Error::new(ErrorKind::UnexpectedEof, "the daemon hung up")));
    };
    let report = json!({ "requests": requests, "lost": lost });
    print_report(&report, args.query.json, |_| {
        out!("{:<16} {requests}\n{:<16} {lost}", "requests", "lost");
    });
    Ok(())
}

/// Returns a flag that SIGINT and SIGTERM set.
fn signals() -> io::Result<Arc<AtomicBool>> {
    let is_signalled = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&is_signalled))?;
    }
    Ok(is_signalled)
}

/// Creates the file. A trace is confidential: only its owner may read it.
fn create(path: &Path) -> Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(|error| {
        let name = path.display().to_string();
        Error::invalid(name, error, "give a name that is not taken, in a folder that you may write")
    })
}

/// Saves the daemon's stream until it ends or `is_enough` holds. Returns its totals; `None` if it
/// was cut short.
fn save(
    mut recorded: Received,
    mut file: File,
    is_enough: impl Fn() -> bool,
) -> io::Result<Option<Totals>> {
    let mut tail = Vec::new();
    let mut asked_for_end = None;
    while asked_for_end.is_none_or(|at: Instant| at.elapsed() < PATIENCE) {
        if asked_for_end.is_none() && is_enough() {
            asked_for_end = Some(Instant::now());
            recorded.end();
        }
        // An error counts as the end.
        let Ok(Some(bytes)) = recorded.next(TICK) else { break };
        file.write_all(&bytes)?;
        tail.extend_from_slice(&bytes[bytes.len().saturating_sub(TAIL_BYTES)..]);
        tail.drain(..tail.len().saturating_sub(TAIL_BYTES));
    }
    Ok(Totals::of_last_frame(&tail))
}
