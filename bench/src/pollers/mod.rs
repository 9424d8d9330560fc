//! `flowstone-bench pollers`: benefits and costs of sharing threads between queues of several
//! disks.
//!
//! Each part starts its servers once, drives one after the other in each round, and begins the next
//! round with another one. One client thread drives all disks of a server.

pub mod budget;
pub mod busy;
pub mod connected;
pub mod cost;
pub mod depth;
pub mod equal;
pub mod forms;
pub mod many;
pub mod moves;
pub mod share;
pub mod stages;

use anyhow::{Result, ensure};
use clap::Args;
use flowstone_experiment::{CPU_US, Experiment, IOPS, P50_US, P99_US, figures};
use flowstone_testkit::load::LoadOptions;

use crate::disks::Servers;
use crate::idle::CPU_PERCENT;
use crate::place::{Place, timed};
use crate::point::selected;
use crate::run::Run;

/// Options.
#[derive(Clone, Debug, Args)]
pub struct PollersArgs {
    /// Measured seconds for each server, point and round.
    #[arg(long, default_value_t = 0.5)]
    runtime: f64,
    /// Only parts whose name contains this (share, equal, forms, stages, cost, connected, moves,
    /// budget, busy, depth, many); may be given several times.
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    #[command(flatten)]
    run: Run,
    #[command(flatten)]
    place: Place,
}

/// Measures a part, and returns how that was done.
type Measure = fn(&PollersArgs, &mut Experiment) -> Result<String>;
type Render = fn(&Experiment) -> String;

const PARTS: [(&str, Measure, Render); 11] = [
    ("share", share::measure, share::render),
    ("equal", equal::measure, equal::render),
    ("forms", forms::measure, forms::render),
    ("stages", stages::measure, stages::render),
    ("cost", cost::measure, cost::render),
    ("connected", connected::measure, connected::render),
    ("moves", moves::measure, moves::render),
    ("budget", budget::measure, budget::render),
    ("busy", busy::measure, busy::render),
    ("depth", depth::measure, depth::render),
    ("many", many::measure, many::render),
];

/// Carries out the subcommand.
pub fn pollers(args: &PollersArgs) -> Result<()> {
    let chosen = PARTS.iter().filter(|(name, ..)| selected(name, &args.only));
    ensure!(chosen.clone().count() > 0, "no part matches {:?}", args.only);
    ensure!(args.run.rounds > 0, "no rounds");
    let mut experiment = args.run.experiment(&format!("pollers {}", args.runtime))?;
    for (_, measure, render) in chosen {
        let about = measure(args, &mut experiment)?;
        experiment.describe(&about);
        args.run.publish(render, &experiment)?;
    }
    Ok(())
}

/// Drives each server once in each round.
fn interleave(
    args: &PollersArgs,
    point: &str,
    servers: &Servers,
    experiment: &mut Experiment,
    load: impl Fn(LoadOptions) -> LoadOptions,
) -> Result<()> {
    let servers: Vec<_> = servers.0.iter().map(|server| (&server.name, server)).collect();
    experiment.run(args.run.rounds, &[(point, ())], &servers, |(), server| {
        let report = server.drive(|socket| {
            let limit = timed(args.runtime);
            load(LoadOptions { limit, ..args.place.load(socket, "randread", 1) })
        })?;
        let mut figures = figures(&report);
        let cpu_us = report.server_us_per_io.unwrap_or(f64::NAN);
        figures.push((CPU_PERCENT, cpu_us * report.iops / 1e4));
        Ok(figures)
    })
}

/// Returns the cells that most parts show: rate, ratio of the rate to another server's, CPU time
/// and latencies.
fn cells(experiment: &Experiment, point: &str, server: &str, to: &str) -> [String; 5] {
    let own = experiment.at(point, server);
    [
        own.count(IOPS),
        own.ratio(experiment.at(point, to), IOPS),
        own.cell(CPU_US, 2),
        own.cell(P50_US, 1),
        own.cell(P99_US, 1),
    ]
}
