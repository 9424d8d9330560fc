//! `flowstone-bench pollers`: benefits and costs of sharing threads between queues of several
//! disks.
//!
//! Each part starts its servers once, drives one after the other in each round, and begins the next
//! round with another one. One client thread drives all disks of a server.

mod budget;
mod connected;
mod cost;
mod equal;
mod forms;
mod moves;
mod plot;
mod server;
mod share;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use flowstone_testkit::load::{Limit, LoadOptions, LoadReport};

use crate::document;
use crate::host::Host;
use crate::log_image::default_dir;
use crate::point::selected;
use crate::sample::median;
use server::Servers;

/// Options.
#[derive(Clone, Debug, Args)]
pub struct PollersArgs {
    /// Rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Measured seconds for each server, point and round.
    #[arg(long, default_value_t = 0.5)]
    runtime: f64,
    /// Only parts whose name contains this (share, equal, forms, cost, connected, moves, budget);
    /// may be given several times.
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    /// Rewrite the tables between the markers `pollers-PART` of this file.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Draw the rates of one to four disks into this file.
    #[arg(long, value_name = "SVG")]
    plot: Option<PathBuf>,
    /// Directory of the images that are not on tmpfs.
    #[arg(long, default_value_os_t = default_dir())]
    dir: PathBuf,
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

/// Time before measuring: queues adapt their polling time, and threads their placement.
const RAMP: Duration = Duration::from_millis(150);

type Part = fn(&PollersArgs) -> Result<String>;

const PARTS: [(&str, Part); 7] = [
    ("share", share::measure),
    ("equal", equal::measure),
    ("forms", forms::measure),
    ("cost", cost::measure),
    ("connected", connected::measure),
    ("moves", moves::measure),
    ("budget", budget::measure),
];

/// Carries out the subcommand.
pub fn pollers(args: &PollersArgs) -> Result<()> {
    let chosen = PARTS.iter().filter(|(name, _)| selected(name, &args.only));
    ensure!(chosen.clone().count() > 0, "no part matches {:?}", args.only);
    ensure!(args.rounds > 0, "no rounds");
    std::fs::create_dir_all(&args.dir)?;
    for (name, measure) in chosen {
        let host = Host::inspect(Vec::new(), &args.dir);
        let text = format!("{}\n\n{}", host.sentence(), measure(args)?);
        println!("{text}\n");
        if let Some(path) = &args.markdown {
            document::update(path, &format!("pollers-{name}"), &text)?;
        }
    }
    Ok(())
}

/// Reports by server, in the order of rounds.
type Rounds = Vec<Vec<LoadReport>>;

/// Drives each server once in each round.
fn interleave(
    args: &PollersArgs,
    what: &str,
    servers: &Servers,
    load: impl Fn(LoadOptions) -> LoadOptions,
) -> Result<Rounds> {
    let mut rounds: Rounds = servers.0.iter().map(|_| Vec::new()).collect();
    for round in 0..args.rounds {
        for turn in 0..servers.0.len() {
            let at = (turn + round) % servers.0.len();
            let server = &servers.0[at];
            let report = server.drive(|socket| load(timed(args, LoadOptions::new(socket))))?;
            let (name, iops) = (&server.name, report.iops);
            let cpu = report.server_us_per_io.unwrap_or(f64::NAN);
            eprintln!("{}/{} {what} {name}: {iops:.0} IOPS, {cpu:.2} us", round + 1, args.rounds);
            rounds[at].push(report);
        }
    }
    Ok(rounds)
}

fn timed(args: &PollersArgs, mut load: LoadOptions) -> LoadOptions {
    (load.threads, load.cpus) = (1, vec![args.client_cpu]);
    load.limit = Limit::Time { ramp: RAMP, runtime: Duration::from_secs_f64(args.runtime) };
    load
}

/// Returns the median, least and greatest value of a figure.
fn spread(reports: &[LoadReport], figure: impl Fn(&LoadReport) -> f64) -> [f64; 3] {
    let all: Vec<f64> = reports.iter().map(figure).collect();
    let (least, most) =
        all.iter().fold((f64::MAX, f64::MIN), |(min, max), it| (min.min(*it), max.max(*it)));
    [median(all).unwrap_or(f64::NAN), least, most]
}

/// Returns the ratio of a figure of two servers in each round.
fn ratios(
    one: &[LoadReport],
    other: &[LoadReport],
    figure: impl Fn(&LoadReport) -> f64,
) -> Vec<f64> {
    one.iter().zip(other).map(|(one, other)| figure(one) / figure(other)).collect()
}

fn cpu_us(report: &LoadReport) -> f64 {
    report.server_us_per_io.unwrap_or(f64::NAN)
}

/// Returns the CPU time of the server in percent of one CPU.
fn cpu_percent(report: &LoadReport) -> f64 {
    cpu_us(report) * report.iops / 1e4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_places_in_the_document() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/benchmarks.md");
        let text = std::fs::read_to_string(path).unwrap();
        for (name, _) in PARTS {
            assert!(text.contains(&format!("<!-- pollers-{name}:begin -->")), "{name}");
        }
    }
}
