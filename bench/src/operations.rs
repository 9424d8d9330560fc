//! `flowstone-bench operations`: what it costs to run many disks in one daemon: start, metrics,
//! `stats`, disks that are added and removed.
//!
//! A quarter of the disks are log images, a quarter qcow2 images, the rest null. One more disk is
//! driven by a client, one more lies on a FUSE server that answers or stands still. The daemon has
//! one CPU, the client another one.

mod api;

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use flowstone_experiment::{Experiment, interval, table};
use flowstone_testkit::Daemon;
use flowstone_testkit::fuse::FuseHost;
use flowstone_testkit::load::CpuSample;
use flowstone_testkit::process::Ready;
use tempfile::{TempDir, tempdir_in};

use crate::idle::figure_of;
use crate::place::{Place, create, drive, serve, serve_all, stop, timed};
use crate::run::Run;
use api::Api;

/// Options.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("rounds", |rounds| rounds.default_value("9")))]
pub struct OperationsArgs {
    /// Measured seconds of the client's load, for each round with and without a scraper.
    #[arg(long, default_value_t = 4.0)]
    runtime: f64,
    #[command(flatten)]
    run: Run,
    #[command(flatten)]
    place: Place,
}

/// Disks of the daemon.
const DISKS: usize = 200;
const IMAGE_BYTES: u64 = 64 << 20;
/// Threads that read the disks' layouts have ended by then.
const SETTLE: Duration = Duration::from_secs(3);
/// Between two scrapes.
const SCRAPE_EACH: Duration = Duration::from_secs(1);
/// Between two disks that are added and removed.
const CHANGE_EACH: Duration = Duration::from_millis(100);
/// Disks that are added and removed while memory is watched.
const CHANGES: usize = 500;
/// Least number of rounds of what takes little time.
const ROUNDS_MIN: usize = 20;

/// The measured contender of a point, and that to which its ratio is shown, if any.
const OURS: &str = "measured";
const TO: &str = "beside";
const VALUE: &str = "value";

/// Carries out the subcommand.
pub fn operations(args: &OperationsArgs) -> Result<()> {
    let mut experiment = args.run.experiment(&format!("operations {}", args.runtime))?;
    let bench = Bench { args, program: args.place.program()?, folder: tempdir_in(&args.run.dir)? };
    experiment.describe(&format!("{} s of the client's load a round.", args.runtime));
    bench.starts(&mut experiment)?;
    bench.reports(&mut experiment)?;
    bench.changes(&mut experiment)?;
    args.run.publish(render, &experiment)
}

/// Renders the table.
pub fn render(experiment: &Experiment) -> String {
    let row = |point: &str| {
        let [ours, to] = [OURS, TO].map(|contender| experiment.at(point, contender));
        let ratios = ours.ratios(to, VALUE);
        let figures = if ratios.is_empty() { ours.all(VALUE) } else { ratios };
        vec![point.to_owned(), interval(figures)]
    };
    table("point | median (95 %)", experiment.points().into_iter().map(row))
}

fn add(experiment: &mut Experiment, point: &str, value: f64) {
    experiment.add(point, OURS, &[(VALUE, value)]);
}

/// Adds a value that is shown as its ratio to another one.
fn add_to(experiment: &mut Experiment, point: &str, value: f64, to: f64) {
    add(experiment, point, value);
    experiment.add(point, TO, &[(VALUE, to)]);
}

struct Bench<'a> {
    args: &'a OperationsArgs,
    program: PathBuf,
    folder: TempDir,
}

