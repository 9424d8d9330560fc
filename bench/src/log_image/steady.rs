//! Steady state: full disks, overwritten at random until the cost of cleaning is stable.
//!
//! Amplification is the number of blocks appended per block of the guest, by kind, as counted by
//! `stats`. Latency is compared with that of the same load on an image with so much space that
//! nothing is cleaned.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use flowstone_testkit::Daemon;
use flowstone_testkit::load::{Completion, LoadOptions, LoadReport, run};
use rustix::fs::statfs;

use super::contender::stop;
use super::parts::Parts;
use super::run_args::RunArgs;
use super::settle::stats;
use super::share::{greedy, live_share, reserve_for};
use crate::host::{Host, commit};
use crate::series::{Series, Spread};
use crate::size::parse_size;

/// Options.
#[derive(Clone, Debug, Args)]
pub struct SteadyArgs {
    /// Size of the disks.
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    size: u64,
    /// Size of a segment [default: flowstone's choice].
    #[arg(long)]
    segment: Option<String>,
    /// How often a disk is overwritten before measuring.
    #[arg(long, default_value_t = 7)]
    before: u64,
    /// How often a disk is overwritten while measuring.
    #[arg(long, default_value_t = 4)]
    measured: u64,
    /// Measure uniform writes on an image of which this share is live, and nothing else: 0.7, 0.8
    /// or 0.9. Of a small disk no image is so full.
    #[arg(long, value_name = "SHARE", conflicts_with = "only")]
    live: Option<f64>,
    /// Leave out the load on an image where nothing is cleaned.
    #[arg(long)]
    skip_room: bool,
    /// Further arguments for `flowstone create`.
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    create_arg: Vec<String>,
    /// Further arguments for `flowstone serve`.
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    serve_arg: Vec<String>,
    #[command(flatten)]
    run: RunArgs,
}

impl SteadyArgs {
    fn image(&self) -> PathBuf {
        self.run.dir.join("steady.flow")
    }

    /// Returns the options of `flowstone create`.
    fn create_options(&self) -> Vec<String> {
        let segment = self.segment.iter().flat_map(|it| ["--segment".to_owned(), it.clone()]);
        segment.chain(self.create_arg.iter().cloned()).collect()
    }
}

/// One full disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
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

/// The cases of `--live`.
const LIVE: [Case; 3] = [uniform("live-70", 0.7), uniform("live-80", 0.8), uniform("live-90", 0.9)];
/// Largest deviation of an image from the share of `--live`.
const LIVE_ERROR_MAX: f64 = 0.01;

const BLOCK_BYTES: u64 = 4096;
const FILL_BYTES: u64 = 128 << 10;
const IODEPTH: u16 = 32;
/// Largest allowed p99 with cleaning, as a multiple of that without.
const P99_TARGET: f64 = 2.5;

/// Measures the selected cases, and prints the table.
pub fn measure(args: &SteadyArgs) -> Result<()> {
    let chosen = match args.live {
        Some(share) => vec![live_case(share)?],
        None => args.run.choose(&CASES, |case| case.name)?,
    };
    ensure!(args.measured > 0, "nothing is measured in no overwrites");
    std::fs::create_dir_all(&args.run.dir)?;
    let host = Host::inspect(Vec::new(), &args.run.dir);
    let of = format!("steady {} {} {:?} {:?}", commit(), args.size, args.segment, args.serve_arg);
    let mut series = args.run.series(&of)?;
    for case in &chosen {
        one_case(args, case, &mut series).with_context(|| case.name)?;
        args.run.save(&series)?;
    }
    let marker = if is_memory(&args.run.dir) { "steady" } else { "steady-disk" };
    args.run.publish(marker, &report(args, &host, &series))
}

fn live_case(share: f64) -> Result<&'static Case> {
    let is_it = |case: &&Case| matches!(case.fullness, Fullness::Share(it) if it == share);
    LIVE.iter().find(is_it).context("--live is 0.7, 0.8 or 0.9")
}

fn is_memory(dir: &Path) -> bool {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    statfs(dir).is_ok_and(|answer| answer.f_type == TMPFS_MAGIC)
}

