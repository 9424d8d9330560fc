//! Steady state: a disk that is written all over, then overwritten at random until cleaning costs
//! what it costs. The host's write amplification is read from the image itself.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use flowstone_testkit::load::{Completion, Limit, LoadOptions, LoadReport, run};
use serde_json::Value;

use super::LogOptions;
use super::contender::{Contender, create_log, program};

/// Shares of the image that live blocks take, and the reserve that makes them so.
const SHARES: [(u32, u32); 4] = [(50, 50), (70, 30), (80, 20), (90, 10)];
/// Uniform writes, greedy cleaning: host write amplification in the page-mapped model.
const MODEL: [f64; 4] = [1.25, 1.86, 2.66, 5.05];

pub fn measure(options: &LogOptions, passes: u64) -> Result<()> {
    println!(
        "| live | write amplification | model | ratio | 4 KiB writes/s | p99, ms |\n|---|---|---|---|---|---|"
    );
    for ((live, reserve), model) in SHARES.into_iter().zip(MODEL) {
        let image = options.dir.join("steady.flow");
        let reserve = reserve.to_string();
        create_log(options, &image, &["--reserve", &reserve, "--segment", "8M"])?;
        let blocks = options.size / 4096;
        load(options, &image, "write", 128, blocks / 32)?;
        load(options, &image, "randwrite", 4, blocks * passes)?;
        let before = written(options, &image)?;
        let report = load(options, &image, "randwrite", 4, blocks * passes)?;
        let after = written(options, &image)?;
        let amplification = (after.0 - before.0) / (after.1 - before.1);
        println!(
            "| {live} % | {amplification:.2} | {model:.2} | {:.2} | {:.0} | {:.1} |",
            amplification / model,
            report.iops,
            report.latency.p99_us / 1000.0
        );
        std::fs::remove_file(&image)?;
    }
    Ok(())
}

fn load(options: &LogOptions, image: &Path, rw: &str, kib: u64, ops: u64) -> Result<LoadReport> {
    let socket = options.dir.join("bench.sock");
    let _ = std::fs::remove_file(&socket);
    let mut daemon = Contender::Log.command(options, image, &socket, 1)?.spawn()?;
    let mut load = LoadOptions::new(&socket).workload(rw).iodepth(32);
    load.block_bytes = kib << 10;
    load.threads = 1;
    load.cpus = vec![options.client_cpu];
    load.completion = Completion::Eventfd;
    load.limit = Limit::Ops(ops);
    load.stall_timeout = Duration::from_secs(60);
    let report = run(&load)?;
    ensure!(report.errors == 0, "{} requests failed", report.errors);
    Contender::Log.stop(&mut daemon)?;
    Ok(report)
}

/// Blocks appended to the image, and blocks written by the guest, since it was made.
fn written(options: &LogOptions, image: &Path) -> Result<(f64, f64)> {
    let output = Command::new(program(options)?).args(["info", "--json"]).arg(image).output()?;
    let info: Value = serde_json::from_slice(&output.stdout).context("read `info --json`")?;
    let number = |key: &str| {
        info["log"][key].as_f64().with_context(|| format!("`info --json` has no log.{key}"))
    };
    Ok((number("appended_blocks")?, number("guest_blocks")?))
}
