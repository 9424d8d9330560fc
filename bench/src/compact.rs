//! `flowstone-bench compact`: sequential reads of a qcow2 image that was written at random, before
//! and after `flowstone compact`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use flowstone_testkit::DaemonCommand;
use flowstone_testkit::load::{Completion, Limit, LoadOptions, run};
use flowstone_testkit::process::{TERMINATE_TIMEOUT, flowstone_binary};

use crate::size::parse_size;

/// Options.
#[derive(Clone, Debug, Args)]
pub struct CompactArgs {
    /// Size of the disk.
    #[arg(long, default_value = "2G", value_parser = parse_size)]
    size: u64,
    /// Measured seconds per row.
    #[arg(long, default_value_t = 3.0)]
    runtime: f64,
    /// Directory of the image, on the file system to be measured.
    #[arg(long, default_value = "target/bench-data")]
    dir: PathBuf,
    /// The flowstone binary [default: FLOWSTONE_BIN, or beside this program].
    #[arg(long)]
    flowstone: Option<PathBuf>,
}

const CLUSTERS: [(&str, u64); 3] = [("4K", 4 << 10), ("64K", 64 << 10), ("2M", 2 << 20)];
const DEPTHS: [u16; 2] = [1, 8];
const READ_BYTES: u64 = 128 << 10;
/// Average number of writes per cluster: 2 % of the clusters are never written.
const WRITES_PER_CLUSTER: u64 = 4;
/// Largest write; a larger cluster is written in several parts.
const WRITE_BYTES_MAX: u64 = 64 << 10;

/// Carries out the subcommand.
pub fn compact(args: &CompactArgs) -> Result<()> {
    std::fs::create_dir_all(&args.dir)?;
    let image = args.dir.join("compact.qcow2");
    println!("| clusters | 128 KiB sequential read | before, MB/s | after, MB/s | ratio |");
    println!("|---|---|---|---|---|");
    for (name, cluster_bytes) in CLUSTERS {
        let _ = std::fs::remove_file(&image);
        let size = args.size.to_string();
        flowstone(args, &["create", "--size", &size, "--cluster-size", name], &image)?;
        let bytes = cluster_bytes.min(WRITE_BYTES_MAX);
        let writes = args.size / bytes * WRITES_PER_CLUSTER;
        load(args, &image, |load| LoadOptions {
            block_bytes: bytes,
            ..load.workload("randwrite").iodepth(16).ops(writes)
        })?;
        let before = read(args, &image)?;
        let start = Instant::now();
        let said = flowstone(args, &["compact"], &image)?;
        eprintln!("clusters of {name}: compact took {:.1?}\n{said}", start.elapsed());
        let after = read(args, &image)?;
        for ((depth, before), after) in DEPTHS.iter().zip(before).zip(after) {
            println!("| {name} | QD{depth} | {before:.0} | {after:.0} | {:.2} |", after / before);
        }
    }
    std::fs::remove_file(&image)?;
    Ok(())
}

fn program(args: &CompactArgs) -> Result<PathBuf> {
    args.flowstone.clone().map_or_else(flowstone_binary, Ok).context("find flowstone")
}

fn flowstone(args: &CompactArgs, command: &[&str], image: &Path) -> Result<String> {
    let output = Command::new(program(args)?).args(command).arg(image).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns megabytes per second, at each depth.
fn read(args: &CompactArgs, image: &Path) -> Result<[f64; DEPTHS.len()]> {
    let mut rates = [0.0; DEPTHS.len()];
    for (rate, depth) in rates.iter_mut().zip(DEPTHS) {
        let runtime = Duration::from_secs_f64(args.runtime);
        let reads_per_s = load(args, image, |load| LoadOptions {
            block_bytes: READ_BYTES,
            limit: Limit::Time { ramp: Duration::from_millis(250), runtime },
            ..load.workload("read").iodepth(depth)
        })?;
        *rate = reads_per_s * READ_BYTES as f64 / 1e6;
    }
    Ok(rates)
}

/// Serves the image with direct I/O and loads it. Returns requests per second.
fn load(
    args: &CompactArgs,
    image: &Path,
    shape: impl FnOnce(LoadOptions) -> LoadOptions,
) -> Result<f64> {
    let socket = args.dir.join("compact.sock");
    let _ = std::fs::remove_file(&socket);
    let mut daemon = DaemonCommand::new(program(args)?)
        .args(["serve", "--direct", "on", "--socket"])
        .arg(&socket)
        .arg(image)
        .spawn()?;
    let mut options = LoadOptions::new(&socket);
    options.completion = Completion::Eventfd;
    let report = run(&shape(options))?;
    ensure!(report.errors == 0, "{} requests failed", report.errors);
    ensure!(daemon.terminate(TERMINATE_TIMEOUT)?.success(), "flowstone did not end in order");
    Ok(report.iops)
}
