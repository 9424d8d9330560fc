//! Runs inside a guest (tests/vm, `devices`): a driver for a `flowstone serve` beside it.
//!
//! device-load SOCKET zeroes|anything: random requests of all kinds, every read checked. The second
//! word is what a discarded block may read as. Before and after that the whole disk is made zero and
//! read back.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use flowstone_testkit::load::{Limit, LoadOptions, run};
use flowstone_testkit::{Client, ClientOptions, Status};

const CHUNK_BYTES: usize = 1 << 20;
const REQUESTS: u64 = 1500;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match &*words {
        [socket, discarded] => exercise(Path::new(socket), discarded == "zeroes"),
        _ => Err(anyhow::anyhow!("usage: device-load SOCKET zeroes|anything")),
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

/// Zeroes the disk, every other part with leave to give its space back, and reads it.
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
