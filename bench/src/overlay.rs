//! `flowstone-bench overlay`: reads through an empty overlay, as of a new virtual machine that
//! reads the system image it is based on.
//!
//! The base is a raw file in the page cache. Flowstone and qemu-storage-daemon serve the same
//! overlay, and Flowstone serves the base itself as well: the difference is the cost of the
//! overlay. All take turns within a round.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use clap::Args;
use flowstone_experiment::command::succeed;
use flowstone_experiment::{Experiment, Figures, IOPS, figures, table};
use flowstone_testkit::DaemonCommand;

use crate::place::{remove, serve, stop_peer, timed};
use crate::run::Base;
use crate::server::qsd;

/// Options.
#[derive(Clone, Debug, Args)]
pub struct OverlayArgs {
    /// Another flowstone binary to compare with.
    #[arg(long)]
    before: Option<PathBuf>,
    #[command(flatten)]
    base: Base,
}

/// The server and its image.
#[derive(Clone, Debug)]
enum Contender {
    Overlay(PathBuf),
    Base(PathBuf),
    Qsd,
}

const OURS: &str = "Flowstone, overlay";
const POINTS: [(&str, u16); 2] = [("QD1", 1), ("QD32", 32)];

/// Carries out the subcommand.
pub fn overlay(args: &OverlayArgs) -> Result<()> {
    let mut experiment = args.base.experiment("overlay")?;
    let flowstone = args.base.place.program()?;
    let mut contenders = vec![
        (OURS, Contender::Overlay(flowstone.clone())),
        ("Flowstone, base as raw", Contender::Base(flowstone)),
        ("QSD, overlay", Contender::Qsd),
    ];
    contenders.extend(args.before.clone().map(|it| ("before, overlay", Contender::Overlay(it))));
    let images = Images::make(args)?;
    experiment.run(args.base.run.rounds, &POINTS, &contenders, |depth, contender| {
        contender.measure(args, &images, *depth)
    })?;
    experiment.describe(&format!(
        "An overlay without data of its own, its raw base of {} MiB in the page cache, {} s a round.",
        args.base.size >> 20,
        args.base.runtime
    ));
    args.base.run.publish(render, &experiment)?;
    remove(&images.base)?;
    remove(&images.overlay)
}

/// Renders the table.
pub fn render(experiment: &Experiment) -> String {
    let row = |name: &str| {
        let rates = POINTS.map(|(point, _)| experiment.at(point, name).count(IOPS));
        let ratios = POINTS
            .map(|(point, _)| experiment.at(point, OURS).ratio(experiment.at(point, name), IOPS));
        [&[name.to_owned()][..], &rates, &ratios].concat()
    };
    let titles = "4 KiB random read | QD1 | QD32 | Flowstone's overlay to that, QD1 | QD32";
    table(titles, experiment.contenders(POINTS[0].0).into_iter().map(row))
}

struct Images {
    base: PathBuf,
    overlay: PathBuf,
}

impl Images {
    fn make(args: &OverlayArgs) -> Result<Self> {
        let at = |name: &str| args.base.run.dir.join(name);
        let images = Self { base: at("base.raw"), overlay: at("overlay.qcow2") };
        let bytes = usize::try_from(args.base.size)?;
        // Written, and so in the page cache.
        std::fs::write(&images.base, vec![0x5a; bytes])?;
        remove(&images.overlay)?;
        let mut command = Command::new("qemu-img");
        command.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b", "base.raw"]);
        succeed(command.arg(&images.overlay))?;
        Ok(images)
    }
}

impl Contender {
    fn command(&self, images: &Images, socket: &Path) -> DaemonCommand {
        let serve = |program, image| serve(program, socket).args(["--direct", "off"]).arg(image);
        match self {
            Self::Overlay(program) => serve(program, &images.overlay),
            Self::Base(program) => serve(program, &images.base),
            Self::Qsd => qsd::serve("qcow2", &images.overlay, socket, 1, true),
        }
    }

    fn measure(&self, args: &OverlayArgs, images: &Images, depth: u16) -> Result<Figures> {
        let socket = args.base.run.dir.join("overlay.sock");
        let mut load = args.base.place.load(&socket, "randread", depth);
        load.limit = timed(args.base.runtime);
        // Flowstone's exit status is checked by tests.
        let command = self.command(images, &socket);
        Ok(figures(&args.base.place.measure(command, &[load], stop_peer)?))
    }
}
