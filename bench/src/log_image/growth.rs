//! The costs of a map that grows with the disk: its memory, the time until a large image is served
//! after a clean stop and after a kill with the longest replay, and that of the largest checkpoint.
//!
//! The disks are written with zeroes, so a compressing device (zram) has room for disks that no
//! other one of this machine has; headers and maps are as on any.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use flowstone_block::parse_size;
use flowstone_experiment::command::number;
use flowstone_experiment::plot::{Axes, Lines, draw};
use flowstone_experiment::{Experiment, Figures, interval, table, thousands};
use flowstone_testkit::Daemon;
use flowstone_testkit::load::{Completion, LoadOptions};

use crate::idle::{ANONYMOUS_MIB, figure_of};
use crate::place::{BLOCK_BYTES, Place, drive, remove, stats, stop, whole};
use crate::run::Run;

/// Options.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("rounds", |rounds| rounds.default_value("3")))]
pub struct GrowthArgs {
    /// Sizes of the disks, all of which are full.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "4G,16G,64G,256G,400G",
        value_parser = parse_size
    )]
    sizes: Vec<u64>,
    #[command(flatten)]
    run: Run,
    #[command(flatten)]
    place: Place,
}

const FILL_BYTES: u64 = 1 << 20;
/// Part of a checkpoint's interval, in percent, that is written before a stop or a kill, without
/// headers: there is no checkpoint in it, and nearly all leaves of the map change.
const WRITTEN_PERCENT: u64 = 80;
/// A checkpoint is made 20 s after the last write.
const CHECKPOINT_TIME: Duration = Duration::from_secs(60);

const IMAGE: &str = "log";
const MAP_MIB: &str = "map_mib";
const STOP_S: &str = "stop_s";
const CHECKPOINT_MIB: &str = "checkpoint_mib";
const OPEN_S: &str = "open_s";
const REPLAY_S: &str = "replay_s";
const TIMES: [(&str, &str); 3] = [
    (STOP_S, "stop, with a checkpoint of all leaves"),
    (OPEN_S, "open after a stop"),
    (REPLAY_S, "open after a kill"),
];

/// Measures all sizes, and prints the table.
pub fn measure(args: &GrowthArgs) -> Result<()> {
    let mut experiment = args.run.experiment("log growth")?;
    for size in &args.sizes {
        let image = args.run.dir.join("growth.flow");
        let disk = Disk { place: &args.place, image, size: *size };
        disk.fill(&[], *size)?;
        for _ in 0..args.run.rounds {
            experiment.add(&(size / BLOCK_BYTES).to_string(), IMAGE, &disk.round()?);
            args.run.save(&experiment)?;
        }
        remove(&disk.image)?;
    }
    args.run.publish(render, &experiment)
}

/// Draws the times over the size.
pub fn plot(path: &Path, experiment: &Experiment) -> Result<()> {
    let below = experiment.host().sentence();
    let axes = Axes { x: "blocks of 4 KiB, millions", y: "seconds", is_log: true, below };
    draw(path, &axes, &lines(experiment))
}

/// Returns the table.
pub fn render(experiment: &Experiment) -> String {
    let row = |point: &str| {
        let at = experiment.at(point, IMAGE);
        vec![
            thousands(point.parse().unwrap_or(f64::NAN)),
            at.cell(MAP_MIB, 1),
            at.cell(ANONYMOUS_MIB, 0),
            at.cell(CHECKPOINT_MIB, 0),
            interval(at.all(STOP_S)),
            interval(at.all(OPEN_S)),
            interval(at.all(REPLAY_S)),
        ]
    };
    let titles = "blocks | map, MiB | memory of the daemon, MiB | checkpoint of all leaves, MiB | \
                  stop with it, s | open after it, s | open after a kill, s";
    let rows = experiment.points().into_iter().map(row);
    table(titles, rows)
}

/// Returns the medians of the times over the millions of blocks.
fn lines(experiment: &Experiment) -> Lines {
    let line = |(figure, name): (&str, &str)| {
        let point = |point: &&str| {
            let millions = point.parse::<f64>().ok()? / 1e6;
            Some((millions, experiment.at(point, IMAGE).median(figure)?))
        };
        (name.to_owned(), experiment.points().iter().filter_map(point).collect())
    };
    TIMES.into_iter().map(line).collect()
}

