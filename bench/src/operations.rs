//! `flowstone-bench operations`: what it costs to run many disks in one daemon: start, metrics,
//! `stats`, disks that are added and removed.
//!
//! A quarter of the disks are log images, a quarter qcow2 images, the rest null. One more disk is
//! driven by a client, one more lies on a FUSE server that answers or stands still. The daemon has
//! one CPU, the client another one.

mod api;

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use flowstone_testkit::fuse::FuseHost;
use flowstone_testkit::load::{Completion, CpuSample, Limit, LoadOptions, run};
use flowstone_testkit::process::{Ready, TERMINATE_TIMEOUT, flowstone_binary};
use flowstone_testkit::{Daemon, DaemonCommand};
use tempfile::{TempDir, tempdir_in};

use crate::document;
use crate::idle::status_kib;
use crate::sample::interval;
use api::Api;

/// Options.
#[derive(Clone, Debug, Args)]
pub struct OperationsArgs {
    /// Disks of the daemon.
    #[arg(long, default_value_t = 200)]
    disks: usize,
    /// Rounds.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Measured seconds of the client's load, for each round with and without a scraper.
    #[arg(long, default_value_t = 4.0)]
    runtime: f64,
    /// Directory of the images.
    #[arg(long, default_value = "target/bench-data")]
    dir: PathBuf,
    /// The flowstone binary [default: FLOWSTONE_BIN, or beside this program].
    #[arg(long, value_name = "FILE")]
    flowstone: Option<PathBuf>,
    /// Rewrite the table between the operations markers of this file.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// CPU of the daemon.
    #[arg(long, default_value_t = 0)]
    server_cpu: usize,
    /// CPU of the client.
    #[arg(long, default_value_t = 1)]
    client_cpu: usize,
}

const IMAGE_SIZE: &str = "64M";
const RAMP: Duration = Duration::from_millis(200);
/// Between two scrapes.
const SCRAPE_EACH: Duration = Duration::from_secs(1);
/// Between two disks that are added and removed.
const CHANGE_EACH: Duration = Duration::from_millis(100);
/// Disks that are added and removed while memory is watched.
const CHANGES: usize = 500;

/// Carries out the subcommand.
pub fn operations(args: &OperationsArgs) -> Result<()> {
    fs::create_dir_all(&args.dir).with_context(|| format!("make {}", args.dir.display()))?;
    let bench = Bench {
        args,
        program: args.flowstone.clone().map_or_else(flowstone_binary, Ok)?,
        folder: tempdir_in(&args.dir)?,
    };
    let mut rows = bench.starts()?;
    rows.extend(bench.reports()?);
    rows.extend(bench.changes()?);
    let table =
        rows.iter().fold("| point | median (95 %) |\n|---|---|\n".to_owned(), |table, row| {
            table + &format!("| {} | {} |\n", row.0, row.1)
        });
    print!("{table}");
    args.markdown.as_ref().map_or(Ok(()), |path| document::update(path, "operations", &table))
}

/// A point, and what was measured of it.
type Row = (String, String);

