//! The time until a daemon serves a large image: after a clean stop, and after a kill with the
//! longest possible replay.

use flowstone_block::parse_size;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use flowstone_experiment::{interval, table};
use flowstone_testkit::Daemon;
use flowstone_testkit::load::{Completion, LoadOptions};

use crate::place::{Place, drive, remove, stop, whole};
use crate::run::Run;

/// Options.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("rounds", |rounds| {
    rounds.default_value("3").help("Number of opens after a clean stop")
}))]
pub struct OpenArgs {
    /// Size of the disk.
    #[arg(long, default_value = "100G", value_parser = parse_size)]
    size: u64,
    /// Bytes of the disk that are written before the opens.
    #[arg(long, default_value = "20G", value_parser = parse_size)]
    live: u64,
    #[command(flatten)]
    run: Run,
    #[command(flatten)]
    place: Place,
}

/// Progress of the killed daemon between two checkpoints: shares of the appended bytes, in percent,
/// without headers.
const KILLED_AT: [u64; 4] = [20, 50, 80, 90];

const SECONDS: &str = "seconds";

/// Measures times from start to ready.
pub fn measure(options: &OpenArgs) -> Result<()> {
    let OpenArgs { size, live, run, place } = options;
    let mut experiment = run.experiment(&format!("log open {size} {live}"))?;
    let image = run.dir.join("open.flow");
    place.create_log(&image, *size, &[])?;
    let mut daemon = start(options, &image)?.0;
    load(options, "write", 128 << 10, *live)?;
    stop(&mut daemon)?;
    let mut open = |point: &str| -> Result<()> {
        let (mut daemon, seconds) = start(options, &image)?;
        experiment.add(point, "log", &[(SECONDS, seconds)]);
        stop(&mut daemon)
    };
    for _ in 0..run.rounds {
        open("after a clean stop")?;
    }
    // A checkpoint is due after 256 MiB to 4 GiB, within that after 20 times the size of the map,
    // which has 8 bytes per block.
    let interval_bytes = (20 * live / 512).clamp(256 << 20, 4 << 30);
    for percent in KILLED_AT {
        let mut daemon = start(options, &image)?.0;
        load(options, "randwrite", 4096, interval_bytes * percent / 100)?;
        daemon.kill()?;
        open(&format!("after a kill, {percent} % of a checkpoint's interval written"))?;
    }
    let rows = experiment
        .points()
        .into_iter()
        .map(|point| vec![point.to_owned(), interval(experiment.at(point, "log").all(SECONDS))]);
    run.publish("open", &table("open | seconds", rows), &experiment)?;
    remove(&image)
}

/// Returns a daemon that is ready, and its start-up time in seconds.
fn start(options: &OpenArgs, image: &Path) -> Result<(Daemon, f64)> {
    let socket = options.run.dir.join("bench.sock");
    let direct = ["--direct", "on"].map(str::to_owned);
    let begin = Instant::now();
    let daemon = options.place.serve(image, &socket, 1, &direct)?;
    Ok((daemon, begin.elapsed().as_secs_f64()))
}

fn load(options: &OpenArgs, rw: &str, block_bytes: u64, bytes: u64) -> Result<()> {
    let load = options.place.load(&options.run.dir.join("bench.sock"), rw, 32);
    drive(&LoadOptions {
        span_bytes: options.live,
        completion: Completion::Eventfd,
        ..whole(load, block_bytes, bytes)
    })
    .map(drop)
}
