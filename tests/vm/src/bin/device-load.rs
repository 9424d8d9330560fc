//! Runs inside a guest (tests/vm, `devices` and `f2fs`): a driver for a `flowstone serve` in the
//! same guest.
//!
//! device-load SOCKET zeroes|anything: random requests of all kinds, with every read verified. The
//! second word is the content of a discarded block. Before and after that the whole disk is zeroed
//! and read back.
//!
//! device-load SOCKET killed: the same requests while the daemon is repeatedly killed and
//! restarted; written data must stay.
//!
//! device-load SOCKET held: reads the whole disk twice, says so, and stays connected until its
//! input ends.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use flowstone_testkit::load::{Limit, LoadOptions, run};
use flowstone_testkit::{Client, ClientOptions, Status};

const CHUNK_BYTES: usize = 1 << 20;
const REQUESTS: u64 = 800;
/// Requests of a load during which the daemon is killed repeatedly.
const REQUESTS_KILLED: u64 = 12_000;
/// Longest wait for the next daemon.
const RECONNECT: Duration = flowstone_testkit::HANG;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match &*words {
        [socket, word] if word == "killed" => survive(Path::new(socket)),
        [socket, word] if word == "held" => hold(Path::new(socket)),
        [socket, discarded] => exercise(Path::new(socket), discarded == "zeroes"),
        _ => Err(anyhow::anyhow!("usage: device-load SOCKET zeroes|anything|killed|held")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("device-load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn exercise(socket: &Path, discard_zeroes: bool) -> Result<()> {
    make_zero(socket).context("before the load")?;
    for seed in [1, 2] {
        let mut options = LoadOptions::new(socket).workload("mix").iodepth(16);
        options.limit = Limit::Ops(REQUESTS);
        options.verify = true;
        options.verify_final = true;
        options.discard_zeroes = discard_zeroes;
        options.flush_every = 40;
        options.seed = seed;
        let report = run(&options).with_context(|| format!("load, seed {seed}"))?;
        ensure!(report.errors == 0, "load, seed {seed}: {} errors", report.errors);
    }
    make_zero(socket).context("after the load")
}

/// Verifies every read, and all known blocks of the disk at the end.
fn survive(socket: &Path) -> Result<()> {
    let mut options = LoadOptions::new(socket).workload("mix").iodepth(16).ops(REQUESTS_KILLED);
    options.verify = true;
    options.verify_final = true;
    options.discard_zeroes = true;
    options.flush_every = 40;
    options.reconnect = Some(RECONNECT);
    options.stall_timeout = RECONNECT;
    let report = run(&options)?;
    ensure!(report.errors == 0, "{} errors, the first: {:?}", report.errors, report.first_error);
    ensure!(report.reconnects > 0, "the daemon was never killed under this load");
    println!("{} reconnects, {} blocks checked", report.reconnects, report.verified_blocks);
    Ok(())
}

fn hold(socket: &Path) -> Result<()> {
    let mut guest = Client::negotiate(ClientOptions::new(socket))?;
    // As a guest has used much of its memory before it starts its rings.
    let used = guest.memory().alloc(CHUNK_BYTES, 4096)?;
    used.write(0, &vec![1; CHUNK_BYTES]);
    guest.start()?;
    let sectors = guest.config().capacity_bytes() / 512;
    let mut found = vec![0; CHUNK_BYTES];
    for _ in 0..2 {
        for start in (0..sectors).step_by(CHUNK_BYTES / 512) {
            ensure!(guest.read(start, &mut found)? == Status::Ok, "read at sector {start}");
        }
    }
    println!("has read its disk");
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}

/// Zeroes the disk, alternately with and without permission to unmap, and reads it.
fn make_zero(socket: &Path) -> Result<()> {
    let mut guest = Client::connect(ClientOptions::new(socket))?;
    let disk_bytes = guest.config().capacity_bytes();
    let sectors = CHUNK_BYTES as u64 / 512;
    for (index, start) in (0..disk_bytes / 512).step_by(sectors as usize).enumerate() {
        let status = guest.write_zeroes(&[(start, sectors as u32)], index % 2 == 0)?;
        ensure!(status == Status::Ok, "write-zeroes at sector {start}: {status:?}");
    }
    ensure!(guest.flush()? == Status::Ok, "flush");
    let mut found = vec![0; CHUNK_BYTES];
    for start in (0..disk_bytes / 512).step_by(sectors as usize) {
        found.fill(1);
        ensure!(guest.read(start, &mut found)? == Status::Ok, "read at sector {start}");
        if let Some(at) = found.iter().position(|byte| *byte != 0) {
            bail!("byte {at} after sector {start} is {:#x} and not zero", found[at]);
        }
    }
    Ok(())
}