impl Bench<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn api(&self) -> Api {
        Api(self.path("control.sock"))
    }

    /// Serves these disks, each a name and a line of its table.
    fn serve(&self, disks: &[(String, String)]) -> Result<Daemon> {
        let keys = format!("control = {:?}", self.path("control.sock"));
        let command = serve_all(&self.program, self.folder.path(), &keys, disks)?;
        let daemon = command.cpus(&[self.args.place.server_cpu]).spawn()?;
        api::wait_for(&self.path("control.sock"))?;
        Ok(daemon)
    }

    /// Makes an image, and returns the line for it.
    fn image(&self, name: &str, format: &str) -> Result<String> {
        // Its name tells the daemon the format.
        let suffix = if format == "log" { "flow" } else { format };
        let image = self.path(&format!("{name}.{suffix}"));
        create::<&str>(&self.program, &image, format, IMAGE_BYTES, &[])?;
        Ok(format!("image = {image:?}"))
    }

    fn null_disks(count: usize) -> Vec<(String, String)> {
        let null = |index| (format!("null{index}"), "backend = \"null:1G\"".to_owned());
        (0..count).map(null).collect()
    }

    fn mixed_disks(&self) -> Result<Vec<(String, String)>> {
        let mut disks = Vec::new();
        for index in 0..DISKS / 4 {
            for format in ["log", "qcow2"] {
                let name = format!("{format}{index}");
                disks.push((name.clone(), self.image(&name, format)?));
            }
        }
        disks.extend(Self::null_disks(DISKS - disks.len()));
        Ok(disks)
    }

    /// A daemon of null disks comes up.
    fn starts(&self, experiment: &mut Experiment) -> Result<()> {
        let disks = Self::null_disks(DISKS);
        let mut add = |what, value| add(experiment, &format!("{DISKS} null disks: {what}"), value);
        for _ in 0..self.args.run.rounds {
            let began = Instant::now();
            let mut daemon = self.serve(&disks)?;
            add("up, ms", milliseconds(began));
            thread::sleep(SETTLE);
            let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid()))?;
            add("threads", tasks.count() as f64);
            add("resident, MiB", figure_of(daemon.pid(), "status", "VmRSS:")? / 1024.0);
            stop(&mut daemon)?;
        }
        Ok(())
    }

    /// Metrics and `stats` of a daemon of mixed disks; a client beside them.
    fn reports(&self, experiment: &mut Experiment) -> Result<()> {
        let mut disks = self.mixed_disks()?;
        let (behind, hung) = (self.path("behind"), self.path("hung"));
        fs::create_dir(&behind)?;
        fs::create_dir(&hung)?;
        let host = FuseHost::mount(&hung, &behind).context("mount a FUSE server")?;
        disks.push(("hung".to_owned(), self.image("hung/disk", "raw")?));
        disks.push(("driven".to_owned(), "backend = \"null:8G\"".to_owned()));
        let mut daemon = self.serve(&disks)?;
        let of = |what: &str| format!("{} mixed disks: {what}", disks.len());
        for target in ["/metrics", "/v1/stats"] {
            self.report(&daemon, &of(target), target, experiment)?;
        }
        host.stop();
        for target in ["/metrics", "/v1/stats"] {
            let point = of(&format!("{target}, the server of one disk's file stands still"));
            self.report(&daemon, &point, target, experiment)?;
        }
        host.release();
        let driven =
            |what: &str| of(&format!("p99 of a null disk at QD1 beside {what}, to without"));
        let scrape = || self.api().get("/metrics").map(drop);
        self.beside(&driven("a scrape a second"), SCRAPE_EACH, scrape, experiment)?;
        self.image("changed", "raw")?;
        let change = || {
            self.api().add("changed", &self.path("changed.sock"), &self.path("changed.raw"))?;
            self.api().remove("changed")
        };
        let point = driven("ten disks a second added and removed");
        self.beside(&point, CHANGE_EACH, change, experiment)?;
        stop(&mut daemon)
    }

    fn report(
        &self,
        daemon: &Daemon,
        point: &str,
        target: &str,
        experiment: &mut Experiment,
    ) -> Result<()> {
        let mut add = |what, value| add(experiment, &format!("{point}: {what}"), value);
        // The first one has memory to get.
        self.api().get(target)?;
        for _ in 0..self.args.run.rounds.max(ROUNDS_MIN) {
            let (spent, began) = (CpuSample::take(daemon.pid())?, Instant::now());
            let length = self.api().get(target)?.len();
            let time = milliseconds(began);
            let spent = CpuSample::take(daemon.pid())?.since(&spent);
            add("CPU, ms", spent.as_secs_f64() * 1e3);
            add("time, ms", time);
            add("KiB", length as f64 / 1024.0);
        }
        Ok(())
    }

    /// The p99 of a client of one disk beside what an operator does, and without it.
    fn beside(
        &self,
        point: &str,
        each: Duration,
        act: impl Fn() -> Result<()> + Sync,
        experiment: &mut Experiment,
    ) -> Result<()> {
        for round in 0..self.args.run.rounds {
            experiment.turn(round, point, &[(TO, false), (OURS, true)], |acts| {
                let p99 = if *acts {
                    self.drive(each, &act)
                } else {
                    self.drive(Duration::from_millis(100), &|| Ok(()))
                };
                Ok(vec![(VALUE, p99?)])
            })?;
        }
        Ok(())
    }

    /// The 99th percentile of a client's latency, while something is done every so often.
    fn drive(&self, each: Duration, act: &(impl Fn() -> Result<()> + Sync)) -> Result<f64> {
        let mut load = self.args.place.load(&self.path("driven.sock"), "randread", 1);
        load.limit = timed(self.args.runtime);
        let over = AtomicBool::new(false);
        let report = thread::scope(|scope| {
            let actor = scope.spawn(|| -> Result<()> {
                while !over.load(Ordering::Relaxed) {
                    act()?;
                    thread::sleep(each);
                }
                Ok(())
            });
            let report = drive(&load);
            over.store(true, Ordering::Relaxed);
            actor.join().expect("nothing here panics")?;
            report
        })?;
        Ok(report.latency.p99_us)
    }

    /// Disks are added and removed beside one that stays.
    #[expect(clippy::disallowed_methods, reason = "the disk has no guest while it is synced")]
    fn changes(&self, experiment: &mut Experiment) -> Result<()> {
        self.image("alone", "raw")?;
        let (image, socket) = (self.path("alone.raw"), self.path("alone.sock"));
        let (api, file) = (self.api(), File::open(&image)?);
        let mut daemon = self.serve(&Self::null_disks(1))?;
        for _ in 0..self.args.run.rounds.max(ROUNDS_MIN) {
            let added = time(|| api.add("alone", &socket, &image))?;
            let synced = time(|| Ok(rustix::fs::fdatasync(&file)?))?;
            let removed = time(|| api.remove("alone"))?;
            let mut alone = None;
            let served = time(|| {
                let command = serve(&self.program, &socket).arg(&image);
                let command = command.cpus(&[self.args.place.server_cpu]);
                alone = Some(command.ready(Ready::Now).spawn()?);
                api::wait_for(&socket)
            })?;
            alone.as_mut().map_or(Ok(()), stop)?;
            add(experiment, "raw disk added, from the request to its socket, ms", added);
            add_to(experiment, "the same to a `serve` of its own", added, served);
            add(experiment, "raw disk removed, idle, ms", removed);
            add_to(experiment, "the same to an fdatasync of its image", removed, synced);
        }
        let point = format!("resident memory after {CHANGES} disks added and removed, MiB more");
        for _ in 0..self.args.run.rounds {
            let before = figure_of(daemon.pid(), "status", "VmRSS:")?;
            for _ in 0..CHANGES {
                api.add("alone", &socket, &image)?;
                api.remove("alone")?;
            }
            let grown = figure_of(daemon.pid(), "status", "VmRSS:")? - before;
            add(experiment, &point, grown / 1024.0);
        }
        stop(&mut daemon)
    }
}

fn time(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let began = Instant::now();
    work()?;
    Ok(milliseconds(began))
}

fn milliseconds(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}
