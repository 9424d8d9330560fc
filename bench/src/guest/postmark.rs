//! `flowstone-bench guest postmark`: throughput with a guest's file cache in front of slow shared
//! storage, by the cached share of the files (Figs. 4 and 5 of the MultiCache paper).
//!
//! The source is a FUSE server behind a simulated link. Files are read whole, sequentially, and new
//! ones are written in between. An uncached file is read only once, so that it is in no cache;
//! cached ones were read before the measurement.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use flowstone_experiment::{Experiment, table};
use flowstone_testkit::fuse::FuseHost;

use super::{BANDWIDTH, Mounted, Places, ROUND_TRIP};

/// Number of cached files.
const CACHED: u64 = 16;
/// Shares of reads of cached files, in percent; the first one is the baseline.
const PARTS: [u64; 5] = [0, 10, 20, 50, 80];

/// Bytes that are read and written at each point.
const BYTES: u64 = 100 << 20;

/// A kind of load.
#[derive(Clone, Copy, Debug)]
struct Load {
    file_bytes: u64,
    /// Share of reads in percent; the rest are writes of new files.
    read_share: u64,
}

const LOADS: [Load; 6] = [
    Load { file_bytes: 1 << 20, read_share: 100 },
    Load { file_bytes: 1 << 20, read_share: 80 },
    Load { file_bytes: 1 << 20, read_share: 50 },
    Load { file_bytes: 4 << 10, read_share: 100 },
    Load { file_bytes: 4 << 10, read_share: 80 },
    Load { file_bytes: 4 << 10, read_share: 50 },
];

const MB_PER_S: &str = "mb_per_s";

/// Measures.
pub fn postmark(program: &Path, rounds: usize, experiment: &mut Experiment) -> Result<()> {
    let points = LOADS.map(|load| (load.name(), load));
    let contenders = PARTS.map(|part| (cached(part), part));
    experiment.run(rounds, &points, &contenders, |load, part| {
        Ok(vec![(MB_PER_S, measure(program, *load, *part)?)])
    })
}

/// Returns the name of a share of cached reads.
fn cached(part: u64) -> String {
    format!("{part} % cached")
}

/// Renders the table.
pub fn render(experiment: &Experiment) -> String {
    let rows = LOADS.iter().map(|load| {
        let (point, none) = (load.name(), cached(PARTS[0]));
        let none = experiment.at(&point, &none);
        let ratio = |part: &u64| experiment.at(&point, &cached(*part)).ratio(none, MB_PER_S);
        let row = [point.clone(), none.cell(MB_PER_S, 2)];
        row.into_iter().chain(PARTS[1..].iter().map(ratio)).collect()
    });
    let titles = "files, reads | none cached, MB/s | 10 % | 20 % | 50 % | 80 % of the reads cached";
    table(titles, rows)
}

impl Load {
    fn name(&self) -> String {
        format!("{} KiB, {} % reads", self.file_bytes >> 10, self.read_share)
    }
}

/// Returns bytes per microsecond: MB/s.
fn measure(program: &Path, load: Load, part: u64) -> Result<f64> {
    let places = Places::new(&["behind", "source", "mount"])?;
    let at = |name: &str| places.at(name);
    let operations = (BYTES / load.file_bytes).clamp(16, 400);
    for number in 0..operations + CACHED {
        fs::write(at("behind").join(number.to_string()), vec![b'x'; load.file_bytes as usize])?;
    }
    let host = FuseHost::mount_source(&at("source"), &at("behind")).context("mount a source")?;
    let options = ["--policy", "multicache", "--memory", "64M"];
    let mounted = Mounted::start(program, &[], &at("source"), &at("mount"), &options)?;
    let cached: Vec<_> = (operations..operations + CACHED).map(|file| file.to_string()).collect();
    mounted.copy(&cached, CACHED);
    host.link(ROUND_TRIP, BANDWIDTH);
    let start = Instant::now();
    let (mut fresh, mut reads) = (0..operations, 0..);
    for operation in 0..operations {
        let path = if !is_of_share(operation, load.read_share) {
            fs::write(
                at("mount").join(format!("new{operation}")),
                vec![b'y'; load.file_bytes as usize],
            )?;
            continue;
        } else if is_of_share(reads.next().context("reads are counted")?, part) {
            at("mount").join((operations + operation % CACHED).to_string())
        } else {
            at("mount").join(fresh.next().context("files are left")?.to_string())
        };
        ensure!(fs::read(&path)?.len() as u64 == load.file_bytes, "{} is short", path.display());
    }
    let time = start.elapsed();
    host.recover();
    mounted.end()?;
    Ok((operations * load.file_bytes) as f64 / time.as_micros() as f64)
}

/// Returns whether `number` is selected when `percent` of each hundred numbers are, evenly spread.
fn is_of_share(number: u64, percent: u64) -> bool {
    (number + 1) * percent / 100 > number * percent / 100
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "80 % cached" was 81, 85 and 94 % at read shares of 100, 80 and 50.
    #[test]
    fn shares_are_exact() {
        for percent in 0..=100 {
            for start in [0, 1, 37] {
                let these = (start..start + 100).filter(|it| is_of_share(*it, percent)).count();
                assert_eq!(these as u64, percent);
            }
        }
    }
}
