//! Overhead of a file cache without cache hits: the same work through the mount and on the files
//! themselves, alternating, each with the same file and on the same CPU.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use flowstone_experiment::{Experiment, table};
use flowstone_testkit::fuse::FuseHost;
use flowstone_testkit::process::pin_current_thread;

use super::{Mounted, Places};
use crate::idle::figure_of;

/// Size of the files that are read and written.
const FILE: u64 = 64 << 20;
const MIB: usize = 1 << 20;
/// Round trip to a remote source, and its number of files.
const FAR: Duration = Duration::from_millis(1);
const FAR_FILES: u32 = 2_000;
/// Files in the folder that is listed.
const FILES: u32 = 100_000;
/// Opens that are timed together.
const OPENS: u32 = 2000;

/// Options.
#[derive(Clone, Debug, Args)]
pub struct SpeedArgs {
    /// A local folder as the source [default: one for temporary files].
    #[arg(long)]
    dir: Option<PathBuf>,
}

type Work = fn(&Path) -> Result<()>;

const OURS: &str = "through the mount";
const THEIRS: &str = "the file itself";
const MS: &str = "ms";

/// One round of the points.
struct Round<'a> {
    experiment: &'a mut Experiment,
    number: usize,
}

impl Round<'_> {
    /// Does the same work in both places, alternating which one is first.
    fn measure(&mut self, point: &str, work: Work, ours: &Path, theirs: &Path) -> Result<()> {
        self.measure_after(|| Ok(()), point, work, ours, theirs)
    }

    /// The same, after `prepare` before each.
    fn measure_after(
        &mut self,
        prepare: fn() -> Result<()>,
        point: &str,
        work: Work,
        ours: &Path,
        theirs: &Path,
    ) -> Result<()> {
        self.experiment.turn(self.number, point, &[(OURS, ours), (THEIRS, theirs)], |path| {
            prepare()?;
            Ok(vec![(MS, time(work, path)? * 1e3)])
        })
    }
}

/// Measures.
pub fn speed(
    args: &SpeedArgs,
    program: &Path,
    rounds: usize,
    experiment: &mut Experiment,
) -> Result<()> {
    let places = Places::new(&["mount", "plain"])?;
    let source = match &args.dir {
        Some(dir) => tempfile::tempdir_in(dir)?,
        None => tempfile::tempdir()?,
    };
    // At the same depth as the mounts.
    let source = source.path().join("source");
    fs::create_dir(&source)?;
    let source = source.as_path();
    let on_tmpfs = tempfile::NamedTempFile::new_in("/dev/shm").context("a file on tmpfs")?;
    write_whole(on_tmpfs.path(), FILE)?;
    make_files(source)?;
    // The large file does not fit as a copy.
    let options = ["--memory", "100M", "--policy", "multicache"];
    let mounted = Mounted::start(program, &[], source, &places.at("mount"), &options)?;
    let plain_only = [&options[..], &["--modes", "plain", "--xattrs"]].concat();
    let plain = Mounted::start(program, &[], source, &places.at("plain"), &plain_only)?;
    mounted.copy(&["copied".into(), "small".into()], 2);
    pin_current_thread(&[1])?;
    for number in 0..rounds {
        let round = &mut Round { experiment: &mut *experiment, number };
        measure_all(round, &mounted.at, &plain.at, source, on_tmpfs.path())?;
    }
    measure_far(experiment, program, rounds)?;
    let opens = mounted.stats()?["opens"].clone();
    let used = |mode: &str| opens[mode].as_u64().unwrap_or(0) > u64::from(OPENS);
    ensure!(used("copy") && used("source"), "files were opened in other modes: {opens}");
    let mib = figure_of(mounted.daemon.pid(), "status", "RssAnon:")? / 1024.0;
    experiment.describe(&format!("Memory of the daemon with {FILES} files known: {mib:.0} MiB."));
    plain.end()?;
    mounted.end()
}

/// Renders the table.
pub fn render(experiment: &Experiment) -> String {
    let rows = experiment.points().into_iter().map(|point| {
        let [ours, theirs] = [OURS, THEIRS].map(|place| experiment.at(point, place));
        vec![point.to_owned(), ours.spread(MS, 2), theirs.cell(MS, 2), theirs.ratio(ours, MS)]
    });
    let titles = "work | through the mount, ms | the file itself, ms | speed, part of its own";
    table(titles, rows)
}

fn make_files(source: &Path) -> Result<()> {
    write_whole(&source.join("copied"), FILE)?;
    write_whole(&source.join("large"), 2 * FILE)?;
    write_whole(&source.join("small"), 4096)?;
    let many = source.join("many");
    fs::create_dir(&many)?;
    (0..FILES).try_for_each(|file| File::create(many.join(file.to_string())).map(drop))?;
    Ok(())
}

