//! `flowstone-bench writers`: eight concurrent writers, as measured in the paper on reshaping
//! writes (8 threads, sequential and random, 4 KiB, QD64 each), on a raw and on a log image, beside
//! qemu-storage-daemon and fio, on several file systems and schedulers of the host.
//!
//! Each environment is set up and removed by the command itself, which says why one is not
//! available; its row says that it was not measured.

mod environment;
mod table;

pub use self::table::render;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use flowstone_experiment::{Experiment, Figures, figures};
use flowstone_testkit::load::Completion;

use crate::place::{BLOCK_BYTES, Place, remove};
use crate::raw_file::fill;
use crate::run::{Run, choose};
use crate::server::{fio, of_image};
use environment::{ENVIRONMENTS, Environment, Ground};

/// Options.
#[derive(Clone, Debug, Args)]
pub struct WritersArgs {
    /// Only environments whose name contains this; may be given several times.
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    #[command(flatten)]
    run: Run,
    #[command(flatten)]
    place: Place,
}

/// Bytes that each writer writes on the file system of DIR, and on the others.
const JOB_BYTES: u64 = 1 << 30;
const SMALL_JOB_BYTES: u64 = 128 << 20;
/// Rest between two measurements.
const PAUSE: Duration = Duration::from_secs(1);
const WRITERS: usize = 8;
const IODEPTH: u16 = 64;

/// The access patterns of the writers.
const PATTERNS: [&str; 2] = ["write", "randwrite"];

/// The measured configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Raw,
    OneRaw,
    Log,
    Qsd,
    Fio,
}

const CONFIGURATIONS: [(&str, Who); 5] = [
    ("raw", Who::Raw),
    ("one raw writer", Who::OneRaw),
    ("log", Who::Log),
    ("QSD", Who::Qsd),
    ("fio", Who::Fio),
];

/// Carries out the subcommand.
pub fn writers(args: &WritersArgs) -> Result<()> {
    let chosen = choose(&ENVIRONMENTS, &args.only, |it| it.name)?;
    let mut experiment = args.run.experiment("writers")?;
    let dir = args.run.dir.canonicalize()?;
    for environment in &chosen {
        if let Err(error) = in_environment(args, environment, &dir, &mut experiment) {
            eprintln!("{} is not measured: {error:#}", environment.name);
        }
        args.run.save(&experiment)?;
    }
    args.run.publish(render, &experiment)
}

/// Measures everything in one environment, which is removed even on failure.
fn in_environment(
    args: &WritersArgs,
    environment: &Environment,
    dir: &Path,
    experiment: &mut Experiment,
) -> Result<()> {
    let job = if environment.is_small() { SMALL_JOB_BYTES } else { JOB_BYTES };
    let ground = environment.set_up(dir, WRITERS as u64 * job)?;
    let done = measure_all(args, environment, &ground, job, experiment);
    // An error of the measurement takes precedence over one of the removal.
    let taken_down = ground.take_down();
    done.and(taken_down)
}

fn measure_all(
    args: &WritersArgs,
    environment: &Environment,
    ground: &Ground,
    job: u64,
    experiment: &mut Experiment,
) -> Result<()> {
    fill(raw(ground.dir()), WRITERS as u64 * job)?;
    let points = PATTERNS.map(|rw| (point(environment.name, rw), rw));
    experiment.run(args.run.rounds, &points, &CONFIGURATIONS, |rw, who| {
        let figures = match who {
            Who::Fio => measure_fio(args, environment, ground.dir(), rw, job),
            _ => measure(args, environment, ground.dir(), *who, rw, job),
        };
        std::thread::sleep(PAUSE);
        figures
    })
}

fn point(environment: &str, rw: &str) -> String {
    format!("{environment} {rw}")
}

fn raw(dir: &Path) -> PathBuf {
    dir.join("writers.raw")
}

fn measure(
    args: &WritersArgs,
    environment: &Environment,
    dir: &Path,
    who: Who,
    rw: &str,
    job: u64,
) -> Result<Figures> {
    let disk = WRITERS as u64 * job;
    let queues = if who == Who::OneRaw { 1 } else { WRITERS };
    let image = if who == Who::Log { dir.join("writers.flow") } else { raw(dir) };
    if who == Who::Log {
        args.place.create_log(&image, disk, &[])?;
    }
    let socket = args.run.dir.join("writers.sock");
    let format = if who == Who::Log { "log" } else { "raw" };
    let (is_peer, is_cached) = (who == Who::Qsd, environment.is_buffered());
    let of = (format, image.as_path());
    let (command, end) = of_image(&args.place, is_peer, of, &socket, queues, is_cached)?;
    let mut load = args.place.load(&socket, rw, IODEPTH);
    load.client = load.client.queues(queues);
    (load.completion, load.parts) = (Completion::Eventfd, true);
    load.span_bytes = queues as u64 * job;
    let load = load.ops(queues as u64 * job / BLOCK_BYTES);
    let report = args.place.measure(command, &[load], end)?;
    if who == Who::Log {
        remove(&image)?;
    }
    Ok(figures(&report))
}

/// Measures eight jobs of fio on the raw image itself.
fn measure_fio(
    args: &WritersArgs,
    environment: &Environment,
    dir: &Path,
    rw: &str,
    job: u64,
) -> Result<Figures> {
    let arguments = fio::Job {
        image: &raw(dir),
        direct: !environment.is_buffered(),
        rw,
        block_bytes: BLOCK_BYTES,
        iodepth: IODEPTH,
        cpu: args.place.client_cpu,
    };
    let mut arguments = arguments.arguments();
    arguments.extend([
        format!("--numjobs={WRITERS}"),
        format!("--size={job}"),
        format!("--offset_increment={job}"),
        "--thread".to_owned(),
        "--group_reporting".to_owned(),
    ]);
    fio::run(&arguments)
}