fn one_case(args: &SteadyArgs, case: &Case, series: &mut Series) -> Result<()> {
    let blocks = args.size / BLOCK_BYTES;
    let reserve = match case.fullness {
        Fullness::Reserve { percent, .. } => percent,
        Fullness::Share(share) => {
            let (image, more) = (args.image(), args.create_options());
            reserve_for(&args.run.place, &image, args.size, &more, share)?
        }
    };
    let mut disk = Disk::make(args, args.size, &["--reserve".to_owned(), reserve.to_string()])?;
    if let Some(wanted) = args.live {
        let there_is = disk.live_share;
        ensure!(
            (there_is - wanted).abs() <= LIVE_ERROR_MAX,
            "of an image of {} MiB {:.1} % are live, not {:.0} %: give a larger --size, or a smaller \
             --segment",
            args.size >> 20,
            there_is * 100.0,
            wanted * 100.0
        );
    }
    series.add(&key(case, "live"), disk.live_share * 100.0);
    disk.fill()?;
    disk.overwrite(case, blocks * args.before)?;
    let before = disk.parts()?;
    let report = disk.overwrite(case, blocks * args.measured)?;
    let parts = disk.parts()?.since(&before);
    disk.remove()?;
    let mut add = |what: &str, figure: f64| series.add(&key(case, what), figure);
    parts.figures().into_iter().for_each(|(what, figure)| add(what, figure));
    add("writes", report.iops);
    add("p50", report.latency.p50_us / 1000.0);
    add("p99", report.latency.p99_us / 1000.0);
    add("gap", report.longest_gap_ms);
    let (name, amplification) = (case.name, parts.amplification());
    eprintln!("{name}: amplification {amplification:.3}, {:.0}/s", report.iops);
    if !args.skip_room {
        // Room for all writes: nothing is cleaned.
        let mut disk = Disk::make(args, args.size * (args.measured + 4), &[])?;
        disk.fill()?;
        let report = disk.overwrite(case, blocks * args.measured)?;
        disk.remove()?;
        series.add(&key(case, "p50 room"), report.latency.p50_us / 1000.0);
        series.add(&key(case, "p99 room"), report.latency.p99_us / 1000.0);
    }
    Ok(())
}

fn key(case: &Case, what: &str) -> String {
    format!("{} {what}", case.name)
}

/// A served image.
struct Disk<'a> {
    args: &'a SteadyArgs,
    image: PathBuf,
    socket: PathBuf,
    control: PathBuf,
    live_share: f64,
    daemon: Daemon,
}

impl<'a> Disk<'a> {
    fn make(args: &'a SteadyArgs, bytes: u64, more: &[String]) -> Result<Self> {
        let image = args.image();
        let (socket, control) = (image.with_extension("sock"), image.with_extension("control"));
        args.run.place.create_log(&image, bytes, &[&args.create_options(), more].concat())?;
        let live_share = live_share(&args.run.place, &image, bytes)?;
        let mut serve = vec!["--control".to_owned(), control.display().to_string()];
        serve.extend_from_slice(&args.serve_arg);
        let daemon = args.run.place.serve(&image, &socket, 1, &serve)?;
        Ok(Self { args, image, socket, control, live_share, daemon })
    }

    fn fill(&self) -> Result<LoadReport> {
        let fill = LoadOptions::new(&self.socket).workload("write").iodepth(8);
        self.load(LoadOptions { block_bytes: FILL_BYTES, ..fill.ops(self.args.size / FILL_BYTES) })
    }

    fn overwrite(&self, case: &Case, blocks: u64) -> Result<LoadReport> {
        let load = LoadOptions::new(&self.socket).workload("randwrite").iodepth(IODEPTH);
        self.load(LoadOptions { zipf: case.zipf(), seed: blocks, ..load.ops(blocks) })
    }

    fn load(&self, load: LoadOptions) -> Result<LoadReport> {
        let report = run(&LoadOptions {
            threads: 1,
            cpus: vec![self.args.run.place.client_cpu],
            completion: Completion::Eventfd,
            span_bytes: self.args.size,
            stall_timeout: Duration::from_secs(60),
            ..load
        })?;
        ensure!(report.errors == 0, "{} requests failed", report.errors);
        Ok(report)
    }

