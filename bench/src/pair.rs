//! `flowstone-bench pair`: compares two binaries of Flowstone, to detect a regression.
//!
//! A round starts both, each with an image of its own, and drives one after the other at every
//! point; the one without a client sleeps. The next round begins with the other one, as new
//! processes with new images: their placement in memory and on the disk alone makes up to 5 % of
//! difference. The result is the ratio within a round, since other activity of the machine affects
//! both, and of these ratios the median, with its 95 % confidence interval.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use flowstone_experiment::{CPU_US, Experiment, Figures, IOPS, figures, table, turns};
use flowstone_testkit::Daemon;
use flowstone_testkit::load::{Completion, LoadOptions};
use tempfile::tempdir_in;

use crate::place::{TMPFS, create, drive, pass, serve, stop, timed};
use crate::point::selected;
use crate::run::{Base, defaults};

/// Options.
#[derive(Clone, Debug, Args)]
#[command(mut_args(defaults(&[("rounds", "15")])))]
#[command(mut_arg("flowstone", |after| after.long("after").help(AFTER)))]
pub struct PairArgs {
    /// The flowstone binary from before the change.
    #[arg(long)]
    before: PathBuf,
    /// Only points whose name contains this; may be given several times.
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    #[command(flatten)]
    base: Base,
}

const AFTER: &str =
    "The flowstone binary from after the change [default: FLOWSTONE_BIN, or beside this program]";
const QUEUES_MAX: usize = 4;

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
        let image = |format: &str| {
            let suffix = if format == "log" { "flow" } else { format };
            let image = dir.join(format!("disk.{suffix}"));
            create::<&str>(program, &image, format, args.base.size, &[]).map(|()| image)
        };
        let command = serve(program, &socket).args(["--queues", &QUEUES_MAX.to_string()]);
        let command = match self {
            Self::Null => command.args(["--backend", "null:8G"]),
            Self::Tmpfs => command.args(["--direct", "off"]).arg(image("raw")?),
            Self::Image(format) => command.arg(image(format)?),
        };
        let daemon = args.base.place.start(command, &socket)?;
        if self != Self::Null {
            drive(&pass(LoadOptions::new(&socket), "write", args.base.size))?;
        }
        Ok(daemon)
    }
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

    fn drive(&self, socket: &Path, daemon: &Daemon, args: &PairArgs) -> Result<Figures> {
        let mut load = args.base.place.load(socket, self.rw, self.iodepth);
        load.client = load.client.queues(self.queues);
        let in_memory = matches!(self.disk, Disk::Null | Disk::Tmpfs);
        load.completion = if in_memory { Completion::Poll } else { Completion::Eventfd };
        load.limit = timed(args.base.runtime);
        load.flush_every = self.flush_every;
        load.server_pid = Some(daemon.pid());
        Ok(figures(&drive(&load)?))
    }
}

/// Carries out the subcommand.
pub fn pair(args: &PairArgs) -> Result<()> {
    let mut experiment = args.base.experiment("pair")?;
    let programs = [("before", args.before.clone()), ("after", args.base.place.program()?)];
    let chosen = |load: &Load| selected(&load.name(), &args.only);
    for disk in Disk::ALL {
        let loads: Vec<Load> = Load::of(disk).into_iter().filter(chosen).collect();
        for round in 0..if loads.is_empty() { 0 } else { args.base.run.rounds } {
            let programs = turns(round, &programs).collect();
            one_round(disk, &loads, programs, args, &mut experiment).context(disk.name())?;
            eprintln!("{}: round {} of {}", disk.name(), round + 1, args.base.run.rounds);
        }
        args.base.run.save(&experiment)?;
    }
    args.base.run.publish(render, &experiment)
}

fn render(experiment: &Experiment) -> String {
    let titles = "4 KiB | before IOPS | after IOPS | ratio (95 %) | CPU per I/O, ratio (95 %)";
    table(titles, experiment.points().into_iter().map(|load| row(load, experiment)))
}

/// Starts the programs with new images, and drives each at all points, in this order.
fn one_round(
    disk: Disk,
    loads: &[Load],
    programs: Vec<&(&'static str, PathBuf)>,
    args: &PairArgs,
    experiment: &mut Experiment,
) -> Result<()> {
    let place = if disk == Disk::Tmpfs { Path::new(TMPFS) } else { &args.base.run.dir };
    let serve = |named: &(&'static str, PathBuf)| {
        let dir = tempdir_in(place)?;
        Ok((named.0, disk.serve(&named.1, dir.path(), args)?, dir))
    };
    let servers = programs.into_iter().map(serve).collect::<Result<Vec<_>>>()?;
    for load in loads {
        for (name, daemon, dir) in &servers {
            // This one's flushes must not wait for the writes of the one before.
            rustix::fs::syncfs(std::fs::File::open(dir.path())?)?;
            let figures = load.drive(&dir.path().join("vhost.sock"), daemon, args);
            experiment.add(&load.name(), name, &figures.with_context(|| load.name())?);
        }
    }
    servers.into_iter().try_for_each(|(_, mut daemon, _dir)| stop(&mut daemon))
}

fn row(load: &str, experiment: &Experiment) -> Vec<String> {
    let [before, after] = ["before", "after"].map(|program| experiment.at(load, program));
    vec![
        load.to_owned(),
        before.cell(IOPS, 0),
        after.cell(IOPS, 0),
        after.ratio(before, IOPS),
        after.ratio(before, CPU_US),
    ]
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
