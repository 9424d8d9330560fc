//! `flowstone-bench storm`: the effect of many small discards on concurrent writes.
//!
//! One queue writes 4 KiB blocks at random in the lower half of a disk. Another one discards at
//! random in the upper half, as fast as the server takes it. Both halves are written in full before
//! each measurement, so a discard has space to free. Each server is measured with and without
//! discards, one after the other; the result is the ratio of the two.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use flowstone_testkit::load::{Completion, Limit, LoadOptions, LoadReport, run};
use flowstone_testkit::process::{TERMINATE_TIMEOUT, flowstone_binary};
use flowstone_testkit::{Daemon, DaemonCommand};

use crate::sample::median;
use crate::server::qsd;
use crate::size::parse_size;

/// Options.
#[derive(Clone, Debug, Args)]
pub struct StormArgs {
    /// Rounds.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Measured seconds.
    #[arg(long, default_value_t = 4.0)]
    runtime: f64,
    /// Size of the disks.
    #[arg(long, default_value = "2G", value_parser = parse_size)]
    size: u64,
    /// Discards in flight.
    #[arg(long, default_value_t = 32)]
    storm_depth: u16,
    /// Directory of the images, on the file system to be measured.
    #[arg(long, default_value = "target/bench-data")]
    dir: PathBuf,
    /// Only servers whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
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

/// A server and its image format.
#[derive(Clone, Copy, Debug)]
struct Contender {
    name: &'static str,
    format: &'static str,
    qsd: bool,
    /// Clusters of 4 KiB if the format has clusters: otherwise discarding a block has no effect.
    create: &'static [&'static str],
}

const CONTENDERS: [Contender; 5] = [
    Contender { name: "raw", format: "raw", qsd: false, create: &[] },
    Contender { name: "QSD raw", format: "raw", qsd: true, create: &[] },
    Contender { name: "qcow2", format: "qcow2", qsd: false, create: &["--cluster-size", "4K"] },
    Contender { name: "QSD qcow2", format: "qcow2", qsd: true, create: &["--cluster-size", "4K"] },
    Contender { name: "log", format: "log", qsd: false, create: &[] },
];

/// Time before measuring starts.
const RAMP: Duration = Duration::from_millis(250);
/// Removing an image makes many small discards: the disk becomes idle after them.
const REST: Duration = Duration::from_secs(2);

#[derive(Default)]
struct Figures {
    calm: Vec<f64>,
    stormy: Vec<f64>,
    calm_p99: Vec<f64>,
    stormy_p99: Vec<f64>,
    discards: Vec<f64>,
    discard_p99: Vec<f64>,
}

/// Carries out the subcommand.
pub fn storm(args: &StormArgs) -> Result<()> {
    std::fs::create_dir_all(&args.dir)?;
    let contenders: Vec<_> =
        CONTENDERS.into_iter().filter(|it| it.name.contains(&args.only)).collect();
    ensure!(!contenders.is_empty(), "no server matches {:?}", args.only);
    let mut figures: Vec<Figures> = contenders.iter().map(|_| Figures::default()).collect();
    for round in 0..args.rounds {
        for turn in 0..contenders.len() {
            let index = (turn + round) % contenders.len();
            let (contender, figures) = (contenders[index], &mut figures[index]);
            contender.measure(args, figures).with_context(|| contender.name)?;
            let last = |values: &[f64]| values.last().copied().unwrap_or(f64::NAN);
            eprintln!(
                "{}/{} {:<10} {:.0} writes/s p99 {:.2} ms, in the storm {:.0} p99 {:.2} ms, {:.0} discards/s",
                round + 1,
                args.rounds,
                contender.name,
                last(&figures.calm),
                last(&figures.calm_p99),
                last(&figures.stormy),
                last(&figures.stormy_p99),
                last(&figures.discards),
            );
        }
    }
    println!(
        "| server | writes/s | p99, ms | in the storm | p99, ms | p99 ratio | discards/s | their p99, ms |\n\
         |---|---|---|---|---|---|---|---|"
    );
    for (contender, figures) in contenders.iter().zip(&figures) {
        let ratios: Vec<f64> =
            figures.stormy_p99.iter().zip(&figures.calm_p99).map(|(a, b)| a / b).collect();
        let median = |values: &[f64]| median(values.to_vec()).unwrap_or(f64::NAN);
        println!(
            "| {} | {:.0} | {:.2} | {:.0} | {:.2} | {:.2} | {:.0} | {:.1} |",
            contender.name,
            median(&figures.calm),
            median(&figures.calm_p99),
            median(&figures.stormy),
            median(&figures.stormy_p99),
            median(&ratios),
            median(&figures.discards),
            median(&figures.discard_p99),
        );
    }
    Ok(())
}

