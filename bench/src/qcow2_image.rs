//! `flowstone-bench qcow2`: qcow2 images served by Flowstone and by qemu-storage-daemon.
//!
//! Both take turns within a round, on images made alike: a new one for each measurement of fresh
//! writes, and one that was written once sequentially for everything else.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use flowstone_experiment::{Experiment, Figures, IOPS, figures, table};
use flowstone_testkit::load::{Completion, LoadOptions};

use crate::place::{create_qcow2, pass, remove, timed};
use crate::run::{Base, defaults};
use crate::server::of_image;

/// Options.
#[derive(Clone, Debug, Args)]
#[command(mut_args(defaults(&[("rounds", "3"), ("runtime", "2"), ("size", "8G")])))]
pub struct Qcow2Args {
    /// Leave the files in the page cache, to measure the daemons rather than the disk.
    #[arg(long)]
    cached: bool,
    #[command(flatten)]
    base: Base,
}

/// One workload.
struct Phase {
    /// It needs a new image.
    fresh: bool,
    rw: &'static str,
    iodepth: u16,
    queues: usize,
    flush_every: u64,
}

const fn phase(rw: &'static str, iodepth: u16, queues: usize) -> Phase {
    Phase { fresh: false, rw, iodepth, queues, flush_every: 0 }
}

/// Whether it is the peer.
const CONTENDERS: [(&str, bool); 2] = [("Flowstone", false), ("Qsd", true)];
const PHASES: [(&str, Phase); 6] = [
    ("4 KiB random write QD32, fresh image", Phase { fresh: true, ..phase("randwrite", 32, 1) }),
    ("4 KiB random read QD32, written image", phase("randread", 32, 1)),
    ("4 KiB random read QD1, written image", phase("randread", 1, 1)),
    ("4 KiB random write QD32, written image", phase("randwrite", 32, 1)),
    ("4 KiB random write 4 x QD8, written image", phase("randwrite", 8, 4)),
    (
        "the same QD32, a flush every 32 writes",
        Phase { flush_every: 32, ..phase("randwrite", 32, 1) },
    ),
];

/// Removing an image makes many small discards: the disk becomes idle after them.
const REST: Duration = Duration::from_secs(3);

/// Carries out the subcommand.
pub fn qcow2(args: &Qcow2Args) -> Result<()> {
    let of = if args.cached { "qcow2, cached" } else { "qcow2" };
    let mut experiment = args.base.experiment(of)?;
    for (_, is_peer) in CONTENDERS {
        let image = written(args, is_peer);
        create_qcow2(&image, args.base.size)?;
        load(args, is_peer, &image, |load| pass(load, "write", args.base.size))?;
    }
    let measure = |phase: &Phase, is_peer: &bool| measure(args, *is_peer, phase);
    experiment.run(args.base.run.rounds, &PHASES, &CONTENDERS, measure)?;
    experiment.describe(&format!(
        "Images of {} MiB{}, both servers on one core each and in turn, {} s a round.",
        args.base.size >> 20,
        if args.cached { " in the page cache" } else { ", O_DIRECT" },
        args.base.runtime
    ));
    args.base.run.publish(render, &experiment)?;
    CONTENDERS.iter().try_for_each(|(_, is_peer)| remove(&written(args, *is_peer)))
}

/// Renders the table.
pub fn render(experiment: &Experiment) -> String {
    let rows = PHASES.iter().map(|(phase, _)| {
        let [ours, its] = CONTENDERS.map(|(name, _)| experiment.at(phase, name));
        vec![(*phase).to_owned(), ours.count(IOPS), its.count(IOPS), ours.ratio(its, IOPS)]
    });
    table("requests/s | Flowstone | QSD | ratio (95 %)", rows)
}

fn written(args: &Qcow2Args, is_peer: bool) -> PathBuf {
    args.base.run.dir.join(if is_peer { "written-Qsd.qcow2" } else { "written-Flowstone.qcow2" })
}

fn measure(args: &Qcow2Args, is_peer: bool, phase: &Phase) -> Result<Figures> {
    let fresh = args.base.run.dir.join("fresh.qcow2");
    if phase.fresh {
        create_qcow2(&fresh, args.base.size)?;
    }
    let image = if phase.fresh { fresh } else { written(args, is_peer) };
    let figures = load(args, is_peer, &image, |load| {
        let mut load = load.workload(phase.rw).iodepth(phase.iodepth);
        load.client = load.client.queues(phase.queues);
        load.flush_every = phase.flush_every;
        load.limit = timed(args.base.runtime);
        load
    })?;
    if phase.fresh {
        remove(&image)?;
        std::thread::sleep(REST);
    }
    Ok(figures)
}

/// Serves an image and loads it.
fn load(
    args: &Qcow2Args,
    is_peer: bool,
    image: &Path,
    shape: impl FnOnce(LoadOptions) -> LoadOptions,
) -> Result<Figures> {
    let socket = args.base.run.dir.join("qcow2.sock");
    let place = &args.base.place;
    let (command, end) = of_image(place, is_peer, ("qcow2", image), &socket, 4, args.cached)?;
    let load = shape(place.load(&socket, "randread", 1));
    let load = LoadOptions { completion: Completion::Eventfd, ..load };
    Ok(figures(&place.measure(command, &[load], end)?))
}
