//! How long a daemon takes until it serves a large image: after a clean stop, and after a kill with
//! as much to replay as there can be.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use flowstone_testkit::Daemon;
use flowstone_testkit::load::{Completion, Limit, LoadOptions, run};

use super::LogOptions;
use super::contender::{Contender, create_log};

/// Shares of what is appended between two checkpoints that the killed daemon had written, in
/// percent. Headers come on top.
const KILLED_AT: [u64; 4] = [20, 50, 80, 90];

/// Prints times from start to ready.
pub fn measure(options: &LogOptions, live: u64) -> Result<()> {
    let image = options.dir.join("open.flow");
    create_log(options, &image, &[])?;
    let mut daemon = start(options, &image)?.0;
    load(options, "write", 128, live >> 17, live)?;
    Contender::Log.stop(&mut daemon)?;
    println!("| open | seconds |\n|---|---|");
    for _ in 0..options.rounds {
        let (mut daemon, seconds) = start(options, &image)?;
        println!("| after a clean stop | {seconds:.3} |");
        Contender::Log.stop(&mut daemon)?;
    }
    // A checkpoint is due after 256 MiB to 4 GiB, within that after 20 times the map, which has 8
    // bytes for each block.
    let interval_blocks = (20 * live / 512).clamp(256 << 20, 4 << 30) / 4096;
    for percent in KILLED_AT {
        let mut daemon = start(options, &image)?.0;
        load(options, "randwrite", 4, interval_blocks * percent / 100, live)?;
        daemon.kill()?;
        let (mut daemon, seconds) = start(options, &image)?;
        println!("| after a kill, {percent} % of a checkpoint's interval written | {seconds:.3} |");
        Contender::Log.stop(&mut daemon)?;
    }
    Ok(std::fs::remove_file(&image)?)
}

/// A daemon that is ready, and the seconds that took.
fn start(options: &LogOptions, image: &Path) -> Result<(Daemon, f64)> {
    let socket = options.dir.join("bench.sock");
    let _ = std::fs::remove_file(&socket);
    let begin = Instant::now();
    let daemon = Contender::Log.command(options, image, &socket, 1)?.spawn()?;
    Ok((daemon, begin.elapsed().as_secs_f64()))
}

fn load(options: &LogOptions, rw: &str, kib: u64, ops: u64, span: u64) -> Result<()> {
    let mut load = LoadOptions::new(options.dir.join("bench.sock")).workload(rw).iodepth(32);
    load.block_bytes = kib << 10;
    load.span_bytes = span;
    load.threads = 1;
    load.cpus = vec![options.client_cpu];
    load.completion = Completion::Eventfd;
    load.limit = Limit::Ops(ops);
    let report = run(&load)?;
    ensure!(report.errors == 0, "{} requests failed", report.errors);
    Ok(())
}
