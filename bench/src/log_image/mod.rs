//! `flowstone-bench log`: log images beside raw ones and beside qcow2 of qemu-storage-daemon.
//!
//! Every contender gets its disk, and the same phases on it in the same order; contenders take
//! turns within a round, so that a noisy machine is noisy for all of them. `steady` writes at random
//! to full disks for long and reports what cleaning costs; `map` measures the map alone.

mod contender;
mod map;
mod open;
mod steady;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use flowstone_testkit::load::{Completion, Limit, LoadOptions, LoadReport, run};

use crate::sample::median;
use crate::size::parse_size;
use contender::Contender;

/// What to measure.
#[derive(Debug, Args)]
pub struct LogArgs {
    /// Something else than the phases.
    #[command(subcommand)]
    command: Option<Other>,
    #[command(flatten)]
    options: LogOptions,
}

#[derive(Debug, Subcommand)]
enum Other {
    /// Random writes on full disks until cleaning is steady: write amplification, rate, latency.
    Steady {
        #[command(flatten)]
        options: LogOptions,
        /// How often the disk is overwritten before measuring, and while measuring.
        #[arg(long, default_value_t = 4)]
        passes: u64,
    },
    /// Time until a daemon serves a large image, after a clean stop and after a kill.
    Open {
        #[command(flatten)]
        options: LogOptions,
        /// Bytes of the disk that are written before.
        #[arg(long, default_value = "20G", value_parser = parse_size)]
        live: u64,
    },
    /// Lookup and insert of 10 million random blocks, beside a BTreeMap.
    Map,
}

/// Options of every measurement here.
#[derive(Clone, Debug, Args)]
struct LogOptions {
    /// Rounds.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Measured seconds per phase.
    #[arg(long, default_value_t = 2.0)]
    runtime: f64,
    /// Size of the disks.
    #[arg(long, default_value = "2G", value_parser = parse_size)]
    size: u64,
    /// Directory of the images, on the file system to be measured.
    #[arg(long, default_value = "target/bench-data")]
    dir: PathBuf,
    /// The flowstone binary [default: FLOWSTONE_BIN, or beside this program].
    #[arg(long)]
    flowstone: Option<PathBuf>,
    /// CPU of the servers.
    #[arg(long, default_value_t = 0)]
    server_cpu: usize,
    /// CPU of the client.
    #[arg(long, default_value_t = 1)]
    client_cpu: usize,
}

/// One workload on a disk.
#[derive(Clone, Copy, Debug)]
struct Phase {
    name: &'static str,
    rw: &'static str,
    kib: u64,
    iodepth: u16,
    queues: usize,
    flush_every: u64,
}

const fn phase(
    name: &'static str,
    rw: &'static str,
    kib: u64,
    iodepth: u16,
    queues: usize,
    flush_every: u64,
) -> Phase {
    Phase { name, rw, kib, iodepth, queues, flush_every }
}

/// In this order: the first finds the disk as it was made.
const PHASES: [Phase; 10] = [
    phase("4 KiB random write QD32, fresh", "randwrite", 4, 32, 1, 0),
    phase("4 KiB random write QD32, overwritten", "randwrite", 4, 32, 1, 0),
    phase("4 KiB random write 8 x QD8", "randwrite", 4, 8, 8, 0),
    phase("4 KiB sequential write QD32", "write", 4, 32, 1, 0),
    phase("4 KiB random write QD32, flush every 32", "randwrite", 4, 32, 1, 32),
    phase("4 KiB random write QD32, flush every 8", "randwrite", 4, 32, 1, 8),
    phase("4 KiB random write QD32, flush every 1", "randwrite", 4, 32, 1, 1),
    phase("4 KiB random read QD1", "randread", 4, 1, 1, 0),
    phase("4 KiB random read QD32", "randread", 4, 32, 1, 0),
    phase(SEQUENTIAL_READ, "read", 128, 8, 1, 0),
];
const SEQUENTIAL_READ: &str = "128 KiB sequential read QD8";
const AFTER_COMPACT: &str = "128 KiB sequential read QD8, after compact";

