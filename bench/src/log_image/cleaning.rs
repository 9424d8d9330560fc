//! The time that cleaning takes with many segments in use, beside that with few.
//!
//! Both disks are overwritten in the same part, then left alone, so the same segments are cleaned.
//! The large one needs a medium as that of [`growth`](super::growth).

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use flowstone_experiment::{Experiment, Figures, table};
use flowstone_testkit::load::CpuSample;

use super::growth::Disk;
use crate::place::{BLOCK_BYTES, Place, remove, stop};
use crate::run::Run;

/// Options.
#[derive(Clone, Debug, Args)]
pub struct CleaningArgs {
    #[command(flatten)]
    run: Run,
    #[command(flatten)]
    place: Place,
}

const SEGMENT: [&str; 2] = ["--segment", "8M"];
/// Size of the disk, and bytes of it that are written in sequence.
const DISKS: [(&str, (u64, u64)); 2] =
    [("few segments", (40 << 30, 8 << 30)), ("many segments", (1 << 40, 310 << 30))];
/// The part of both that is overwritten, and the writes of a round.
const PART_BYTES: u64 = 8 << 30;
const WRITES: u64 = 3 << 20;
const POINT: &str = "cleaning";
const SEGMENTS: &str = "segments";
const COPIED: &str = "copied_blocks";
const CLEANING_US: &str = "cleaning_us";
const CPU_US: &str = "cpu_us";
/// Cleaning is over when nothing has been copied for this time; a round takes at most that long.
const QUIET: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(300);

/// Measures both disks in turn, and prints the table.
pub fn measure(args: &CleaningArgs) -> Result<()> {
    let mut experiment = args.run.experiment("log cleaning")?;
    let disks = DISKS.map(|(name, (size, data))| {
        let image = args.run.dir.join(format!("cleaning-{size}.flow"));
        (name, (Disk { place: &args.place, image, size }, data))
    });
    for (_, (disk, data)) in &disks {
        disk.fill(&SEGMENT.map(str::to_owned), *data)?;
    }
    experiment.run(args.run.rounds, &[(POINT, ())], &disks, |(), (disk, _)| round(disk))?;
    args.run.save(&experiment)?;
    disks.iter().try_for_each(|(_, (disk, _))| remove(&disk.image))?;
    args.run.publish(render, &experiment)
}

/// Overwrites the part, and waits until its segments have been cleaned.
fn round(disk: &Disk<'_>) -> Result<Figures> {
    let (mut daemon, _) = disk.start()?;
    disk.load("randwrite", BLOCK_BYTES, WRITES * BLOCK_BYTES, PART_BYTES)?;
    let segments = disk.count("segments_used")?;
    let (before, cpu) = (disk.count("copied_blocks")?, CpuSample::take(daemon.pid())?);
    let seconds = disk.count("cleaning_seconds")?;
    let (began, mut changed) = (Instant::now(), Instant::now());
    let (mut copied, mut spent) = (before, Duration::ZERO);
    while changed.elapsed() < QUIET {
        ensure!(began.elapsed() < PATIENCE, "cleaning has not ended within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(100));
        let now = disk.count("copied_blocks")?;
        if now > copied {
            (copied, changed) = (now, Instant::now());
            spent = CpuSample::take(daemon.pid())?.since(&cpu);
        }
    }
    let seconds = disk.count("cleaning_seconds")? - seconds;
    stop(&mut daemon)?;
    let blocks = copied - before;
    ensure!(blocks > 0.0, "nothing has been cleaned");
    Ok(vec![
        (SEGMENTS, segments),
        (COPIED, blocks),
        (CLEANING_US, seconds * 1e6 / blocks),
        (CPU_US, spent.as_secs_f64() * 1e6 / blocks),
    ])
}

/// Returns the table.
pub fn render(experiment: &Experiment) -> String {
    let few = experiment.at(POINT, DISKS[0].0);
    let row = |(name, _): &(&str, (u64, u64))| {
        let at = experiment.at(POINT, name);
        vec![
            (*name).to_owned(),
            at.cell(SEGMENTS, 0),
            at.cell(COPIED, 0),
            at.cell(CLEANING_US, 2),
            at.ratio(few, CLEANING_US),
            at.cell(CPU_US, 2),
            at.ratio(few, CPU_US),
        ]
    };
    let titles = "disk | segments in use | blocks copied | time for each, us | ratio | CPU time of the \
                  daemon for each, us | ratio";
    table(titles, DISKS.iter().map(row))
}
