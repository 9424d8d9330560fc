//! `flowstone-bench record`: the cost of a recording, as an operator pays it who records a busy
//! disk.
//!
//! A null disk shows the CPU time that each request takes, a raw file on tmpfs the effect on a
//! guest's rate. The recorder shares the CPU of the client, which polls.

use std::path::Path;

use anyhow::{Result, ensure};
use clap::Args;
use flowstone_experiment::command::number;
use flowstone_experiment::{CPU_US, Experiment, Figures, IOPS, figures, table};
use flowstone_testkit::load::LoadOptions;
use flowstone_testkit::process::{Ready, TERMINATE_TIMEOUT};
use flowstone_testkit::{Daemon, DaemonCommand};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::tempdir_in;

use crate::place::{Place, TMPFS, drive, pass, serve, stop, timed};
use crate::run::Run;

/// Options.
#[derive(Clone, Debug, Args)]
pub struct RecordArgs {
    /// Measured seconds per point.
    #[arg(long, default_value_t = 1.0)]
    runtime: f64,
    #[command(flatten)]
    run: Run,
    #[command(flatten)]
    place: Place,
}

/// A disk, and the queue depth of its load.
const POINTS: [(&str, (&str, u16)); 4] = [
    ("null, QD1", ("null", 1)),
    ("null, QD32", ("null", 32)),
    ("raw on tmpfs, QD1", ("tmpfs", 1)),
    ("raw on tmpfs, QD32", ("tmpfs", 32)),
];
const PLAIN: &str = "not recorded";
const RECORDED: &str = "recorded";
const BYTES: u64 = 256 << 20;
/// Requests that a recording has lost, in percent.
const LOST: &str = "lost %";

/// Carries out the subcommand.
pub fn record(args: &RecordArgs) -> Result<()> {
    let mut experiment = args.run.experiment(&format!("record {}", args.runtime))?;
    let contenders = [(PLAIN, false), (RECORDED, true)];
    experiment.run(args.run.rounds, &POINTS, &contenders, |point, is_recorded| {
        measure(args, *point, *is_recorded)
    })?;
    experiment.describe(&format!(
        "4 KiB random reads, {} s a round, in turn with and without `flowstone record` on the CPU \
         of the client, which polls.",
        args.runtime
    ));
    args.run.publish(render, &experiment)
}

/// Renders the table.
pub fn render(experiment: &Experiment) -> String {
    let rows = POINTS.iter().map(|(point, _)| row(point, experiment));
    let titles = "4 KiB random reads | rate, recorded to not (95 %) | us of the daemon's CPU per \
                  request, not recorded | recorded | lost, %";
    table(titles, rows)
}

fn row(point: &str, experiment: &Experiment) -> Vec<String> {
    let [plain, recorded] = [PLAIN, RECORDED].map(|name| experiment.at(point, name));
    vec![
        point.to_owned(),
        recorded.ratio(plain, IOPS),
        plain.spread(CPU_US, 3),
        recorded.spread(CPU_US, 3),
        recorded.cell(LOST, 2),
    ]
}

fn measure(args: &RecordArgs, (disk, depth): (&str, u16), is_recorded: bool) -> Result<Figures> {
    let folder = tempdir_in(TMPFS)?;
    let at = |name: &str| folder.path().join(name);
    let (socket, control) = (at("vhost.sock"), at("control.sock"));
    let command = serve(&args.place.program()?, &socket).args(["--name", "disk", "--control"]);
    let command = command.arg(&control);
    let mut daemon = if disk == "null" {
        args.place.start(command.args(["--backend", "null:8G"]), &socket)?
    } else {
        args.place.create::<&str>(&at("disk.raw"), "raw", BYTES, &[])?;
        let command = command.args(["--direct", "off"]).arg(at("disk.raw"));
        let daemon = args.place.start(command, &socket)?;
        drive(&pass(LoadOptions::new(&socket), "write", BYTES))?;
        daemon
    };
    let recorder = is_recorded.then(|| recorder(args, &control, &at("trace.zst"))).transpose()?;
    let mut load = args.place.load(&socket, "randread", depth);
    load.limit = timed(args.runtime);
    load.server_pid = Some(daemon.pid());
    let mut figures = figures(&drive(&load)?);
    if let Some(recorder) = recorder {
        figures.push((LOST, lost(recorder)?));
    }
    stop(&mut daemon)?;
    Ok(figures)
}

fn recorder(args: &RecordArgs, control: &Path, trace: &Path) -> Result<Daemon> {
    let command = DaemonCommand::new(args.place.program()?).args(["record", "--json", "disk"]);
    let command = command.arg("--control").arg(control).arg("--output").arg(trace);
    let command = command.cpus(&[args.place.client_cpu]);
    Ok(command.ready(Ready::Sockets(vec![trace.to_owned()])).spawn()?)
}

/// Ends a recorder. Returns the share of the requests that it lost.
fn lost(mut recorder: Daemon) -> Result<f64> {
    recorder.signal(Signal::INT)?;
    let ended = recorder.wait(TERMINATE_TIMEOUT)?;
    ensure!(ended.success(), "the recorder ended with {ended}: {}", recorder.stderr());
    let totals: Value = serde_json::from_str(&recorder.stdout())?;
    let (requests, lost) = (number(&totals, "requests")?, number(&totals, "lost")?);
    Ok(100.0 * lost / (requests + lost))
}
