//! Measures the points, round by round, and prints a table with targets.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use flowstone_experiment::host::Host;
use flowstone_experiment::{Experiment, Figures, IOPS, figures, interval, median, table};
use flowstone_testkit::load::{Completion, LoadOptions};

use super::point::{Contender, POINTS, Point, Space};
use super::settle::{Settle, settle};
use crate::place::{BLOCK_BYTES, RAMP, pass, remove, seconds, stop, timed};
use crate::raw_file::fill;
use crate::run::{Base, choose, defaults};

/// Options.
#[derive(Clone, Debug, Args)]
#[command(mut_args(defaults(&[("runtime", "0.5"), ("size", "4G")])))]
pub struct CompareArgs {
    /// Print the names of the points and exit.
    #[arg(long)]
    list: bool,
    /// Method that puts images in order before they are read sequentially.
    #[arg(long, value_enum, default_value_t = Settle::Compact)]
    settle: Settle,
    /// Only points whose name contains this; may be given several times.
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    #[command(flatten)]
    base: Base,
}

/// Size of a log image relative to the data written to it: this measures writing without cleaning,
/// which `steady` measures.
const ROOM: u64 = 4;
/// Divisor of the size of the image that is sorted, since it is sorted again in every round.
const SETTLED_PART: u64 = 4;
/// Rest between two measurements.
const PAUSE: Duration = Duration::from_millis(300);
/// No options for `flowstone create`.
const NONE: &[&str] = &[];

/// Measures the selected points, and prints the table.
pub fn compare(args: &CompareArgs) -> Result<()> {
    let chosen = choose(&POINTS, &args.only, |point| point.name)?;
    if args.list {
        chosen.iter().for_each(|point| println!("{:<26} {}", point.name, point.title));
        return Ok(());
    }
    let mut experiment = args.base.experiment("log")?;
    experiment.describe(&args.about(experiment.host()));
    args.make(&chosen)?;
    for round in 0..args.base.run.rounds {
        for point in &chosen {
            let measure = |contender: &Contender| args.measure(point, *contender);
            experiment.turn(round, point.name, &point.contenders(), measure)?;
        }
        args.base.run.save(&experiment)?;
    }
    args.remove()?;
    args.base.run.publish(render, &experiment)
}

impl CompareArgs {
    fn about(&self, host: &Host) -> String {
        let settled = match self.settle {
            Settle::Compact => "`flowstone compact`",
            Settle::Idle => "the idle pass (`--resort`)",
        };
        let Base { place, runtime, size, .. } = &self.base;
        format!(
            "Raw and log images of {} MiB, every block written before, on {}, O_DIRECT; log images \
             have {ROOM} times the room. Large writes go to new images, whose space the host \
             allocates (fresh), or which the same daemon has written twice before (written). Server \
             on CPU {}, client on CPU {}, waiting on its eventfd. {runtime} s a point after {} s of \
             ramp, contenders in turn; requests per second; rates and the ratios of each round as \
             medians with their 95 % intervals. Put in order by {settled}.",
            size >> 20,
            host.device,
            place.server_cpu,
            place.client_cpu,
            RAMP.as_secs_f64(),
        )
    }

    /// Makes all images, with every block written. The raw one is kept for the next run.
    fn make(&self, points: &[Point]) -> Result<()> {
        fill(self.raw(), self.base.size)?;
        for settled in [false, true] {
            let of_it = |point: &Point| point.settled == settled && point.space == Space::Own;
            if let Some(point) = points.iter().find(|point| of_it(point)) {
                let (image, bytes) = (self.log(settled), self.span(point));
                self.base.place.create_log(&image, bytes * ROOM, &[])?;
                self.serve_and_load(&image, 1, bytes, |load| pass(load, "write", bytes))?;
            }
        }
        Ok(())
    }

    fn remove(&self) -> Result<()> {
        [false, true].iter().try_for_each(|settled| remove(&self.log(*settled)))
    }

    fn raw(&self) -> PathBuf {
        self.base.run.dir.join(format!("log-{}.raw", self.base.size))
    }

    fn log(&self, settled: bool) -> PathBuf {
        self.base.run.dir.join(if settled { "settled.flow" } else { "log.flow" })
    }

    /// Returns the used bytes of an image.
    fn span(&self, point: &Point) -> u64 {
        if point.settled { self.base.size / SETTLED_PART } else { self.base.size }
    }

    fn measure(&self, point: &Point, contender: Contender) -> Result<Figures> {
        if point.space != Space::Own {
            return self.measure_large(point, contender);
        }
        let image = match contender {
            Contender::Raw | Contender::RawAlone => self.raw(),
            Contender::Log => self.log(point.settled),
        };
        let span = self.span(point);
        if point.settled && contender == Contender::Log {
            let overwrite =
                |load: LoadOptions| load.workload("randwrite").iodepth(32).ops(span / BLOCK_BYTES);
            self.serve_and_load(&image, 1, span, overwrite)?;
            settle(self.settle, &self.base.place, &image)?;
        }
        let limit = timed(self.base.runtime);
        let queues = if contender == Contender::RawAlone { 1 } else { point.queues };
        self.serve_and_load(&image, queues, span, |load| LoadOptions {
            block_bytes: point.kib << 10,
            flush_every: point.flush_every,
            limit,
            ..load.workload(point.rw).iodepth(point.iodepth)
        })
    }

