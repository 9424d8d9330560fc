//! Steady state: full disks, overwritten at random until the cost of cleaning is stable.
//!
//! Amplification is the number of blocks appended per block of the guest, by kind, as counted by
//! `stats`. Latency is compared with that of the same load on an image with so much space that
//! nothing is cleaned.

use flowstone_block::parse_size;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use flowstone_experiment::{Experiment, GAP_MS, IOPS, interval, table};
use flowstone_testkit::Daemon;
use flowstone_testkit::load::{Completion, LoadOptions, LoadReport};
use serde_json::Value;

use super::parts::Parts;
use super::share::{greedy, live_share, parse, reserve_for};
use crate::place::{BLOCK_BYTES, Place, drive, pass, remove, stats, stop};
use crate::run::{Run, choose};

/// Options.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("rounds", |rounds| rounds.default_value("1")))]
pub struct SteadyArgs {
    /// Size of the disks.
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    pub(super) size: u64,
    /// Number of overwrites of the disk before measuring.
    #[arg(long, default_value_t = 7)]
    pub(super) before: u64,
    /// Number of overwrites of the disk while measuring.
    #[arg(long, default_value_t = 4)]
    measured: u64,
    /// Measure uniform writes to an image with this share of live blocks, 0.7, 0.8 or 0.9, beside a
    /// raw image. Images of small disks cannot be so full.
    #[arg(long, value_name = "SHARE", value_parser = parse, conflicts_with_all = ["only", "measured"])]
    pub(super) live: Option<f64>,
    /// Further arguments for `flowstone create`.
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub(super) create_arg: Vec<String>,
    /// Further arguments for `flowstone serve`.
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub(super) serve_arg: Vec<String>,
    /// Only cases whose name contains this; may be given several times.
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    #[command(flatten)]
    pub(super) run: Run,
    #[command(flatten)]
    pub(super) place: Place,
}

/// One full disk.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    fullness: Fullness,
    /// Largest allowed amplification as a multiple of the model's.
    target: f64,
}

/// The fullness of the image, which also determines its load.
#[derive(Clone, Copy, Debug)]
enum Fullness {
    /// Uniform writes with this share of live blocks; the model is greedy cleaning at the actual
    /// share of the image.
    Share(f64),
    /// Zipf writes with this reserve, in percent; the model is the amplification of cost-benefit
    /// cleaning with perfect lifetime classes.
    Reserve { percent: u32, model: f64 },
}

const ZIPF: f64 = 0.99;

const fn uniform(name: &'static str, share: f64) -> Case {
    Case { name, fullness: Fullness::Share(share), target: 1.08 }
}

const fn zipf(name: &'static str, percent: u32, model: f64) -> Case {
    Case { name, fullness: Fullness::Reserve { percent, model }, target: 1.15 }
}

impl Case {
    fn zipf(&self) -> Option<f64> {
        matches!(self.fullness, Fullness::Reserve { .. }).then_some(ZIPF)
    }

    /// Returns the write amplification of the model at this share of live blocks, without headers
    /// and maps.
    fn model(&self, live_percent: f64) -> f64 {
        match self.fullness {
            Fullness::Share(_) => greedy(live_percent / 100.0),
            Fullness::Reserve { model, .. } => model,
        }
    }
}

const CASES: [Case; 6] = [
    uniform("uniform-50", 0.5),
    uniform("uniform-70", 0.7),
    // As full as an image of this size can be: 73 % at 512 MiB, 80 % from 4 GiB on.
    uniform("uniform-max", 1.0),
    zipf("zipf-50", 50, 1.28),
    zipf("zipf-70", 30, 1.59),
    zipf("zipf-80", 20, 1.94),
];

pub(super) const IMAGE: &str = "steady.flow";
/// The full image, and the one with so much space that nothing is cleaned.
const CLEANED: &str = "cleaned";
const ROOM: &str = "room";
const LIVE_PERCENT: &str = "live";
const P50_MS: &str = "p50_ms";
const P99_MS: &str = "p99_ms";

const IODEPTH: u16 = 32;
/// Largest allowed p99 with cleaning, as a multiple of that without.
const P99_TARGET: f64 = 2.5;

