//! `flowstone-bench overlay`: reads through an empty overlay, as of a new virtual machine that
//! reads the system image it is based on.
//!
//! The base is a raw file in the page cache. Flowstone and qemu-storage-daemon serve the same
//! overlay, and Flowstone serves the base itself as well: the difference is the cost of the
//! overlay. All take turns within a round.

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
pub struct OverlayArgs {
    /// Rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Measured seconds.
    #[arg(long, default_value_t = 1.0)]
    runtime: f64,
    /// Size of the disks. They have to fit into memory.
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    size: u64,
    /// Directory of the images.
    #[arg(long, default_value = "target/bench-data")]
    dir: PathBuf,
    /// The flowstone binary [default: FLOWSTONE_BIN, or beside this program].
    #[arg(long)]
    flowstone: Option<PathBuf>,
    /// Another flowstone binary, to be measured beside it.
    #[arg(long)]
    before: Option<PathBuf>,
    /// CPU of the servers.
    #[arg(long, default_value_t = 0)]
    server_cpu: usize,
    /// CPU of the client.
    #[arg(long, default_value_t = 1)]
    client_cpu: usize,
}

/// The server and its image.
#[derive(Clone, Debug)]
enum Contender {
    Overlay(PathBuf, &'static str),
    Base(PathBuf),
    Qsd,
}

const DEPTHS: [u16; 2] = [1, 32];
const RAMP: Duration = Duration::from_millis(200);

/// Carries out the subcommand.
pub fn overlay(args: &OverlayArgs) -> Result<()> {
    std::fs::create_dir_all(&args.dir)?;
    let flowstone = args.flowstone.clone().map_or_else(flowstone_binary, Ok)?;
    let mut contenders = vec![
        Contender::Overlay(flowstone.clone(), "Flowstone, overlay"),
        Contender::Base(flowstone),
        Contender::Qsd,
    ];
    contenders.extend(args.before.clone().map(|it| Contender::Overlay(it, "before, overlay")));
    let images = Images::make(args)?;
    let mut rates = vec![[Vec::new(), Vec::new()]; contenders.len()];
    for round in 0..args.rounds {
        for turn in 0..contenders.len() {
            let index = (turn + round) % contenders.len();
            for (depth, rates) in DEPTHS.iter().zip(&mut rates[index]) {
                let contender = &contenders[index];
                let name = contender.name();
                let rate = contender.measure(args, &images, *depth).context(name)?;
                eprintln!("{}/{} {name:<24} QD{depth:<3} {rate:.0}/s", round + 1, args.rounds);
                rates.push(rate);
            }
        }
    }
    println!(
        "| 4 KiB random read | QD1 | QD32 | Flowstone's overlay is x times that |\n|---|---|---|---|"
    );
    let middle = |rates: &Vec<f64>| median(rates.clone()).unwrap_or(f64::NAN);
    for (contender, [one, many]) in contenders.iter().zip(&rates) {
        let ratios = [(&rates[0][0], one), (&rates[0][1], many)];
        let [one_ratio, many_ratio] = ratios.map(|(ours, theirs)| middle(ours) / middle(theirs));
        let (one, many) = (middle(one), middle(many));
        println!(
            "| {} | {one:.0} | {many:.0} | {one_ratio:.2} / {many_ratio:.2} |",
            contender.name()
        );
    }
    images.remove()
}

struct Images {
    base: PathBuf,
    overlay: PathBuf,
}

impl Images {
    fn make(args: &OverlayArgs) -> Result<Self> {
        let images =
            Self { base: args.dir.join("base.raw"), overlay: args.dir.join("overlay.qcow2") };
        let bytes = usize::try_from(args.size)?;
        // Written, and so in the page cache.
        std::fs::write(&images.base, vec![0x5a; bytes])?;
        let _ = std::fs::remove_file(&images.overlay);
        let mut command = Command::new("qemu-img");
        command.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b", "base.raw"]);
        let made = command.arg(&images.overlay).status().context("run qemu-img")?;
        ensure!(made.success(), "qemu-img failed");
        Ok(images)
    }

    fn remove(self) -> Result<()> {
        std::fs::remove_file(self.base)?;
        Ok(std::fs::remove_file(self.overlay)?)
    }
}

impl Contender {
    fn name(&self) -> &'static str {
        match self {
            Self::Overlay(_, name) => name,
            Self::Base(_) => "Flowstone, base as raw",
            Self::Qsd => "QSD, overlay",
        }
    }

    fn start(&self, args: &OverlayArgs, images: &Images, socket: &Path) -> Result<Daemon> {
        let _ = std::fs::remove_file(socket);
        let serve = |program: &Path, image: &Path| {
            DaemonCommand::new(program)
                .args(["serve", "--direct", "off", "--socket"])
                .arg(socket)
                .arg(image)
        };
        let command = match self {
            Self::Overlay(program, _) => serve(program, &images.overlay),
            Self::Base(program) => serve(program, &images.base),
            Self::Qsd => qsd::serve("qcow2", &images.overlay, socket, 1, true),
        };
        Ok(command.cpus(&[args.server_cpu]).spawn()?)
    }

    /// Returns requests per second.
    fn measure(&self, args: &OverlayArgs, images: &Images, depth: u16) -> Result<f64> {
        let socket = args.dir.join("overlay.sock");
        let mut daemon = self.start(args, images, &socket)?;
        let mut load = LoadOptions::new(&socket).workload("randread").iodepth(depth);
        (load.threads, load.cpus, load.completion) = (1, vec![args.client_cpu], Completion::Poll);
        load.limit = Limit::Time { ramp: RAMP, runtime: Duration::from_secs_f64(args.runtime) };
        let report = run(&load)?;
        ensure!(report.errors == 0, "{} requests failed", report.errors);
        // QSD has no shutdown to wait for; Flowstone's exit status is checked by tests.
        let _ = daemon.terminate(TERMINATE_TIMEOUT);
        Ok(report.iops)
    }
}
