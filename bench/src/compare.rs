//! The comparison: in each round, all servers at all points, taking turns.
//!
//! Interleaving spreads other activity of the machine over all servers alike, and each round starts
//! with another server so that none always follows the same one. A missing or failing server is
//! reported; it never stops the others.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use flowstone_testkit::process::temp_dir;
use serde::Serialize;

use crate::args::CompareArgs;
use crate::idle::{self, IdleSample};
use crate::image::Images;
use crate::point::{Point, selected};
use crate::sample::{Sample, Summary};
use crate::server::{Server, Setting};

/// Pause between measurements, for the disk to become idle.
const REST: Duration = Duration::from_millis(300);

/// All results of one point.
#[derive(Debug, Serialize)]
pub struct PointResult {
    /// The point.
    pub point: Point,
    /// One entry per server.
    pub servers: Vec<ServerResult>,
}

/// The result of one server at one point.
#[derive(Debug, Serialize)]
pub struct ServerResult {
    /// Its name.
    pub name: String,
    /// All samples, in order of rounds.
    pub samples: Vec<Sample>,
    /// Medians, if there are samples.
    pub summary: Option<Summary>,
    /// Reason why it was not measured at all.
    pub skipped: Option<String>,
    /// Failures while measuring.
    pub failures: Vec<String>,
    /// The server.
    #[serde(skip)]
    pub server: Server,
}

/// The result of one idle server.
#[derive(Debug, Serialize)]
pub struct IdleResult {
    /// Its name.
    pub name: String,
    /// The measurement.
    pub sample: Option<IdleSample>,
    /// Reason why there is none.
    pub problem: Option<String>,
}

/// Measures all selected points.
pub fn compare(args: &CompareArgs, images: &Images<'_>) -> Result<Vec<PointResult>> {
    let mut results: Vec<PointResult> = Point::all()
        .into_iter()
        .filter(|point| selected(&point.name, &args.only))
        .map(|point| PointResult::new(point, args))
        .collect();
    let dir = temp_dir()?;
    for round in 0..args.rounds {
        for result in &mut results {
            result.measure(round, args, images, dir.path());
        }
    }
    results.iter_mut().for_each(PointResult::sum_up);
    Ok(results)
}

/// Measures idle disks, if selected.
pub fn compare_idle(args: &CompareArgs) -> Vec<IdleResult> {
    if !selected(idle::NAME, &args.only) {
        return Vec::new();
    }
    let points = Point::all();
    Server::for_point(&points[0])
        .into_iter()
        .filter(|server| *server != Server::Fio)
        .map(|server| {
            let name = server.name(points[0].backend);
            eprintln!("{:<28} {name}", idle::NAME);
            let sample = match server.missing(&points[0], args) {
                Some(reason) => Err(format!("skipped: {reason}")),
                None => idle::measure(server, args).map_err(|e| format!("failed: {e:#}")),
            };
            let problem = sample.as_ref().err().cloned();
            IdleResult { name, sample: sample.ok(), problem }
        })
        .collect()
}

impl ServerResult {
    /// Returns the ratios of a figure to another server's, round by round.
    pub fn ratios(&self, to: &ServerResult, figure: fn(&Sample) -> f64) -> Vec<f64> {
        let rounds = self.samples.iter().zip(&to.samples);
        rounds.map(|(one, other)| figure(one) / figure(other)).collect()
    }
}

impl PointResult {
    fn new(point: Point, args: &CompareArgs) -> Self {
        let server = |server: Server| ServerResult {
            name: server.name(point.backend),
            samples: Vec::new(),
            summary: None,
            skipped: server.missing(&point, args),
            failures: Vec::new(),
            server,
        };
        let servers = Server::for_point(&point).into_iter().map(server).collect();
        PointResult { point, servers }
    }

    fn measure(&mut self, round: usize, args: &CompareArgs, images: &Images<'_>, dir: &Path) {
        let count = self.servers.len();
        for turn in 0..count {
            let result = &mut self.servers[(turn + round) % count];
            if result.skipped.is_some() {
                continue;
            }
            let sample = images.prepare(self.point.backend, result.server).and_then(|image| {
                let image = image.as_deref();
                result.server.measure(&Setting { args, point: &self.point, image, dir })
            });
            progress(round, args, &self.point, &result.name, &sample);
            match sample {
                Ok(sample) => result.samples.push(sample),
                Err(error) => result.failures.push(format!("round {}: {error:#}", round + 1)),
            }
            std::thread::sleep(REST);
        }
    }

    /// Returns the fastest of some servers.
    pub fn best(&self, wanted: impl Fn(Server) -> bool) -> Option<&ServerResult> {
        let rate = |result: &ServerResult| result.summary.as_ref().map(|summary| summary.iops);
        let wanted = self.servers.iter().filter(|result| wanted(result.server));
        wanted.filter(|result| result.summary.is_some()).max_by(|one, other| {
            f64::total_cmp(&rate(one).unwrap_or(0.0), &rate(other).unwrap_or(0.0))
        })
    }

    /// Returns qemu-storage-daemon with its better engine.
    pub fn best_qsd(&self) -> Option<&ServerResult> {
        self.best(|server| matches!(server, Server::Qsd(_)))
    }

    fn sum_up(&mut self) {
        for result in &mut self.servers {
            result.summary = Summary::of(&result.samples);
        }
    }
}

fn progress(
    round: usize,
    args: &CompareArgs,
    point: &Point,
    server: &str,
    sample: &Result<Sample>,
) {
    let outcome = match sample {
        Ok(sample) => format!(
            "{:>9.0} IOPS  p50 {:>7.1} us  {:>6.2} us/IO  others {:>3.0} %",
            sample.iops, sample.p50_us, sample.server_us_per_io, sample.others_percent
        ),
        Err(error) => format!("failed: {error:#}"),
    };
    let (round, rounds) = (round + 1, args.rounds);
    eprintln!("{round}/{rounds} {:<24} {server:<20} {outcome}", point.name);
}