/// Measures the selected cases, and prints the table.
pub fn measure(args: &SteadyArgs) -> Result<()> {
    let chosen = choose(&CASES, &args.only, |case| case.name)?;
    ensure!(args.measured > 0, "nothing is measured in no overwrites");
    let of = format!("log steady {} {:?} {:?}", args.size, args.create_arg, args.serve_arg);
    let mut experiment = args.run.experiment(&of)?;
    experiment.describe(&about(args));
    for _ in 0..args.run.rounds {
        for case in &chosen {
            one_case(args, case, &mut experiment).with_context(|| case.name)?;
            args.run.save(&experiment)?;
        }
    }
    args.run.publish(render, &experiment)
}

fn one_case(args: &SteadyArgs, case: &Case, experiment: &mut Experiment) -> Result<()> {
    let blocks = args.size / BLOCK_BYTES;
    let reserve = match case.fullness {
        Fullness::Reserve { percent, .. } => percent,
        Fullness::Share(share) => {
            reserve_for(&args.place, &args.run.dir.join(IMAGE), args.size, &args.create_arg, share)?
        }
    };
    let mut disk = Disk::make(args, args.size, &["--reserve".to_owned(), reserve.to_string()])?;
    let mut figures = vec![(LIVE_PERCENT, disk.live_share * 100.0)];
    disk.fill(&disk.socket)?;
    disk.overwrite(case.zipf(), blocks * args.before)?;
    let before = disk.parts()?;
    let report = disk.overwrite(case.zipf(), blocks * args.measured)?;
    figures.extend(disk.parts()?.figures_since(&before));
    disk.remove()?;
    figures.extend([
        (IOPS, report.iops),
        (P50_MS, report.latency.p50_us / 1000.0),
        (P99_MS, report.latency.p99_us / 1000.0),
        (GAP_MS, report.longest_gap_ms),
    ]);
    experiment.add(case.name, CLEANED, &figures);
    // Room for all writes: nothing is cleaned.
    let mut disk = Disk::make(args, args.size * (args.measured + 4), &[])?;
    disk.fill(&disk.socket)?;
    let latency = disk.overwrite(case.zipf(), blocks * args.measured)?.latency;
    disk.remove()?;
    let figures = [(P50_MS, latency.p50_us / 1000.0), (P99_MS, latency.p99_us / 1000.0)];
    experiment.add(case.name, ROOM, &figures);
    Ok(())
}

/// A served image.
pub(super) struct Disk<'a> {
    args: &'a SteadyArgs,
    image: PathBuf,
    pub(super) socket: PathBuf,
    control: PathBuf,
    pub(super) live_share: f64,
    pub(super) daemon: Daemon,
}

impl<'a> Disk<'a> {
    pub(super) fn make(args: &'a SteadyArgs, bytes: u64, more: &[String]) -> Result<Self> {
        let image = args.run.dir.join(IMAGE);
        let (socket, control) = (image.with_extension("sock"), image.with_extension("control"));
        args.place.create_log(&image, bytes, &[&args.create_arg, more].concat())?;
        let live_share = live_share(&args.place, &image, bytes)?;
        let path = control.display().to_string();
        let mut serve = vec!["--control", &path];
        serve.extend(args.serve_arg.iter().map(String::as_str));
        let daemon = args.place.serve(&image, &socket, 1, &serve)?;
        Ok(Self { args, image, socket, control, live_share, daemon })
    }

    /// Writes all of the disk with this socket, which is as large.
    pub(super) fn fill(&self, socket: &Path) -> Result<LoadReport> {
        self.load(pass(LoadOptions::new(socket), "write", self.args.size))
    }

    pub(super) fn overwrite(&self, zipf: Option<f64>, blocks: u64) -> Result<LoadReport> {
        let load = LoadOptions::new(&self.socket).workload("randwrite").iodepth(IODEPTH);
        self.load(LoadOptions { zipf, seed: blocks, ..load.ops(blocks) })
    }

    pub(super) fn load(&self, load: LoadOptions) -> Result<LoadReport> {
        drive(&LoadOptions {
            threads: 1,
            cpus: vec![self.args.place.client_cpu],
            completion: Completion::Eventfd,
            span_bytes: self.args.size,
            stall_timeout: Duration::from_secs(60),
            ..load
        })
    }

