//! Measures the points, round by round, and prints a table with targets.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use flowstone_testkit::load::{Completion, Limit, LoadOptions, LoadReport, run};

use super::contender::{Contender, Place, stop};
use super::point::{POINTS, Point};
use super::run_args::RunArgs;
use super::settle::{Settle, settle};
use crate::host::{Host, commit};
use crate::series::{Series, Spread};
use crate::size::{parse_size, thousands};

/// Options.
#[derive(Clone, Debug, Args)]
pub struct CompareArgs {
    /// Rounds; each measures every contender at every point once.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Measured seconds per point, round and contender.
    #[arg(long, default_value_t = 0.5)]
    runtime: f64,
    /// Seconds before that. A log image that is opened writes into fresh space at first, which
    /// costs the host more.
    #[arg(long, default_value_t = 0.2)]
    ramp: f64,
    /// Seconds of rest between two measurements.
    #[arg(long, default_value_t = 0.3)]
    pause: f64,
    /// Bytes that are read and written, of each image.
    #[arg(long, default_value = "4G", value_parser = parse_size)]
    size: u64,
    /// Print the names of the points and do nothing.
    #[arg(long)]
    list: bool,
    /// How images are put in order before they are read in sequence.
    #[arg(long, value_enum, default_value_t = Settle::Compact)]
    settle: Settle,
    #[command(flatten)]
    run: RunArgs,
}

/// Size of a log image relative to the data written to it: this measures writing without cleaning,
/// which `steady` measures.
const ROOM: u64 = 4;
/// Divisor of the size of the image that is sorted, since it is sorted again in every round.
const SETTLED_PART: u64 = 4;
const FILL_BYTES: u64 = 128 << 10;
const BLOCK_BYTES: u64 = 4096;

/// Measures the selected points, and prints the table.
pub fn compare(args: &CompareArgs) -> Result<()> {
    let chosen = args.run.choose(&POINTS, |point| point.name)?;
    if args.list {
        chosen.iter().for_each(|point| println!("{:<26} {}", point.name, point.title));
        return Ok(());
    }
    std::fs::create_dir_all(&args.run.dir)?;
    let host = Host::inspect(Vec::new(), &args.run.dir);
    let of = format!("log {} {} {} {}", commit(), args.ramp, args.runtime, args.size);
    let mut series = args.run.series(&of)?;
    let bench = Bench { args };
    bench.make(&chosen)?;
    for round in 0..args.rounds {
        for point in &chosen {
            bench.round(round, point, &mut series).with_context(|| point.name)?;
        }
        args.run.save(&series)?;
    }
    bench.remove()?;
    args.run.publish("log", &report(args, &host, &chosen, &series))
}

struct Bench<'a> {
    args: &'a CompareArgs,
}

impl Bench<'_> {
    /// Makes all images, with every block written. The raw one is kept for the next run.
    fn make(&self, points: &[&Point]) -> Result<()> {
        let place = &self.args.run.place;
        place.fill_raw(&self.raw(), self.args.size)?;
        for settled in [false, true] {
            if points.iter().any(|point| point.settled == settled) {
                let (image, bytes) = (self.log(settled), self.span(settled));
                place.create_log(&image, bytes * ROOM, &[])?;
                let fill = |load: LoadOptions| LoadOptions {
                    block_bytes: FILL_BYTES,
                    ..load.workload("write").iodepth(8).ops(bytes / FILL_BYTES)
                };
                self.serve_and_load(&image, 1, bytes, fill)?;
            }
        }
        Ok(())
    }

    fn remove(&self) -> Result<()> {
        for image in [self.log(false), self.log(true)] {
            if image.exists() {
                std::fs::remove_file(&image)?;
            }
        }
        Ok(())
    }

    fn raw(&self) -> PathBuf {
        self.args.run.dir.join(format!("log-{}.raw", self.args.size))
    }

    fn log(&self, settled: bool) -> PathBuf {
        self.args.run.dir.join(if settled { "settled.flow" } else { "log.flow" })
    }

    /// Returns the used bytes of an image.
    fn span(&self, settled: bool) -> u64 {
        if settled { self.args.size / SETTLED_PART } else { self.args.size }
    }

    fn round(&self, round: usize, point: &Point, series: &mut Series) -> Result<()> {
        let contenders = point.contenders();
        for turn in 0..contenders.len() {
            let contender = contenders[(turn + round) % contenders.len()];
            let rate = self.measure(point, contender)?.iops;
            let (number, rounds, name) = (round + 1, self.args.rounds, contender.name());
            eprintln!("{number}/{rounds} {:<26} {name:<14} {rate:>9.0}/s", point.name);
            series.add(&key(point, contender), rate);
        }
        Ok(())
    }

    fn measure(&self, point: &Point, contender: Contender) -> Result<LoadReport> {
        let image = match contender {
            Contender::Raw | Contender::RawAlone => self.raw(),
            Contender::Log => self.log(point.settled),
        };
        let span = self.span(point.settled);
        if point.settled && contender == Contender::Log {
            let overwrite =
                |load: LoadOptions| load.workload("randwrite").iodepth(32).ops(span / BLOCK_BYTES);
            self.serve_and_load(&image, 1, span, overwrite)?;
            settle(self.args.settle, &self.args.run.place, &image)?;
        }
        let [ramp, runtime] = [self.args.ramp, self.args.runtime].map(Duration::from_secs_f64);
        let limit = Limit::Time { ramp, runtime };
        self.serve_and_load(&image, contender.queues(point.queues), span, |load| LoadOptions {
            block_bytes: point.kib << 10,
            flush_every: point.flush_every,
            limit,
            ..load.workload(point.rw).iodepth(point.iodepth)
        })
    }

    /// Serves an image anew for every load, so that one load does not affect the next.
    fn serve_and_load(
        &self,
        image: &Path,
        queues: usize,
        span: u64,
        shape: impl FnOnce(LoadOptions) -> LoadOptions,
    ) -> Result<LoadReport> {
        let Place { client_cpu, .. } = self.args.run.place;
        let socket = self.args.run.dir.join("log.sock");
        let direct = ["--direct", "on"].map(str::to_owned);
        let mut daemon = self.args.run.place.serve(image, &socket, queues, &direct)?;
        let mut load = LoadOptions::new(&socket);
        load.client = load.client.queues(queues);
        (load.threads, load.cpus) = (1, vec![client_cpu]);
        (load.completion, load.span_bytes) = (Completion::Eventfd, span);
        let report = run(&shape(load))?;
        ensure!(report.errors == 0, "{} requests failed", report.errors);
        stop(&mut daemon)?;
        std::thread::sleep(Duration::from_secs_f64(self.args.pause));
        Ok(report)
    }
}

