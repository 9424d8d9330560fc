//! The comparison: in each round, all servers at all points, taking turns.
//!
//! Interleaving spreads other activity of the machine over all servers alike, and each round starts
//! with another server so that none always follows the same one. A missing or failing server is
//! reported; it never stops the others.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use flowstone_experiment::host::Host;
use flowstone_experiment::{Experiment, Figures, IOPS, Of};
use flowstone_testkit::process::temp_dir;

use crate::args::CompareArgs;
use crate::disks::Who;
use crate::idle;
use crate::image::Images;
use crate::point::{Point, selected};
use crate::server::{Server, Setting, versions};

/// Pause between measurements, for the disk to become idle.
const REST: Duration = Duration::from_millis(300);

/// What was measured, and what could not be.
pub struct Report<'a> {
    /// The options of the run.
    pub args: &'a CompareArgs,
    /// The figures, by the names of points and servers.
    pub experiment: Experiment,
    /// The points under load.
    pub points: Vec<Group>,
    /// The servers of idle disks, whose point is `idle::NAME`.
    pub idle: Vec<Contender>,
}

/// The servers of a point.
pub struct Group {
    pub point: Point,
    pub servers: Vec<Contender>,
}

/// A server at a point.
pub struct Contender {
    /// Its name.
    pub name: String,
    /// The server.
    pub server: Server,
    /// Reason why it is not measured at all.
    pub skipped: Option<String>,
    /// Failures while measuring.
    pub failures: Vec<String>,
}

/// Measures all selected points, and idle disks.
pub fn compare<'a>(args: &'a CompareArgs, images: &Images<'_>) -> Result<Report<'a>> {
    let host = Host::inspect(versions(args), images.disk_place());
    let (place, rounds) = (&args.base.place, args.base.run.rounds);
    let of = format!(
        "comparison, {} s a point, CPUs {} and {}, disk image of {} bytes",
        args.base.runtime, place.server_cpu, place.client_cpu, args.base.size
    );
    let mut experiment = args.base.run.experiment_on(host, &of)?;
    let chosen = Point::all().into_iter().filter(|point| selected(&point.name, &args.only));
    let mut points: Vec<Group> = chosen.map(|point| Group::new(point, args)).collect();
    let dir = temp_dir()?;
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        for group in &mut points {
            group.measure(round, args, images, dir.path(), &mut experiment);
        }
    }
    let idle = compare_idle(args, &mut experiment);
    Ok(Report { args, experiment, points, idle })
}

/// Measures idle disks, if selected.
fn compare_idle(args: &CompareArgs, experiment: &mut Experiment) -> Vec<Contender> {
    if !selected(idle::NAME, &args.only) {
        return Vec::new();
    }
    let mut servers = Contender::all(&Point::all()[0], args);
    servers.retain(|contender| contender.server != Server::Fio);
    for contender in servers.iter_mut().filter(|contender| contender.skipped.is_none()) {
        let who =
            if contender.server == Server::Flowstone { Who::Flowstone("auto") } else { Who::Qsd };
        contender.add(idle::NAME, idle::measure(who, &args.base.place), experiment);
    }
    servers
}

impl Report<'_> {
    /// Returns the figures of the fastest of some servers.
    pub fn best<'a>(&'a self, at: &'a Group, wanted: impl Fn(Server) -> bool) -> Option<Of<'a>> {
        let wanted = at.servers.iter().filter(|contender| wanted(contender.server));
        let figures = wanted.map(|contender| self.experiment.at(&at.point.name, &contender.name));
        let rates = figures.filter_map(|of| Some((of, of.median(IOPS)?)));
        rates.max_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(of, _)| of)
    }

    /// Returns the figures of qemu-storage-daemon with its better engine.
    pub fn best_qsd<'a>(&'a self, at: &'a Group) -> Option<Of<'a>> {
        self.best(at, |server| matches!(server, Server::Qsd(_)))
    }

    /// Returns the number of measurements that failed.
    pub fn failures(&self) -> usize {
        let servers = self.points.iter().flat_map(|group| &group.servers).chain(&self.idle);
        servers.map(|contender| contender.failures.len()).sum()
    }
}

impl Group {
    fn new(point: Point, args: &CompareArgs) -> Self {
        Self { servers: Contender::all(&point, args), point }
    }

    fn measure(
        &mut self,
        round: usize,
        args: &CompareArgs,
        images: &Images<'_>,
        dir: &Path,
        experiment: &mut Experiment,
    ) {
        let (point, count) = (&self.point, self.servers.len());
        for turn in 0..count {
            let contender = &mut self.servers[(turn + round) % count];
            if contender.skipped.is_some() {
                continue;
            }
            let figures = images.prepare(point.backend, contender.server).and_then(|image| {
                let image = image.as_deref();
                contender.server.measure(&Setting { args, point, image, dir })
            });
            let figures = figures.with_context(|| format!("round {}", round + 1));
            contender.add(&point.name, figures, experiment);
            std::thread::sleep(REST);
        }
    }
}

impl Contender {
    /// Returns the servers to measure at a point.
    fn all(point: &Point, args: &CompareArgs) -> Vec<Self> {
        let contender = |server: Server| Self {
            name: server.name(point.backend),
            server,
            skipped: server.missing(point, args),
            failures: Vec::new(),
        };
        Server::for_point(point).into_iter().map(contender).collect()
    }

    fn add(&mut self, point: &str, figures: Result<Figures>, experiment: &mut Experiment) {
        match figures {
            Ok(figures) => experiment.add(point, &self.name, &figures),
            Err(error) => {
                eprintln!("{point}, {}: failed: {error:#}", self.name);
                self.failures.push(format!("{error:#}"));
            }
        }
    }

    /// Returns why there are no figures.
    pub fn problem(&self) -> String {
        match &self.skipped {
            Some(reason) => format!("skipped: {reason}"),
            None => format!("failed: {}", self.failures.join("; ")),
        }
    }
}