fn measure_all(
    points: &mut Round<'_>,
    mount: &Path,
    plain: &Path,
    source: &Path,
    on_tmpfs: &Path,
) -> Result<()> {
    let (copied, large, small) = (mount.join("copied"), source.join("large"), source.join("small"));
    points.measure("Copy, 1 MiB reads, to tmpfs", read_large, &copied, on_tmpfs)?;
    points.measure("Copy, 4 KiB random reads, to tmpfs", read_random, &copied, on_tmpfs)?;
    points.measure("Source, 1 MiB reads", read_large, &mount.join("large"), &large)?;
    points.measure("Source, 4 KiB random reads", read_random, &mount.join("large"), &large)?;
    points.measure("Source, 4 KiB writes", write_small, &mount.join("large"), &large)?;
    points.measure("Copy, open and close", open_close, &mount.join("small"), &small)?;
    points.measure("Source, open and close", open_close, &mount.join("large"), &large)?;
    points.measure("Plain, open and close", open_close, &plain.join("small"), &small)?;
    points.measure("stat", stat, &mount.join("small"), &small)?;
    let [ours, with, theirs] = [mount, plain, source].map(|folder| folder.join("many"));
    points.measure_after(drop_caches, "ls -l, cold", list, &ours, &theirs)?;
    [&ours, &theirs].into_iter().try_for_each(|folder| list(folder))?;
    points.measure("ls -l, again", list, &ours, &theirs)?;
    points.measure_after(drop_caches, "ls -l, cold, --xattrs", list, &with, &theirs)?;
    [&with, &theirs].into_iter().try_for_each(|folder| list(folder))?;
    points.measure("ls -l, again, --xattrs", list, &with, &theirs)
}

/// Measures a folder whose source answers slowly.
fn measure_far(experiment: &mut Experiment, program: &Path, rounds: usize) -> Result<()> {
    let places = Places::new(&["behind", "source", "mount"])?;
    (0..FAR_FILES)
        .try_for_each(|file| File::create(places.at("behind").join(file.to_string())).map(drop))?;
    let (source, mount) = (places.at("source"), places.at("mount"));
    let host = FuseHost::mount(&source, &places.at("behind")).context("mount a source")?;
    let options = ["--memory", "64M"];
    let mounted = Mounted::start(program, &[], &source, &mount, &options)?;
    host.link(FAR, 0);
    for number in 0..rounds {
        let mut round = Round { experiment: &mut *experiment, number };
        round.measure_after(drop_caches, "ls -l, cold, 1 ms away", list, &mount, &source)?;
    }
    host.link(Duration::ZERO, 0);
    mounted.end()
}

fn write_whole(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::create(path)?;
    let mib = vec![b'x'; bytes.min(MIB as u64) as usize];
    for _ in 0..bytes.div_ceil(MIB as u64) {
        file.write_all(&mib)?;
    }
    Ok(())
}

fn time(work: Work, path: &Path) -> Result<f64> {
    let start = Instant::now();
    work(path).with_context(|| path.display().to_string())?;
    Ok(start.elapsed().max(Duration::from_nanos(1)).as_secs_f64())
}

fn read_large(path: &Path) -> Result<()> {
    let file = File::open(path)?;
    let mut buffer = vec![0; MIB];
    for pass in 0..8 * (FILE / MIB as u64) {
        file.read_exact_at(&mut buffer, pass % (FILE / MIB as u64) * MIB as u64)?;
    }
    Ok(())
}

fn read_random(path: &Path) -> Result<()> {
    let file = File::open(path)?;
    let mut buffer = vec![0; 4096];
    let mut rng = fastrand::Rng::with_seed(7);
    for _ in 0..50_000 {
        file.read_exact_at(&mut buffer, rng.u64(0..FILE / 4096) * 4096)?;
    }
    Ok(())
}

fn write_small(path: &Path) -> Result<()> {
    let file = File::options().write(true).open(path)?;
    let mut rng = fastrand::Rng::with_seed(7);
    for _ in 0..20_000 {
        file.write_all_at(&[b'y'; 4096], rng.u64(0..FILE / 4096) * 4096)?;
    }
    Ok(())
}

fn open_close(path: &Path) -> Result<()> {
    for _ in 0..OPENS {
        File::open(path)?;
    }
    Ok(())
}

fn stat(path: &Path) -> Result<()> {
    for _ in 0..10 * OPENS {
        fs::symlink_metadata(path)?;
    }
    Ok(())
}

fn list(path: &Path) -> Result<()> {
    let listed = Command::new("ls").arg("-l").arg(path).stdout(Stdio::null()).status()?;
    ensure!(listed.success(), "ls ended with {listed}");
    Ok(())
}

/// Drops names and attributes from the kernel's caches.
fn drop_caches() -> Result<()> {
    fs::write("/proc/sys/vm/drop_caches", "2").context("drop caches")
}
