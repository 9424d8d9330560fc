//! The time until a daemon serves a large image: after a clean stop, and after a kill with the
//! longest possible replay.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args;
use flowstone_testkit::Daemon;
use flowstone_testkit::load::{Completion, Limit, LoadOptions, run};

use super::contender::{Place, stop};
use super::default_dir;
use crate::size::parse_size;

/// Options.
#[derive(Clone, Debug, Args)]
pub struct OpenArgs {
    /// How often it is opened after a clean stop.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Size of the disk.
    #[arg(long, default_value = "100G", value_parser = parse_size)]
    size: u64,
    /// Bytes of the disk that are written before.
    #[arg(long, default_value = "20G", value_parser = parse_size)]
    live: u64,
    /// Directory of the image, on the file system to be measured.
    #[arg(long, default_value_os_t = default_dir())]
    dir: PathBuf,
    #[command(flatten)]
    place: Place,
}

/// Progress of the killed daemon between two checkpoints: shares of the appended bytes, in percent,
/// without headers.
const KILLED_AT: [u64; 4] = [20, 50, 80, 90];

/// Prints times from start to ready.
pub fn measure(options: &OpenArgs) -> Result<()> {
    let live = options.live;
    std::fs::create_dir_all(&options.dir)?;
    let image = options.dir.join("open.flow");
    options.place.create_log(&image, options.size, &[])?;
    let mut daemon = start(options, &image)?.0;
    load(options, "write", 128, live >> 17, live)?;
    stop(&mut daemon)?;
    println!("| open | seconds |\n|---|---|");
    for _ in 0..options.rounds {
        let (mut daemon, seconds) = start(options, &image)?;
        println!("| after a clean stop | {seconds:.3} |");
        stop(&mut daemon)?;
    }
    // A checkpoint is due after 256 MiB to 4 GiB, within that after 20 times the size of the map,
    // which has 8 bytes per block.
    let interval_blocks = (20 * live / 512).clamp(256 << 20, 4 << 30) / 4096;
    for percent in KILLED_AT {
        let mut daemon = start(options, &image)?.0;
        load(options, "randwrite", 4, interval_blocks * percent / 100, live)?;
        daemon.kill()?;
        let (mut daemon, seconds) = start(options, &image)?;
        println!("| after a kill, {percent} % of a checkpoint's interval written | {seconds:.3} |");
        stop(&mut daemon)?;
    }
    Ok(std::fs::remove_file(&image)?)
}

/// Returns a daemon that is ready, and its start-up time in seconds.
fn start(options: &OpenArgs, image: &Path) -> Result<(Daemon, f64)> {
    let socket = options.dir.join("bench.sock");
    let direct = ["--direct", "on"].map(str::to_owned);
    let begin = Instant::now();
    let daemon = options.place.serve(image, &socket, 1, &direct)?;
    Ok((daemon, begin.elapsed().as_secs_f64()))
}

fn load(options: &OpenArgs, rw: &str, kib: u64, ops: u64, span: u64) -> Result<()> {
    let mut load = LoadOptions::new(options.dir.join("bench.sock")).workload(rw).iodepth(32);
    load.block_bytes = kib << 10;
    load.span_bytes = span;
    load.threads = 1;
    load.cpus = vec![options.place.client_cpu];
    load.completion = Completion::Eventfd;
    load.limit = Limit::Ops(ops);
    let report = run(&load)?;
    ensure!(report.errors == 0, "{} requests failed", report.errors);
    Ok(())
}