impl Contender {
    /// Measures writes without and with concurrent discards, on a new image that is written in
    /// full.
    fn measure(self, args: &StormArgs, figures: &mut Figures) -> Result<()> {
        let image = args.dir.join("storm.image");
        let _ = std::fs::remove_file(&image);
        let program = args.flowstone.clone().map_or_else(flowstone_binary, Ok)?;
        let size = args.size.to_string();
        let mut create = std::process::Command::new(&program);
        create.args(["create", "--format", self.format, "--size", &size]).args(self.create);
        ensure!(create.arg(&image).status()?.success(), "cannot make {}", image.display());
        let socket = args.dir.join("storm.sock");
        let mut daemon = self.start(args, &program, &image, &socket)?;
        fill(args, &socket)?;
        let calm = load(args, &socket, None)?;
        let stormy = load(args, &socket, Some(args.storm_depth))?;
        let status = daemon.terminate(TERMINATE_TIMEOUT);
        if !self.qsd {
            ensure!(status?.success(), "flowstone did not end in order");
        }
        std::fs::remove_file(&image)?;
        std::thread::sleep(REST);
        figures.calm.push(calm.write.count as f64 / calm.seconds);
        figures.stormy.push(stormy.write.count as f64 / stormy.seconds);
        figures.calm_p99.push(calm.write.p99_us / 1e3);
        figures.stormy_p99.push(stormy.write.p99_us / 1e3);
        figures.discards.push(stormy.discard.count as f64 / stormy.seconds);
        figures.discard_p99.push(stormy.discard.p99_us / 1e3);
        Ok(())
    }

    fn start(
        self,
        args: &StormArgs,
        program: &Path,
        image: &Path,
        socket: &Path,
    ) -> Result<Daemon> {
        let _ = std::fs::remove_file(socket);
        let command = if self.qsd {
            qsd::serve(self.format, image, socket, 2, false)
        } else {
            DaemonCommand::new(program)
                .args(["serve", "--format", self.format, "--direct", "on", "--queues", "2"])
                .arg("--socket")
                .arg(socket)
                .arg(image)
        };
        Ok(command.cpus(&[args.server_cpu]).spawn()?)
    }
}

/// Writes every block.
fn fill(args: &StormArgs, socket: &Path) -> Result<()> {
    let mut options = LoadOptions::new(socket).workload("write").iodepth(8);
    options.block_bytes = 128 << 10;
    options.limit = Limit::Ops(args.size / options.block_bytes);
    succeed(run(&options)?).map(drop)
}

fn load(args: &StormArgs, socket: &Path, storm: Option<u16>) -> Result<LoadReport> {
    let mut options = LoadOptions::new(socket).workload("randwrite").iodepth(32);
    options.client = options.client.queues(if storm.is_some() { 2 } else { 1 });
    options.storm = storm;
    // Writes stay in the lower half without discards, too.
    options.span_bytes = if storm.is_some() { args.size } else { args.size / 2 };
    options.threads = 1;
    options.cpus = vec![args.client_cpu];
    options.completion = Completion::Eventfd;
    options.limit = Limit::Time { ramp: RAMP, runtime: Duration::from_secs_f64(args.runtime) };
    succeed(run(&options)?)
}

fn succeed(report: LoadReport) -> Result<LoadReport> {
    let first = report.first_error.as_deref().unwrap_or_default();
    ensure!(report.errors == 0, "{} requests failed, the first: {first}", report.errors);
    Ok(report)
}