/// Time before measuring starts.
const RAMP: Duration = Duration::from_millis(250);
/// A pause between measurements, for the disk to come to rest.
const REST: Duration = Duration::from_millis(300);

/// Rates of one phase by contender.
type Rates = BTreeMap<Contender, Vec<f64>>;

/// Carries out the subcommand.
pub fn log(args: &LogArgs) -> Result<()> {
    match &args.command {
        Some(Other::Map) => {
            map::measure();
            Ok(())
        }
        Some(Other::Open { options, live }) => open::measure(options, *live),
        Some(Other::Steady { options, passes }) => steady::measure(options, *passes),
        None => compare(&args.options),
    }
}

fn compare(options: &LogOptions) -> Result<()> {
    std::fs::create_dir_all(&options.dir)?;
    let mut table: Vec<(&str, Rates)> =
        PHASES.iter().map(|phase| (phase.name, Rates::new())).collect();
    table.push((AFTER_COMPACT, Rates::new()));
    let contenders = Contender::ALL;
    for round in 0..options.rounds {
        for turn in 0..contenders.len() {
            let contender = contenders[(turn + round) % contenders.len()];
            let rates = measure(contender, options)
                .with_context(|| format!("{} in round {}", contender.name(), round + 1))?;
            for ((name, row), rate) in table.iter_mut().zip(rates) {
                eprintln!(
                    "{}/{} {name:<42} {:<12} {rate:>9.0}/s",
                    round + 1,
                    options.rounds,
                    contender.name()
                );
                row.entry(contender).or_default().push(rate);
            }
        }
    }
    print_table(&table);
    Ok(())
}

/// All phases on one contender's disk.
fn measure(contender: Contender, options: &LogOptions) -> Result<Vec<f64>> {
    let image = contender.make(options)?;
    let mut rates = Vec::new();
    for phase in PHASES {
        let report = serve_and_load(contender, options, &image, phase)?;
        rates.push(report.iops);
    }
    if contender == Contender::Log {
        contender::compact(options, &image)?;
    }
    let last = PHASES[PHASES.len() - 1];
    rates.push(serve_and_load(contender, options, &image, last)?.iops);
    contender.remove(&image)?;
    Ok(rates)
}

fn serve_and_load(
    contender: Contender,
    options: &LogOptions,
    image: &Path,
    phase: Phase,
) -> Result<LoadReport> {
    let socket = options.dir.join("bench.sock");
    let _ = std::fs::remove_file(&socket);
    let mut daemon = contender.command(options, image, &socket, phase.queues)?.spawn()?;
    let mut load = LoadOptions::new(&socket).workload(phase.rw).iodepth(phase.iodepth);
    load.client = load.client.queues(phase.queues);
    load.block_bytes = phase.kib << 10;
    load.threads = 1;
    load.cpus = vec![options.client_cpu];
    load.completion = Completion::Eventfd;
    load.flush_every = phase.flush_every;
    load.limit = Limit::Time { ramp: RAMP, runtime: Duration::from_secs_f64(options.runtime) };
    let report = run(&load).with_context(|| phase.name)?;
    ensure!(report.errors == 0, "{}: {} requests failed", phase.name, report.errors);
    contender.stop(&mut daemon)?;
    std::thread::sleep(REST);
    Ok(report)
}

fn print_table(table: &[(&str, Rates)]) {
    println!(
        "| point | raw | log | log/raw | QSD raw | QSD qcow2 | log/qcow2 |\n|---|---|---|---|---|---|---|"
    );
    for (name, rates) in table {
        let rate = |contender| rates.get(&contender).and_then(|all: &Vec<f64>| median(all.clone()));
        let shown = |value: Option<f64>| value.map_or("-".into(), |it| format!("{it:.0}"));
        let ratio = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => format!("{:.2}", a / b),
            _ => "-".into(),
        };
        let [raw, log, qsd, qcow2] = Contender::ALL.map(rate);
        println!(
            "| {name} | {} | {} | {} | {} | {} | {} |",
            shown(raw),
            shown(log),
            ratio(log, raw),
            shown(qsd),
            shown(qcow2),
            ratio(log, qcow2)
        );
    }
}