fn row(point: impl Into<String>, figures: Vec<f64>) -> Row {
    (point.into(), interval(figures))
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
        let mut text = format!("control = {:?}\n", self.path("control.sock"));
        for (name, line) in disks {
            let socket = self.path(&format!("{name}.sock"));
            text += &format!("[[disk]]\nname = {name:?}\nsocket = {socket:?}\n{line}\n");
        }
        let file = self.path("flowstone.toml");
        fs::write(&file, text)?;
        let command = DaemonCommand::new(&self.program).cpus(&[self.args.server_cpu]);
        let command = command.args(["serve", "--config"]).arg(file);
        Ok(command.ready(Ready::Listening(disks.len())).spawn()?)
    }

    /// Makes an image, and returns its path.
    fn image(&self, name: &str, format: &str) -> Result<PathBuf> {
        let suffix = if format == "log" { "flow" } else { format };
        let image = self.path(&format!("{name}.{suffix}"));
        let mut command = Command::new(&self.program);
        command.args(["create", "--size", IMAGE_SIZE]).arg(&image);
        let made = command.output().with_context(|| format!("run {}", self.program.display()))?;
        ensure!(made.status.success(), "create: {}", String::from_utf8_lossy(&made.stderr));
        Ok(image)
    }

    fn null_disks(count: usize) -> Vec<(String, String)> {
        let null = |index| (format!("null{index}"), "backend = \"null:1G\"".to_owned());
        (0..count).map(null).collect()
    }

    fn mixed_disks(&self) -> Result<Vec<(String, String)>> {
        let mut disks = Vec::new();
        for index in 0..self.args.disks / 4 {
            for format in ["log", "qcow2"] {
                let name = format!("{format}{index}");
                disks.push((name.clone(), format!("image = {:?}", self.image(&name, format)?)));
            }
        }
        disks.extend(Self::null_disks(self.args.disks - disks.len()));
        Ok(disks)
    }

    /// A daemon of null disks comes up.
    fn starts(&self) -> Result<Vec<Row>> {
        let disks = Self::null_disks(self.args.disks);
        let [mut up, mut threads, mut resident] = [const { Vec::new() }; 3];
        for round in 0..self.args.rounds {
            let began = Instant::now();
            let daemon = self.serve(&disks)?;
            up.push(milliseconds(began));
            threads.push(fs::read_dir(format!("/proc/{}/task", daemon.pid()))?.count() as f64);
            resident.push(status_kib(daemon.pid(), "VmRSS:")? / 1024.0);
            end(daemon)?;
            eprintln!("start: round {} of {}", round + 1, self.args.rounds);
        }
        let of = |what: &str| format!("{} null disks: {what}", disks.len());
        Ok(vec![
            row(of("up, ms"), up),
            row(of("threads"), threads),
            row(of("resident, MiB"), resident),
        ])
    }

    /// Metrics and `stats` of a daemon of mixed disks; a client beside them.
    fn reports(&self) -> Result<Vec<Row>> {
        let mut disks = self.mixed_disks()?;
        let (behind, hung) = (self.path("behind"), self.path("hung"));
        fs::create_dir(&behind)?;
        fs::create_dir(&hung)?;
        let host = FuseHost::mount(&hung, &behind).context("mount a FUSE server")?;
        let image = self.image("hung/disk", "raw")?;
        disks.push(("hung".to_owned(), format!("image = {image:?}")));
        disks.push(("driven".to_owned(), "backend = \"null:8G\"".to_owned()));
        let daemon = self.serve(&disks)?;
        let of = |what: &str| format!("{} mixed disks: {what}", disks.len());
        let mut rows = Vec::new();
        for target in ["/metrics", "/v1/stats"] {
            rows.extend(self.report(&daemon, &of(target), target)?);
        }
        host.stop();
        for target in ["/metrics", "/v1/stats"] {
            let point = of(&format!("{target}, the server of one disk's file stands still"));
            rows.extend(self.report(&daemon, &point, target)?);
        }
        host.release();
        let driven =
            |what: &str| of(&format!("p99 of a null disk at QD1 beside {what}, to without"));
        let scrape = || self.api().get("/metrics").map(drop);
        rows.push(self.beside(&driven("a scrape a second"), SCRAPE_EACH, scrape)?);
        let image = self.image("changed", "raw")?;
        let change = || {
            self.api().add("changed", &self.path("changed.sock"), &image)?;
            self.api().remove("changed")
        };
        let point = driven("ten disks a second added and removed");
        rows.push(self.beside(&point, CHANGE_EACH, change)?);
        end(daemon)?;
        Ok(rows)
    }

    fn report(&self, daemon: &Daemon, point: &str, target: &str) -> Result<Vec<Row>> {
        let [mut cpu, mut time, mut bytes] = [const { Vec::new() }; 3];
        // The first one has memory to get.
        self.api().get(target)?;
        for _ in 0..self.args.rounds.max(20) {
            let (spent, began) = (CpuSample::take(daemon.pid())?, Instant::now());
            let length = self.api().get(target)?.len();
            time.push(milliseconds(began));
            cpu.push(CpuSample::take(daemon.pid())?.since(&spent).cpu_ns as f64 / 1e6);
            bytes.push(length as f64 / 1024.0);
        }
        Ok(vec![
            row(format!("{point}: CPU, ms"), cpu),
            row(format!("{point}: time, ms"), time),
            row(format!("{point}: KiB"), bytes),
        ])
    }

    /// The p99 of a client of one disk beside what an operator does, to that without it.
    fn beside(
        &self,
        point: &str,
        each: Duration,
        act: impl Fn() -> Result<()> + Sync,
    ) -> Result<Row> {
        let mut ratios = Vec::new();
        for round in 0..self.args.rounds {
            let quiet = || self.drive(Duration::from_millis(100), &|| Ok(()));
            let busy = || self.drive(each, &act);
            let ratio = if round.is_multiple_of(2) {
                let quiet = quiet()?;
                busy()? / quiet
            } else {
                busy()? / quiet()?
            };
            eprintln!("{point}: round {} of {}: {ratio:.3}", round + 1, self.args.rounds);
            ratios.push(ratio);
        }
        Ok(row(point, ratios))
    }

    /// The 99th percentile of a client's latency, while something is done every so often.
    fn drive(&self, each: Duration, act: &(impl Fn() -> Result<()> + Sync)) -> Result<f64> {
        let mut load = LoadOptions::new(self.path("driven.sock")).workload("randread").iodepth(1);
        (load.threads, load.cpus) = (1, vec![self.args.client_cpu]);
        load.completion = Completion::Poll;
        let runtime = Duration::from_secs_f64(self.args.runtime);
        load.limit = Limit::Time { ramp: RAMP, runtime };
        let over = AtomicBool::new(false);
        let report = thread::scope(|scope| {
            let actor = scope.spawn(|| -> Result<()> {
                while !over.load(Ordering::Relaxed) {
                    act()?;
                    thread::sleep(each);
                }
                Ok(())
            });
            let report = run(&load);
            over.store(true, Ordering::Relaxed);
            actor.join().expect("nothing here panics")?;
            anyhow::Ok(report?)
        })?;
        ensure!(report.errors == 0, "{} requests failed", report.errors);
        Ok(report.latency.p99_us)
    }

    /// Disks are added and removed beside one that stays.
    fn changes(&self) -> Result<Vec<Row>> {
        let (image, socket) = (self.image("alone", "raw")?, self.path("alone.sock"));
        let (api, file) = (self.api(), File::open(&image)?);
        let daemon = self.serve(&Self::null_disks(1))?;
        let [mut added, mut to_serve, mut removed, mut to_sync] = [const { Vec::new() }; 4];
        for _ in 0..self.args.rounds.max(20) {
            let add = time(|| api.add("alone", &socket, &image))?;
            let sync = time(|| Ok(rustix::fs::fdatasync(&file)?))?;
            let remove = time(|| api.remove("alone"))?;
            let mut alone = None;
            let serve = time(|| {
                let command = DaemonCommand::new(&self.program).cpus(&[self.args.server_cpu]);
                let command = command.args(["serve", "--socket"]).arg(&socket).arg(&image);
                alone = Some(command.ready(Ready::Now).spawn()?);
                api::wait_for(&socket)
            })?;
            alone.map_or(Ok(()), end)?;
            added.push(add);
            to_serve.push(add / serve);
            removed.push(remove);
            to_sync.push(remove / sync);
        }
        let before = status_kib(daemon.pid(), "VmRSS:")?;
        for _ in 0..CHANGES {
            api.add("alone", &socket, &image)?;
            api.remove("alone")?;
        }
        let grown = (status_kib(daemon.pid(), "VmRSS:")? - before) / 1024.0;
        end(daemon)?;
        Ok(vec![
            row("raw disk added, from the request to its socket, ms", added),
            row("the same to a `serve` of its own", to_serve),
            row("raw disk removed, idle, ms", removed),
            row("the same to an fdatasync of its image", to_sync),
            (
                format!("resident memory after {CHANGES} disks added and removed, MiB"),
                format!("{grown:+.2}"),
            ),
        ])
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

fn end(mut daemon: Daemon) -> Result<()> {
    let end = daemon.terminate(TERMINATE_TIMEOUT)?;
    ensure!(end.success(), "flowstone ended with {end}: {}", daemon.stderr());
    Ok(())
}
