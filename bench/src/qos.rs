//! `flowstone-bench qos`: accuracy of limits, the effect of a greedy neighbour on a disk, and the
//! overhead of limits that are not reached.
//!
//! The compared cases take turns within a round; reported are medians, and ratios to the first
//! case.

pub mod classes;
mod render;
pub mod vms;

pub use self::render::{limits, neighbours, overhead};

use std::path::{Path, PathBuf};
use std::thread::{self, ScopedJoinHandle};

use anyhow::{Context, Result, ensure};
use clap::Args;
use flowstone_experiment::{Experiment, Figures, figures};
use flowstone_testkit::Daemon;
use flowstone_testkit::load::{Completion, LoadOptions, LoadReport};
use serde_json::Value;
use tempfile::{TempDir, tempdir_in};

use crate::place::{TMPFS, drive, remove, serve_all, socket_of, stats, stop, timed};
use crate::point::selected;
use crate::raw_file::fill;
use crate::run::Base;

/// Options.
#[derive(Clone, Debug, Args)]
pub struct QosArgs {
    /// Only parts whose name contains this: limits, neighbours, vms, classes, overhead; may be
    /// given several times.
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    /// A binary without limits and weights to compare with.
    #[arg(long)]
    before: Option<PathBuf>,
    #[command(flatten)]
    base: Base,
}

/// Factor of rounds: differences of a percent need more.
const OVERHEAD_ROUNDS: usize = 3;
/// The control socket beside the sockets of the disks.
const CONTROL: &str = "control";
/// Queue depth of the greedy neighbour.
const HOG_DEPTH: u16 = 128;

/// The limits that are measured, with queues and depth, and requests per second.
const LIMITS: [(&str, usize, u16, f64); 5] = [
    ("iops=500", 1, 32, 500.0),
    ("iops=5000", 1, 1, 5000.0),
    ("iops=20000", 1, 32, 20_000.0),
    ("iops=20000", 4, 32, 20_000.0),
    ("bw=64M", 1, 32, 16_384.0),
];
/// Times over which a rate is measured, in milliseconds, and factors of the rounds.
const WINDOWS: [(&str, u64, usize); 2] = [("1 s", 1000, 1), ("100 ms", 100, 4)];
/// Deviation from the limit, as a part of it.
const OFF: &str = "off";
const HOG: &str = "hog_iops";
const MODEST: &str = "neighbour_iops";
const MODEST_P99: &str = "neighbour_p99_us";
/// Beginnings of the points' names.
const NEIGHBOURS: &str = "neighbours, ";
const OVERHEAD: &str = "overhead, ";

fn shape(limit: &str, queues: usize, depth: u16) -> String {
    format!("`{limit}`, {queues} x QD{depth}")
}

/// Carries out the subcommand.
pub fn qos(args: &QosArgs) -> Result<()> {
    let mut experiment = args.base.experiment("qos")?;
    let bench = Bench { args, program: args.base.place.program()? };
    let parts: [(&str, Part, Render); 5] = [
        ("limits", |bench, to| bench.limits(to), limits),
        ("neighbours", |bench, to| bench.neighbours(to), neighbours),
        ("vms", |bench, to| bench.vms(to), vms::render),
        ("classes", |bench, to| bench.classes(to), classes::render),
        ("overhead", |bench, to| bench.overhead(to), overhead),
    ];
    let chosen = parts.iter().filter(|(name, ..)| selected(name, &args.only));
    ensure!(chosen.clone().count() > 0, "no part matches {:?}", args.only);
    experiment.describe(&format!(
        "Daemon on CPU {}, all clients on CPU {}; disks of {} MiB, {} s a round.",
        args.base.place.server_cpu,
        args.base.place.client_cpu,
        args.base.size >> 20,
        args.base.runtime
    ));
    for (name, part, render) in chosen {
        part(&bench, &mut experiment).with_context(|| format!("part {name}"))?;
        args.base.run.publish(render, &experiment)?;
    }
    Ok(())
}

/// Measures one part.
type Part = fn(&Bench<'_>, &mut Experiment) -> Result<()>;
type Render = fn(&Experiment) -> String;

struct Bench<'a> {
    args: &'a QosArgs,
    program: PathBuf,
}

/// A daemon and the folder of its sockets: `NAME.sock` for each disk.
struct Served {
    daemon: Daemon,
    dir: TempDir,
}

impl Served {
    fn socket(&self, name: &str) -> PathBuf {
        socket_of(self.dir.path(), name)
    }

    fn stats(&self, program: &Path) -> Result<Value> {
        stats(program, &self.dir.path().join(CONTROL))
    }

    fn end(mut self) -> Result<()> {
        stop(&mut self.daemon)
    }
}