    /// Measures a load on a new image; if its space is to be written before, after the same daemon
    /// has written all of it twice: a log image that is closed gives its free space back.
    fn measure_large(&self, point: &Point, contender: Contender) -> Result<Figures> {
        let (place, span) = (&self.base.place, self.span(point));
        let (format, name) = match contender {
            Contender::Log => ("log", "large.flow"),
            Contender::Raw | Contender::RawAlone => ("raw", "large.raw"),
        };
        let image = self.base.run.dir.join(name);
        place.create(&image, format, span, NONE)?;
        let socket = self.base.run.dir.join("log.sock");
        let command = place.command(&image, &socket, 1, &["--direct", "on"])?;
        let load = place.load(&socket, point.rw, point.iodepth);
        let completion = Completion::Eventfd;
        let load = LoadOptions { completion, span_bytes: span, ..load };
        let written = point.space == Space::Written;
        let before = written.then(|| pass(load.clone(), "write", 2 * span));
        let limit = seconds(if written { RAMP } else { Duration::ZERO }, self.base.runtime);
        let measured = LoadOptions { block_bytes: point.kib << 10, limit, ..load };
        let loads: Vec<_> = before.into_iter().chain([measured]).collect();
        let report = place.measure(command, &loads, stop)?;
        let is_fresh = report.ops * (point.kib << 10) <= span;
        ensure!(written || is_fresh, "--size is too small for {}", point.name);
        remove(&image)?;
        std::thread::sleep(PAUSE);
        Ok(figures(&report))
    }

    /// Serves an image anew for every load, so that one load does not affect the next.
    fn serve_and_load(
        &self,
        image: &Path,
        queues: usize,
        span: u64,
        shape: impl FnOnce(LoadOptions) -> LoadOptions,
    ) -> Result<Figures> {
        let (place, socket) = (&self.base.place, self.base.run.dir.join("log.sock"));
        let command = place.command(image, &socket, queues, &["--direct", "on"])?;
        let mut load = place.load(&socket, "randread", 1);
        load.client = load.client.queues(queues);
        (load.completion, load.span_bytes) = (Completion::Eventfd, span);
        let report = place.measure(command, &[shape(load)], stop)?;
        std::thread::sleep(PAUSE);
        Ok(figures(&report))
    }
}

/// Renders the table.
pub fn render(experiment: &Experiment) -> String {
    let measured = experiment.points();
    let rows = POINTS.iter().filter(|point| measured.contains(&point.name)).flat_map(|point| {
        point.targets.iter().map(|(to, target)| row(point, *to, *target, experiment))
    });
    table("point | beside | its rate | log | ratio | target | met", rows)
}

fn row(point: &Point, to: Contender, target: f64, experiment: &Experiment) -> Vec<String> {
    let [log, other] = [Contender::Log, to].map(|it| experiment.at(point.name, it.name()));
    let ratios = log.ratios(other, IOPS);
    let met = match median(ratios.clone()) {
        Some(ratio) if (ratio * 100.0).round() >= target * 100.0 => "yes",
        Some(_) => "no",
        None => "-",
    };
    vec![
        point.title.to_owned(),
        to.name().to_owned(),
        other.count(IOPS),
        log.count(IOPS),
        interval(ratios),
        format!("{target:.2}"),
        met.to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(rates: &[(f64, f64)]) -> Experiment {
        let mut experiment = Experiment::new("test", Host::default());
        for (raw, log) in rates {
            experiment.add(POINTS[0].name, "raw", &[(IOPS, *raw)]);
            experiment.add(POINTS[0].name, "log", &[(IOPS, *log)]);
        }
        experiment
    }

    #[test]
    fn a_row_says_whether_the_target_is_met() {
        let rates = [(10_000.0, 9_000.0), (10_000.0, 10_000.0), (10_000.0, 11_000.0)];
        let experiment = measured(&rates);
        let row = |target| row(&POINTS[0], Contender::Raw, target, &experiment)[3..].join(" | ");
        let figures = "10,000 (9,000-11,000, 75 %) | 1.000 (0.900-1.100, 75 %)";
        assert_eq!(row(1.0), format!("{figures} | 1.00 | yes"));
        assert_eq!(row(1.05), format!("{figures} | 1.05 | no"));
    }

    #[test]
    fn a_point_that_was_not_measured_has_no_figures() {
        let row = row(&POINTS[0], Contender::Raw, 1.0, &measured(&[]));
        assert_eq!(row[1..].join(" | "), "raw | - | - | - | 1.00 | -");
    }
}
