//! `flowstone-bench pair`: compares two binaries of Flowstone, to detect a regression.
//!
//! A round starts both, each with an image of its own, and drives one after the other at every
//! point; the one without a client sleeps. The next round begins with the other one, as new
//! processes with new images: their placement in memory and on the disk alone makes up to 5 % of
//! difference. The result is the ratio within a round, since other activity of the machine affects
//! both, and of these ratios the median, with its 95 % confidence interval.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use flowstone_testkit::load::{Completion, Limit, LoadOptions, LoadReport, run};
use flowstone_testkit::process::{TERMINATE_TIMEOUT, flowstone_binary};
use flowstone_testkit::{Daemon, DaemonCommand};
use tempfile::tempdir_in;

use crate::point::selected;
use crate::sample::{interval, median};
use crate::size::parse_size;

/// Options.
#[derive(Clone, Debug, Args)]
pub struct PairArgs {
    /// The flowstone binary from before the change.
    #[arg(long)]
    before: PathBuf,
    /// The one from after it [default: FLOWSTONE_BIN, or beside this program].
    #[arg(long)]
    after: Option<PathBuf>,
    /// Rounds.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Measured seconds per point, round and binary.
    #[arg(long, default_value_t = 1.0)]
    runtime: f64,
    /// Only points whose name contains this; may be given several times.
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    /// Size of each image.
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    size: u64,
    /// Directory of the images, on the file system to be measured.
    #[arg(long, default_value = "target/bench-data")]
    dir: PathBuf,
    /// CPU of the servers.
    #[arg(long, default_value_t = 0)]
    server_cpu: usize,
    /// CPU of the client.
    #[arg(long, default_value_t = 1)]
    client_cpu: usize,
}

const RAMP: Duration = Duration::from_millis(100);
const TMPFS: &str = "/dev/shm";
const QUEUES_MAX: usize = 4;
const FILL_BYTES: u64 = 256 << 10;

/// The backend of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disk {
    Null,
    Tmpfs,
    Image(&'static str),
}

impl Disk {
    const ALL: [Self; 5] =
        [Self::Null, Self::Tmpfs, Self::Image("raw"), Self::Image("qcow2"), Self::Image("log")];

    const fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Tmpfs => "tmpfs",
            Self::Image(format) => format,
        }
    }

    /// Makes the image, if any, and serves it.
    fn serve(self, program: &Path, dir: &Path, args: &PairArgs) -> Result<Daemon> {
        let socket = dir.join("vhost.sock");
        let mut command = DaemonCommand::new(program)
            .cpus(&[args.server_cpu])
            .args(["serve", "--queues", &QUEUES_MAX.to_string(), "--socket"])
            .arg(&socket);
        command = match self {
            Self::Null => command.args(["--backend", "null:8G"]),
            Self::Tmpfs => {
                command.args(["--direct", "off"]).arg(create(program, dir, "raw", args)?)
            }
            Self::Image(format) => command.arg(create(program, dir, format, args)?),
        };
        let daemon = command.spawn()?;
        if self != Self::Null {
            let mut fill = LoadOptions::new(&socket).workload("write").iodepth(4);
            fill.block_bytes = FILL_BYTES;
            fill.limit = Limit::Ops(args.size / FILL_BYTES);
            checked(run(&fill)?)?;
        }
        Ok(daemon)
    }
}

fn create(program: &Path, dir: &Path, format: &str, args: &PairArgs) -> Result<PathBuf> {
    let suffix = if format == "log" { "flow" } else { format };
    let image = dir.join(format!("disk.{suffix}"));
    let size = args.size.to_string();
    let mut command = Command::new(program);
    command.args(["create", "--format", format, "--size", &size]).arg(&image);
    let made = command.output().with_context(|| format!("run {}", program.display()))?;
    ensure!(made.status.success(), "create: {}", String::from_utf8_lossy(&made.stderr));
    Ok(image)
}

fn checked(report: LoadReport) -> Result<LoadReport> {
    ensure!(report.errors == 0, "{} requests failed", report.errors);
    Ok(report)
}

/// The load of a disk.
#[derive(Clone, Copy, Debug)]
struct Load {
    disk: Disk,
    rw: &'static str,
    iodepth: u16,
    queues: usize,
    flush_every: u64,
}

impl Load {
    fn of(disk: Disk) -> Vec<Self> {
        let load = |rw, queues, iodepth| Self { disk, rw, iodepth, queues, flush_every: 0 };
        if disk == Disk::Null {
            return vec![load("randread", 1, 1), load("randread", 1, 32), load("randread", 2, 32)];
        }
        let depths: &[u16] = if disk == Disk::Image("raw") { &[1, 32, 128] } else { &[1, 32] };
        let mut loads = Vec::new();
        for rw in ["randread", "randwrite"] {
            loads.extend(depths.iter().map(|depth| load(rw, 1, *depth)));
        }
        if disk != Disk::Tmpfs {
            let flushed = |load| Self { flush_every: 1, ..load };
            loads.push(flushed(load("randwrite", 1, 8)));
            loads.push(flushed(load("randwrite", 4, 1)));
        }
        loads
    }