    fn parts(&self) -> Result<Parts> {
        Parts::of(&stats(&self.args.run.place, &self.control)?["disks"][0]["log"])
    }

    fn remove(&mut self) -> Result<()> {
        stop(&mut self.daemon)?;
        Ok(std::fs::remove_file(&self.image)?)
    }
}

fn report(args: &SteadyArgs, host: &Host, series: &Series) -> String {
    let segment = args.segment.as_deref().unwrap_or("the default");
    let mut text = format!(
        "{}\n\nDisks of {} MiB, segments of {segment}, on {}; written in sequence, then overwritten {} times at random \
         before and {} times while measuring, 4 KiB QD{IODEPTH}, without flushes. Blocks appended for each block of \
         the guest; \"live\" is what the disk takes of the whole image; the ratios of latencies are to the same load on an image where nothing is cleaned; the longest pause is that \
         in which no write completed.\n\n",
        host.sentence(),
        args.size >> 20,
        host.device,
        args.before,
        args.measured,
    );
    text += "| load | live % | amplification | headers, seals | maps | copies | model | ratio | target | met | writes/s | p50, ms | p50 ratio | p99, ms | p99 ratio | longest pause, ms |\n";
    text += "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|\n";
    CASES.iter().chain(&LIVE).for_each(|case| row(&mut text, case, series));
    write!(text, "\nThe p99 ratio is to be at most {P99_TARGET} in the fullest image.")
        .expect("strings take everything");
    text
}

fn row(text: &mut String, case: &Case, series: &Series) {
    let figure = |what: &str| Spread::of(series.of(&key(case, what))).map(|spread| spread.median);
    let Some((amplification, live)) = figure("amplification").zip(figure("live")) else {
        return;
    };
    let shown = |figure: Option<f64>, digits: usize| {
        figure.map_or("-".to_owned(), |figure| format!("{figure:.digits$}"))
    };
    let model = case.model(live);
    let ratio = amplification / model;
    let met = if (ratio * 100.0).round() <= case.target * 100.0 { "yes" } else { "no" };
    let ratio_to = |with: &str, without: &str| {
        figure(with).zip(figure(without)).map(|(with, without)| with / without)
    };
    let overhead = ["headers", "seals"].map(|what| shown(figure(what), 3));
    let overhead = match figure("seals") {
        Some(_) => overhead.join(", "),
        None => shown(figure("headers and seals"), 3),
    };
    let name = case.name;
    writeln!(
        text,
        "| {name} | {live:.1} | {amplification:.3} | {overhead} | {} | {} | {model:.2} | {ratio:.2} | {:.2} | {met} | {} | {} | {} | {} | {} | {} |",
        shown(figure("maps"), 3),
        shown(figure("copies"), 3),
        case.target,
        shown(figure("writes"), 0),
        shown(figure("p50"), 2),
        shown(ratio_to("p50", "p50 room"), 2),
        shown(figure("p99"), 2),
        shown(ratio_to("p99", "p99 room"), 2),
        shown(figure("gap"), 0),
    )
    .expect("strings take everything");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_that_was_not_measured_has_no_row() {
        let mut text = String::new();
        row(&mut text, &CASES[0], &Series::new("test"));
        assert!(text.is_empty());
    }

    #[test]
    fn a_row_has_the_parts_and_says_whether_the_model_is_met() {
        let (case, mut series) = (&CASES[2], Series::new("test"));
        for (what, figure) in [
            ("live", 80.0),
            ("amplification", 2.93),
            ("headers and seals", 0.05),
            ("maps", 0.01),
            ("copies", 1.87),
            ("writes", 20_000.0),
            ("p50", 1.0),
            ("p99", 5.0),
            ("p99 room", 2.5),
            ("gap", 12.0),
        ] {
            series.add(&key(case, what), figure);
        }
        let mut text = String::new();
        row(&mut text, case, &series);
        let wanted = "| uniform-max | 80.0 | 2.930 | 0.050 | 0.010 | 1.870 | 2.69 | 1.09 | 1.08 | no | 20000 | 1.00 | - | 5.00 | 2.00 | 12 |\n";
        assert_eq!(text, wanted);
    }
}
