//! First reads, after a restart, of files used before it: with the copies in a folder still there,
//! and without.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use flowstone_experiment::{Experiment, table};
use flowstone_testkit::fuse::FuseHost;

use super::{BANDWIDTH, Mounted, Places, ROUND_TRIP};

const FILES: u64 = 100;
const FILE_BYTES: usize = 256 << 10;
const POINT: &str = "first reads after a restart";
const SECONDS: &str = "seconds";

const CONTENDERS: [(&str, bool); 2] = [("with copies and history", true), ("without", false)];

/// Measures.
pub fn again(program: &Path, rounds: usize, experiment: &mut Experiment) -> Result<()> {
    experiment.describe("A source 1 ms and 100 Mbit/s away, 100 files of 256 KiB.");
    experiment.run(rounds, &[(POINT, ())], &CONTENDERS, |(), keeps| {
        Ok(vec![(SECONDS, first_pass(program, *keeps)?.as_secs_f64())])
    })
}

/// Renders the table.
pub fn render(experiment: &Experiment) -> String {
    let [with, without] = CONTENDERS.map(|(name, _)| experiment.at(POINT, name));
    let row = [with.spread(SECONDS, 3), without.spread(SECONDS, 3), without.ratio(with, SECONDS)];
    let titles = "files | with copies and history, s | without, s | speed, ratio";
    table(titles, [[&[POINT.to_owned()][..], &row].concat()])
}

/// Returns the time that a second mount takes to read the files used by the first one.
fn first_pass(program: &Path, keeps: bool) -> Result<Duration> {
    let places = Places::new(&["behind", "source", "mount", "copies", "state"])?;
    let (source, mount) = (places.at("source"), places.at("mount"));
    let names: Vec<_> = (0..FILES).map(|file| file.to_string()).collect();
    for name in &names {
        fs::write(places.at("behind").join(name), vec![b'x'; FILE_BYTES])?;
    }
    let host = FuseHost::mount_source(&source, &places.at("behind")).context("mount a source")?;
    let (copies, state) = (places.at("copies"), places.at("state"));
    let (copies, state) = (copies.to_string_lossy(), state.to_string_lossy());
    let kept = ["--dir", &copies, "--size", "4G", "--state", &state];
    let options: &[&str] = if keeps { &kept } else { &["--memory", "64M"] };
    let first = Mounted::start(program, &[], &source, &mount, options)?;
    if keeps {
        first.copy(&names, FILES);
    }
    first.end()?;
    host.link(ROUND_TRIP, BANDWIDTH);
    let second = Mounted::start(program, &[], &source, &mount, options)?;
    let start = Instant::now();
    for name in &names {
        let read = fs::read(mount.join(name))?.len();
        ensure!(read == FILE_BYTES, "{name} has {read} bytes");
    }
    let time = start.elapsed();
    host.recover();
    second.end()?;
    Ok(time)
}