impl Bench<'_> {
    fn serve<Name: AsRef<str>>(
        &self,
        program: &Path,
        dir: TempDir,
        disks: &[(Name, String)],
    ) -> Result<Served> {
        let keys = format!("control = {:?}", std::path::absolute(dir.path().join(CONTROL))?);
        let command = serve_all(program, dir.path(), &keys, disks)?;
        Ok(Served { daemon: command.cpus(&[self.args.base.place.server_cpu]).spawn()?, dir })
    }

    fn load(&self, socket: &Path, rw: &str, depth: u16, queues: usize) -> LoadOptions {
        let mut options = self.args.base.place.load(socket, rw, depth);
        options.client = options.client.queues(queues);
        options.completion = Completion::Eventfd;
        options.limit = timed(self.args.base.runtime);
        options
    }

    /// Measures the largest deviation of the rate from the limit, over a second and over 100 ms.
    fn limits(&self, experiment: &mut Experiment) -> Result<()> {
        for (limit, queues, depth, wanted) in LIMITS {
            let shape = shape(limit, queues, depth);
            let dir = tempdir_in(TMPFS)?;
            let image = dir.path().join("disk.raw");
            std::fs::File::create(&image)?.set_len(256 << 20)?;
            let keys = format!("image = {image:?}\nlimit = \"{limit}\"");
            let served = self.serve(&self.program, dir, &[("disk", keys)])?;
            for (window, window_ms, rounds) in WINDOWS {
                for _ in 0..rounds * self.args.base.run.rounds {
                    let mut load = self.load(&served.socket("disk"), "randwrite", depth, queues);
                    load.limit = timed(window_ms as f64 / 1e3);
                    let off = drive(&load)?.iops / wanted - 1.0;
                    experiment.add(&shape, window, &[(OFF, off)]);
                }
            }
            served.end()?;
        }
        Ok(())
    }

    /// Measures a disk at depth one beside one at depth 128, on one device.
    fn neighbours(&self, experiment: &mut Experiment) -> Result<()> {
        let cases = self.cases();
        let points = ["randread", "randwrite"].map(|rw| (format!("{NEIGHBOURS}{rw}"), rw));
        for point in points {
            experiment.run(self.args.base.run.rounds, &[point], &cases, |rw, case| {
                self.beside(case, rw)
            })?;
        }
        ["hog", "modest"].into_iter().try_for_each(|name| remove(&self.image(name)?))
    }

    fn cases(&self) -> Vec<(&'static str, Case)> {
        let case = |name, program: &PathBuf, together, hog_keys, modest_keys| {
            let program = program.clone();
            (name, Case { program, together, hog_keys, modest_keys })
        };
        let ours = &self.program;
        let mut cases = vec![case("alone", ours, false, "", "")];
        if let Some(before) = &self.args.before {
            cases.push(case("together, without weights", before, true, "", ""));
        }
        cases.push(case("together, equal weights", ours, true, "", ""));
        cases.push(case("together, weights 1 : 100", ours, true, "weight = 1", "weight = 100"));
        cases.push(case("together, hog `iops=5000`", ours, true, "limit = \"iops=5000\"", ""));
        cases
    }

    fn beside(&self, case: &Case, rw: &str) -> Result<Figures> {
        let keys = |name: &str, more: &str| -> Result<String> {
            let image = std::path::absolute(self.image(name)?)?;
            Ok(format!("image = {image:?}\ndirect = \"on\"\n{more}"))
        };
        let dir = tempdir_in(&self.args.base.run.dir)?;
        let disks =
            [("hog", keys("hog", case.hog_keys)?), ("modest", keys("modest", case.modest_keys)?)];
        let served = self.serve(&case.program, dir, &disks)?;
        let loads = [("hog", HOG_DEPTH), ("modest", 1)]
            .map(|(name, depth)| self.load(&served.socket(name), rw, depth, 1));
        let reports = if case.together {
            together(&loads)?
        } else {
            loads.iter().map(drive).collect::<Result<_>>()?
        };
        served.end()?;
        Ok(vec![
            (HOG, reports[0].iops),
            (MODEST, reports[1].iops),
            (MODEST_P99, reports[1].latency.p99_us),
        ])
    }

    /// Returns an image that has been written in full.
    fn image(&self, name: &str) -> Result<PathBuf> {
        fill(self.args.base.run.dir.join(format!("qos-{name}.raw")), self.args.base.size)
    }

    /// Measures unlimited requests with and without the stage of limits.
    fn overhead(&self, experiment: &mut Experiment) -> Result<()> {
        let never = "limit = \"iops=1000000000,bw=1024T\"";
        let mut servers = vec![("no limit", (&self.program, ""))];
        servers.push(("a limit that is not reached", (&self.program, never)));
        if let Some(before) = &self.args.before {
            servers.insert(0, ("without the stage", (before, "")));
        }
        for depth in [1, 32] {
            let rounds = OVERHEAD_ROUNDS * self.args.base.run.rounds;
            let point = [(format!("{OVERHEAD}QD{depth}"), depth)];
            experiment.run(rounds, &point, &servers, |depth, (program, keys)| {
                let keys = format!("backend = \"null:8G\"\n{keys}");
                let dir = tempdir_in(&self.args.base.run.dir)?;
                let served = self.serve(program, dir, &[("disk", keys)])?;
                let mut load = self.load(&served.socket("disk"), "randread", *depth, 1);
                load.completion = Completion::Poll;
                load.limit = timed(self.args.base.runtime / 2.0);
                let report = drive(&load)?;
                served.end()?;
                Ok(figures(&report))
            })?;
        }
        Ok(())
    }
}

/// Runs all loads at once.
fn together(loads: &[LoadOptions]) -> Result<Vec<LoadReport>> {
    thread::scope(|scope| {
        let running: Vec<_> = loads.iter().map(|load| scope.spawn(|| drive(load))).collect();
        let wait = |load: ScopedJoinHandle<'_, _>| load.join().expect("a load returns its errors");
        // All of them end before an error is returned.
        running.into_iter().map(wait).collect::<Vec<_>>().into_iter().collect()
    })
}

/// A case: which disks run together, and their limits.
struct Case {
    program: PathBuf,
    together: bool,
    hog_keys: &'static str,
    modest_keys: &'static str,
}
