//! `flowstone-bench qcow2`: qcow2 images served by Flowstone and by qemu-storage-daemon.
//!
//! Both take turns within a round, on images made alike: a new one for each measurement of fresh
//! writes, and one that was written once sequentially for everything else.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use flowstone_testkit::load::{Completion, Limit, LoadOptions, run};
use flowstone_testkit::process::{TERMINATE_TIMEOUT, flowstone_binary};
use flowstone_testkit::{Daemon, DaemonCommand};

use crate::sample::median;
use crate::server::qsd;
use crate::size::parse_size;

/// Options.
#[derive(Clone, Debug, Args)]
pub struct Qcow2Args {
    /// Rounds.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Measured seconds per phase.
    #[arg(long, default_value_t = 2.0)]
    runtime: f64,
    /// Size of the disks.
    #[arg(long, default_value = "8G", value_parser = parse_size)]
    size: u64,
    /// Directory of the images, on the file system to be measured.
    #[arg(long, default_value = "target/bench-data")]
    dir: PathBuf,
    /// Leave the files in the page cache, to measure the daemons rather than the disk.
    #[arg(long)]
    cached: bool,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contender {
    Flowstone,
    Qsd,
}

/// One workload.
struct Phase {
    name: &'static str,
    /// It needs a new image.
    fresh: bool,
    rw: &'static str,
    iodepth: u16,
    queues: usize,
    flush_every: u64,
}

const fn phase(name: &'static str, rw: &'static str, iodepth: u16, queues: usize) -> Phase {
    Phase { name, fresh: false, rw, iodepth, queues, flush_every: 0 }
}

const PHASES: [Phase; 6] = [
    Phase { fresh: true, ..phase("4 KiB random write QD32, fresh image", "randwrite", 32, 1) },
    phase("4 KiB random read QD32, written image", "randread", 32, 1),
    phase("4 KiB random read QD1, written image", "randread", 1, 1),
    phase("4 KiB random write QD32, written image", "randwrite", 32, 1),
    phase("4 KiB random write 4 x QD8, written image", "randwrite", 8, 4),
    Phase {
        flush_every: 32,
        ..phase("the same QD32, a flush every 32 writes", "randwrite", 32, 1)
    },
];

/// Time before measuring starts.
const RAMP: Duration = Duration::from_millis(250);
/// Removing an image makes many small discards: the disk becomes idle after them.
const REST: Duration = Duration::from_secs(3);

/// Carries out the subcommand.
pub fn qcow2(args: &Qcow2Args) -> Result<()> {
    std::fs::create_dir_all(&args.dir)?;
    let contenders = [Contender::Flowstone, Contender::Qsd];
    for contender in contenders {
        fill(args, contender)?;
    }
    let mut rates = vec![[Vec::new(), Vec::new()]; PHASES.len()];
    for round in 0..args.rounds {
        for (phase, rates) in PHASES.iter().zip(&mut rates) {
            for turn in 0..contenders.len() {
                let index = (turn + round) % contenders.len();
                let rate = measure(args, contenders[index], phase)?;
                eprintln!(
                    "{}/{} {:<42} {:?} {rate:.0}/s",
                    round + 1,
                    args.rounds,
                    phase.name,
                    contenders[index]
                );
                rates[index].push(rate);
            }
        }
    }
    println!("| point | flowstone qcow2 | QSD qcow2 | ratio |\n|---|---|---|---|");
    for (phase, [flowstone, qsd]) in PHASES.iter().zip(&rates) {
        let [flowstone, qsd] =
            [flowstone, qsd].map(|rates| median(rates.clone()).unwrap_or(f64::NAN));
        println!("| {} | {flowstone:.0} | {qsd:.0} | {:.2} |", phase.name, flowstone / qsd);
    }
    for contender in contenders {
        std::fs::remove_file(contender.written(args))?;
    }
    Ok(())
}

impl Contender {
    fn written(self, args: &Qcow2Args) -> PathBuf {
        args.dir.join(format!("written-{self:?}.qcow2"))
    }

    fn start(self, args: &Qcow2Args, image: &Path, socket: &Path) -> Result<Daemon> {
        let _ = std::fs::remove_file(socket);
        let command = match self {
            Self::Flowstone => {
                let direct = if args.cached { "off" } else { "on" };
                let program = args.flowstone.clone().map_or_else(flowstone_binary, Ok)?;
                DaemonCommand::new(program)
                    .args(["serve", "--direct", direct, "--socket"])
                    .arg(socket)
                    .arg(image)
            }
            Self::Qsd => qsd::serve("qcow2", image, socket, 4, args.cached),
        };
        Ok(command.cpus(&[args.server_cpu]).spawn()?)
    }
}

fn new_image(image: &Path, bytes: u64) -> Result<()> {
    let _ = std::fs::remove_file(image);
    let mut command = Command::new("qemu-img");
    command.args(["create", "-q", "-f", "qcow2"]).arg(image).arg(bytes.to_string());
    ensure!(command.status().context("run qemu-img")?.success(), "qemu-img failed");
    Ok(())
}

/// Writes every block of a contender's image.
fn fill(args: &Qcow2Args, contender: Contender) -> Result<()> {
    let image = contender.written(args);
    new_image(&image, args.size)?;
    let blocks = args.size / (128 << 10);
    load(args, contender, &image, |load| {
        let mut load = load.workload("write").iodepth(8).ops(blocks);
        load.block_bytes = 128 << 10;
        load
    })?;
    Ok(())
}

fn measure(args: &Qcow2Args, contender: Contender, phase: &Phase) -> Result<f64> {
    let image = if phase.fresh { args.dir.join("fresh.qcow2") } else { contender.written(args) };
    if phase.fresh {
        new_image(&image, args.size)?;
    }
    let rate = load(args, contender, &image, |load| {
        let mut load = load.workload(phase.rw).iodepth(phase.iodepth);
        load.client = load.client.queues(phase.queues);
        load.flush_every = phase.flush_every;
        load.limit = Limit::Time { ramp: RAMP, runtime: Duration::from_secs_f64(args.runtime) };
        load
    })
    .with_context(|| format!("{}, {contender:?}", phase.name))?;
    if phase.fresh {
        std::fs::remove_file(&image)?;
        std::thread::sleep(REST);
    }
    Ok(rate)
}

/// Serves an image and loads it. Returns requests per second.
fn load(
    args: &Qcow2Args,
    contender: Contender,
    image: &Path,
    shape: impl FnOnce(LoadOptions) -> LoadOptions,
) -> Result<f64> {
    let socket = args.dir.join("qcow2.sock");
    let mut daemon = contender.start(args, image, &socket)?;
    let mut options = LoadOptions::new(&socket);
    options.threads = 1;
    options.cpus = vec![args.client_cpu];
    options.completion = Completion::Eventfd;
    let report = run(&shape(options))?;
    ensure!(report.errors == 0, "{} requests failed", report.errors);
    let status = daemon.terminate(TERMINATE_TIMEOUT);
    if contender == Contender::Flowstone {
        ensure!(status?.success(), "flowstone did not end in order");
    }
    Ok(report.iops)
}