fn key(point: &Point, contender: Contender) -> String {
    format!("{} {}", point.name, contender.name())
}

fn report(args: &CompareArgs, host: &Host, points: &[&Point], series: &Series) -> String {
    let settled = match args.settle {
        Settle::Compact => "`flowstone compact`",
        Settle::Idle => "the idle pass (`--resort`)",
    };
    let mut text = format!(
        "{}\n\nRaw and log images of {} MiB, every block written before, on {}, O_DIRECT; log images have {ROOM} \
         times the room. Server on CPU {}, client on CPU {}, waiting on its eventfd. {} s a point after {} s \
         of ramp, contenders in turn; requests per second, median (min-max); the ratio is the median of those \
         of each round. Put in order by {settled}.\n\n",
        host.sentence(),
        args.size >> 20,
        host.device,
        args.run.place.server_cpu,
        args.run.place.client_cpu,
        args.runtime,
        args.ramp,
    );
    text += "| point | beside | its rate | log | ratio | target | met |\n|---|---|---:|---:|---:|---:|---|\n";
    for point in points {
        for (to, target) in point.targets {
            row(&mut text, point, *to, *target, series);
        }
    }
    text
}

fn row(text: &mut String, point: &Point, to: Contender, target: f64, series: &Series) {
    let (log, other) = (key(point, Contender::Log), key(point, to));
    let ratio = Spread::of(&series.ratios(&log, &other));
    let shown = |figures: &[f64]| {
        Spread::of(figures).map_or("-".to_owned(), |Spread { median, min, max, .. }| {
            format!("{} ({}-{})", thousands(median), thousands(min), thousands(max))
        })
    };
    let (ratio, met) = match ratio {
        Some(Spread { median, min, max, .. }) => {
            let met = if (median * 100.0).round() >= target * 100.0 { "yes" } else { "no" };
            (format!("{median:.2} ({min:.2}-{max:.2})"), met)
        }
        None => ("-".to_owned(), "-"),
    };
    let (title, to) = (point.title, to.name());
    let (its, ours) = (shown(series.of(&other)), shown(series.of(&log)));
    writeln!(text, "| {title} | {to} | {its} | {ours} | {ratio} | {target:.2} | {met} |")
        .expect("strings take everything");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_whether_the_target_is_met() {
        let (point, mut series) = (&POINTS[0], Series::new("test"));
        for (raw, log) in [(10_000.0, 9_000.0), (10_000.0, 10_000.0), (10_000.0, 11_000.0)] {
            series.add(&key(point, Contender::Raw), raw);
            series.add(&key(point, Contender::Log), log);
        }
        let line = |target| {
            let mut text = String::new();
            row(&mut text, point, Contender::Raw, target, &series);
            text
        };
        assert!(line(1.0).contains("10,000 (9,000-11,000) | 1.00 (0.90-1.10) | 1.00 | yes"));
        assert!(line(1.05).trim_end().ends_with("| 1.05 | no |"));
    }

    #[test]
    fn a_point_that_was_not_measured_has_no_figures() {
        let mut text = String::new();
        row(&mut text, &POINTS[0], Contender::Raw, 1.0, &Series::new("test"));
        assert!(text.ends_with("| raw | - | - | - | 1.00 | - |\n"), "{text}");
    }
}