/// A disk.
pub(super) struct Disk<'a> {
    pub(super) place: &'a Place,
    pub(super) image: PathBuf,
    pub(super) size: u64,
}

impl Disk<'_> {
    /// Makes it, and writes its first bytes in sequence.
    pub(super) fn fill(&self, options: &[String], bytes: u64) -> Result<()> {
        self.place.create_log(&self.image, self.size, options)?;
        let (mut daemon, _) = self.start()?;
        self.load("write", FILL_BYTES, bytes, bytes)?;
        stop(&mut daemon)
    }

    fn round(&self) -> Result<Figures> {
        // A checkpoint is due after 256 MiB to 4 GiB, within that after 20 times the size of the
        // map, which has 8 bytes per block.
        let interval_bytes = (20 * self.size / 512).clamp(256 << 20, 4 << 30);
        let written = interval_bytes * WRITTEN_PERCENT / 100;
        let (mut daemon, _) = self.start()?;
        self.load("randwrite", BLOCK_BYTES, written, self.size)?;
        let begin = Instant::now();
        stop(&mut daemon)?;
        let stop_s = begin.elapsed().as_secs_f64();
        let (mut daemon, open_s) = self.start()?;
        let map_bytes = self.count("map_memory_bytes")?;
        let anonymous_kib = figure_of(daemon.pid(), "status", "RssAnon:")?;
        self.load("randwrite", BLOCK_BYTES, written, self.size)?;
        let checkpoint = self.checkpoint_blocks()?;
        self.load("randwrite", BLOCK_BYTES, written, self.size)?;
        daemon.kill()?;
        let (mut daemon, replay_s) = self.start()?;
        stop(&mut daemon)?;
        Ok(vec![
            (ANONYMOUS_MIB, anonymous_kib / 1024.0),
            (MAP_MIB, map_bytes / f64::from(1 << 20)),
            (CHECKPOINT_MIB, checkpoint * BLOCK_BYTES as f64 / f64::from(1 << 20)),
            (STOP_S, stop_s),
            (OPEN_S, open_s),
            (REPLAY_S, replay_s),
        ])
    }

    /// Waits for the checkpoint that follows a load, and returns the blocks of maps in it.
    fn checkpoint_blocks(&self) -> Result<f64> {
        let (blocks, number) = (self.count("map_blocks")?, self.count("checkpoint")?);
        let begin = Instant::now();
        while self.count("checkpoint")? == number {
            ensure!(begin.elapsed() < CHECKPOINT_TIME, "there was no checkpoint after the load");
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(self.count("map_blocks")? - blocks)
    }

    fn socket(&self) -> PathBuf {
        self.image.with_extension("sock")
    }

    fn control(&self) -> PathBuf {
        self.image.with_extension("control")
    }

    /// Returns a daemon that is ready, and its start-up time in seconds.
    pub(super) fn start(&self) -> Result<(Daemon, f64)> {
        let more = ["--control", &self.control().display().to_string()];
        let begin = Instant::now();
        let daemon = self.place.serve(&self.image, &self.socket(), 1, &more)?;
        Ok((daemon, begin.elapsed().as_secs_f64()))
    }

    /// Writes `bytes` into the first `span_bytes`.
    pub(super) fn load(
        &self,
        rw: &str,
        block_bytes: u64,
        bytes: u64,
        span_bytes: u64,
    ) -> Result<()> {
        let load = self.place.load(&self.socket(), rw, 32);
        drive(&LoadOptions {
            span_bytes,
            completion: Completion::Eventfd,
            zero_data: true,
            ..whole(load, block_bytes, bytes)
        })
        .map(drop)
    }

    /// Returns a count of `stats` about the image.
    pub(super) fn count(&self, key: &str) -> Result<f64> {
        let stats = stats(&self.place.program()?, &self.control())?;
        number(&stats["disks"][0]["log"], key)
    }
}