    pub(super) fn parts(&self) -> Result<Parts> {
        Parts::of(&self.counts()?)
    }

    /// Returns what `stats` has about the image.
    pub(super) fn counts(&self) -> Result<Value> {
        Ok(stats(&self.args.place.program()?, &self.control)?["disks"][0]["log"].take())
    }

    pub(super) fn remove(&mut self) -> Result<()> {
        stop(&mut self.daemon)?;
        remove(&self.image)
    }
}

fn about(args: &SteadyArgs) -> String {
    let create = [&["--format log".to_owned()][..], &args.create_arg].concat().join(" ");
    format!(
        "Disks of {} MiB (`create {create}`); written in sequence, then overwritten {} times at \
         random before and {} times while measuring, 4 KiB QD{IODEPTH}, without flushes. Blocks \
         appended for each block of the guest; \"live\" is what the disk takes of the whole image; \
         the ratios of latencies are to the same load on an image where nothing is cleaned; the \
         longest pause is that in which no write completed.",
        args.size >> 20,
        args.before,
        args.measured,
    )
}

/// Renders the table.
pub fn render(experiment: &Experiment) -> String {
    let rows = CASES.iter().filter_map(|case| row(case, experiment));
    format!(
        "{}\nThe p99 ratio is to be at most {P99_TARGET} in the fullest image.",
        table(TITLES, rows)
    )
}

const TITLES: &str = "load | live % | amplification | headers, seals | maps | copies | model | \
     ratio | target | met | writes/s | p50, ms | p50 ratio | p99, ms | p99 ratio | longest pause, ms";

fn row(case: &Case, experiment: &Experiment) -> Option<Vec<String>> {
    let [own, room] = [CLEANED, ROOM].map(|image| experiment.at(case.name, image));
    let model = case.model(own.median(LIVE_PERCENT)?);
    let of_model: Vec<f64> = own.all("amplification").iter().map(|it| it / model).collect();
    let ratio = own.median("amplification")? / model;
    let met = if (ratio * 100.0).round() <= case.target * 100.0 { "yes" } else { "no" };
    Some(vec![
        case.name.to_owned(),
        own.cell(LIVE_PERCENT, 1),
        own.spread("amplification", 3),
        ["headers", "seals"].map(|kind| own.cell(kind, 3)).join(", "),
        own.cell("maps", 3),
        own.cell("copies", 3),
        format!("{model:.2}"),
        interval(of_model),
        format!("{:.2}", case.target),
        met.to_owned(),
        own.count(IOPS),
        own.cell(P50_MS, 2),
        own.ratio(room, P50_MS),
        own.cell(P99_MS, 2),
        own.ratio(room, P99_MS),
        own.spread(GAP_MS, 0),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use flowstone_experiment::host::Host;

    #[test]
    fn a_case_that_was_not_measured_has_no_row() {
        assert!(row(&CASES[0], &Experiment::new("test", Host::default())).is_none());
    }

    #[test]
    fn a_row_has_the_parts_and_says_whether_the_model_is_met() {
        let mut experiment = Experiment::new("test", Host::default());
        let figures = [
            (LIVE_PERCENT, 80.0),
            ("amplification", 2.93),
            ("headers", 0.04),
            ("seals", 0.01),
            ("maps", 0.01),
            ("copies", 1.87),
            (IOPS, 20_000.0),
            (P50_MS, 1.0),
            (P99_MS, 5.0),
            (GAP_MS, 12.0),
        ];
        experiment.add(CASES[2].name, CLEANED, &figures);
        experiment.add(CASES[2].name, ROOM, &[(P99_MS, 2.5)]);
        let row = row(&CASES[2], &experiment).unwrap().join(" | ");
        let wanted = "uniform-max | 80.0 | 2.930 | 0.040, 0.010 | 0.010 | 1.870 | 2.69 | 1.088 | \
                      1.08 | no | 20,000 | 1.00 | - | 5.00 | 2.000 | 12";
        assert_eq!(row, wanted);
    }
}