    fn name(&self) -> String {
        let Self { disk, rw, iodepth, queues, flush_every } = *self;
        let queues = if queues == 1 { String::new() } else { format!("{queues}x") };
        let flush = if flush_every == 0 { "" } else { "-flush-each" };
        format!("{}-{rw}-{queues}qd{iodepth}{flush}", disk.name())
    }

    fn drive(&self, socket: &Path, daemon: &Daemon, args: &PairArgs) -> Result<LoadReport> {
        let mut load = LoadOptions::new(socket).workload(self.rw).iodepth(self.iodepth);
        load.client = load.client.queues(self.queues);
        (load.threads, load.cpus) = (1, vec![args.client_cpu]);
        let in_memory = matches!(self.disk, Disk::Null | Disk::Tmpfs);
        load.completion = if in_memory { Completion::Poll } else { Completion::Eventfd };
        load.limit = Limit::Time { ramp: RAMP, runtime: Duration::from_secs_f64(args.runtime) };
        load.flush_every = self.flush_every;
        load.server_pid = Some(daemon.pid());
        checked(run(&load)?)
    }
}

/// The results before and after the change, of one round.
type Round = [LoadReport; 2];

/// Carries out the subcommand.
pub fn pair(args: &PairArgs) -> Result<()> {
    let after = args.after.clone().map_or_else(flowstone_binary, Ok)?;
    let programs = [&args.before, &after];
    std::fs::create_dir_all(&args.dir).with_context(|| format!("make {}", args.dir.display()))?;
    println!("| 4 KiB | before IOPS | after IOPS | ratio (95 %) | CPU per I/O, ratio (95 %) |");
    println!("|---|---:|---:|---|---|");
    let chosen = |load: &Load| selected(&load.name(), &args.only);
    for disk in Disk::ALL {
        let loads: Vec<Load> = Load::of(disk).into_iter().filter(chosen).collect();
        if !loads.is_empty() {
            measure(disk, &loads, programs, args).with_context(|| disk.name())?;
        }
    }
    Ok(())
}

fn measure(disk: Disk, loads: &[Load], programs: [&PathBuf; 2], args: &PairArgs) -> Result<()> {
    let mut rounds: Vec<Vec<Round>> = loads.iter().map(|_| Vec::new()).collect();
    for round in 0..args.rounds {
        let order = if round.is_multiple_of(2) { [0, 1] } else { [1, 0] };
        let reports = one_round(disk, loads, order.map(|which| programs[which]), args)?;
        for (report, rounds) in reports.into_iter().zip(&mut rounds) {
            rounds.push(order.map(|which| report[which].clone()));
        }
        eprintln!("{}: round {} of {}", disk.name(), round + 1, args.rounds);
    }
    for (load, rounds) in loads.iter().zip(&rounds) {
        println!("{}", row(load, rounds));
    }
    Ok(())
}

/// Returns, for each load, the reports of the first and of the second program.
fn one_round(
    disk: Disk,
    loads: &[Load],
    programs: [&PathBuf; 2],
    args: &PairArgs,
) -> Result<Vec<[LoadReport; 2]>> {
    let place = if disk == Disk::Tmpfs { Path::new(TMPFS) } else { &args.dir };
    let dirs = [tempdir_in(place)?, tempdir_in(place)?];
    let first = disk.serve(programs[0], dirs[0].path(), args)?;
    let daemons = [first, disk.serve(programs[1], dirs[1].path(), args)?];
    let drive = |load: &Load, which: usize| {
        // This one's flushes must not wait for the writes of the one before.
        rustix::fs::syncfs(std::fs::File::open(dirs[which].path())?)?;
        let socket = dirs[which].path().join("vhost.sock");
        load.drive(&socket, &daemons[which], args).with_context(|| load.name())
    };
    let both = |load| {
        let first = drive(load, 0)?;
        Ok([first, drive(load, 1)?])
    };
    let reports = loads.iter().map(both).collect::<Result<_>>()?;
    for mut daemon in daemons {
        let end = daemon.terminate(TERMINATE_TIMEOUT)?;
        ensure!(end.success(), "flowstone ended with {end}: {}", daemon.stderr());
    }
    Ok(reports)
}

fn row(load: &Load, rounds: &[Round]) -> String {
    let rate = |which: usize| {
        let rates = rounds.iter().map(|round| round[which].iops).collect();
        median(rates).unwrap_or(f64::NAN)
    };
    let ratios = |figure: fn(&LoadReport) -> f64| {
        let ratio = |round: &Round| figure(&round[1]) / figure(&round[0]);
        interval(rounds.iter().map(ratio).collect())
    };
    let iops = ratios(|report| report.iops);
    let cpu = ratios(|report| report.server_us_per_io.unwrap_or(f64::NAN));
    format!("| {} | {:.0} | {:.0} | {iops} | {cpu} |", load.name(), rate(0), rate(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_have_names_of_their_own() {
        let names: Vec<String> =
            Disk::ALL.into_iter().flat_map(Load::of).map(|load| load.name()).collect();
        for name in &names {
            assert_eq!(names.iter().filter(|other| *other == name).count(), 1, "{name}");
        }
    }
}
