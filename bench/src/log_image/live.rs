//! Steady random writes to a log image with a given share of live blocks, beside a raw image.
//!
//! Steady means: the image has been overwritten several times, each measured run follows unmeasured
//! writes without a pause, and as many segments are freed as opened in it. While the raw image is
//! driven, the other daemon is stopped: it would clean meanwhile.

use anyhow::{Result, ensure};
use flowstone_experiment::command::number;
use flowstone_experiment::{CPU_US, Experiment, Figures, IOPS, P99_US, figures, table};
use flowstone_testkit::load::{LoadOptions, LoadReport};
use rustix::process::Signal;

use super::parts::Parts;
use super::share::{greedy, reserve_for};
use super::steady::{Disk, IMAGE, SteadyArgs};
use crate::place::{BLOCK_BYTES, remove, stop, timed};

/// Largest deviation of an image from the share that was asked for.
const ERROR_MAX: f64 = 0.01;
const UNMEASURED: u64 = 400_000;
const UNMEASURED_DEPTH: u16 = 32;
const RUN_SECONDS: f64 = 3.0;
const DEPTHS: [(&str, u16); 3] = [("QD1", 1), ("QD32", 32), ("QD128", 128)];
const RAW: &str = "raw";
const LOG: &str = "log";
const LIVE_PERCENT: &str = "live";
const P9999_US: &str = "p9999_us";
const LONGEST_US: &str = "longest_us";
const AMPLIFICATION: &str = "amplification";
/// Segments freed for each one that is opened.
const FREED: &str = "freed";

/// Measures all depths, and prints the table.
pub fn measure(args: &SteadyArgs, share: f64) -> Result<()> {
    let of = format!("log steady {} {:?} {:?} {share}", args.size, args.create_arg, args.serve_arg);
    let mut experiment = args.run.experiment(&of)?;
    experiment.describe(&format!(
        "Disks of {} MiB; 4 KiB random writes, {RUN_SECONDS} s each, each run on the log image \
         behind {UNMEASURED} unmeasured writes at QD{UNMEASURED_DEPTH}.",
        args.size >> 20
    ));
    let mut log = full_log(args, share)?;
    // Not beside the log image by name: sockets are called as their images are.
    let raw = args.run.dir.join("beside.raw");
    let socket = raw.with_extension("sock");
    args.place.create::<&str>(&raw, RAW, args.size, &[])?;
    let mut server = args.place.serve(&raw, &socket, 1, &[])?;
    log.fill(&socket)?;
    log.fill(&log.socket)?;
    log.overwrite(None, args.before * args.size / BLOCK_BYTES)?;
    for _ in 0..args.run.rounds {
        for (name, depth) in DEPTHS {
            log.daemon.signal(Signal::STOP)?;
            let load = LoadOptions { server_pid: Some(server.pid()), ..load(&socket, depth) };
            let report = log.load(load);
            log.daemon.signal(Signal::CONT)?;
            experiment.add(name, RAW, &figures_of(&report?));
            experiment.add(name, LOG, &steady(&log, depth)?);
            args.run.save(&experiment)?;
        }
    }
    log.remove()?;
    stop(&mut server)?;
    remove(&raw)?;
    args.run.publish(render, &experiment)
}

/// Makes an image with this share.
fn full_log(args: &SteadyArgs, share: f64) -> Result<Disk<'_>> {
    let image = args.run.dir.join(IMAGE);
    let reserve = reserve_for(&args.place, &image, args.size, &args.create_arg, share)?;
    let log = Disk::make(args, args.size, &["--reserve".to_owned(), reserve.to_string()])?;
    ensure!(
        (log.live_share - share).abs() <= ERROR_MAX,
        "{:.1} % of an image of {} MiB are live, not {:.0} %: give a larger --size",
        log.live_share * 100.0,
        args.size >> 20,
        share * 100.0
    );
    Ok(log)
}

fn load(socket: &std::path::Path, depth: u16) -> LoadOptions {
    let load = LoadOptions::new(socket).workload("randwrite").iodepth(depth);
    LoadOptions { limit: timed(RUN_SECONDS), ..load }
}

/// Measures the log image.
fn steady(log: &Disk<'_>, depth: u16) -> Result<Figures> {
    log.load(load(&log.socket, UNMEASURED_DEPTH).ops(UNMEASURED))?;
    let before = log.counts()?;
    let measured = load(&log.socket, depth);
    let report = log.load(LoadOptions { server_pid: Some(log.daemon.pid()), ..measured })?;
    let after = log.counts()?;
    let more =
        |count: &str| -> Result<f64> { Ok(number(&after, count)? - number(&before, count)?) };
    ensure!(more("guest_blocks")? >= report.ops as f64, "the log image was not written");
    let cleaned = more("cleaned_segments")?;
    let mut figures = figures_of(&report);
    let parts = Parts::of(&after)?.figures_since(&Parts::of(&before)?);
    figures.push((FREED, cleaned / (cleaned + more("segments_used")?)));
    figures.push((LIVE_PERCENT, log.live_share * 100.0));
    figures.extend(parts);
    Ok(figures)
}

fn figures_of(report: &LoadReport) -> Figures {
    let mut all = figures(report);
    let latency = report.latency;
    all.extend([(P9999_US, latency.p9999_us), (LONGEST_US, latency.longest_us)]);
    all
}

/// Returns the table.
pub fn render(experiment: &Experiment) -> String {
    let row = |(name, _): &(&str, u16)| {
        let [raw, log] = [RAW, LOG].map(|image| experiment.at(name, image));
        let model = log.median(LIVE_PERCENT).map_or(f64::NAN, |live| greedy(live / 100.0));
        let mut row = vec![(*name).to_owned(), log.cell(LIVE_PERCENT, 1)];
        for (figure, decimals) in
            [(IOPS, 0), (P99_US, 0), (P9999_US, 0), (LONGEST_US, 0), (CPU_US, 2)]
        {
            row.extend([raw.cell(figure, decimals), log.cell(figure, decimals)]);
            row.push(log.ratio(raw, figure));
        }
        let over = |amplification: f64| format!("{:.2}", amplification / model);
        row.extend([log.cell(FREED, 2), log.cell(AMPLIFICATION, 3), format!("{model:.2}")]);
        row.push(log.median(AMPLIFICATION).map_or_else(|| "-".to_owned(), over));
        row
    };
    let titles = "4 KiB random writes | live % | writes/s: raw | log | ratio | p99, us: raw | log \
                  | ratio | p99.99, us: raw | log | ratio | longest, us: raw | log | ratio | CPU \
                  us/IO: raw | log | ratio | segments freed for each opened | amplification | \
                  model | ratio";
    table(titles, DEPTHS.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flowstone_experiment::host::Host;

    #[test]
    fn a_row_compares_with_the_raw_image_and_with_the_model() {
        let mut experiment = Experiment::new("test", Host::default());
        experiment.add("QD32", RAW, &[(IOPS, 100.0), (P99_US, 10.0)]);
        let log = [(IOPS, 150.0), (P99_US, 20.0), (LIVE_PERCENT, 80.0), (AMPLIFICATION, 5.38)];
        experiment.add("QD32", LOG, &log);
        let text = render(&experiment);
        let row = text.lines().find(|line| line.starts_with("| QD32")).unwrap();
        assert!(row.contains("| 80.0 | 100 | 150 | 1.500 | 10 | 20 | 2.000 |"), "{row}");
        assert!(row.ends_with("| 5.380 | 2.69 | 2.00 |"), "{row}");
    }
}
