//! `flowstone-bench storm`: the effect of many small discards on concurrent writes.
//!
//! One queue writes 4 KiB blocks at random in the lower half of a disk. Another one discards at
//! random in the upper half, as fast as the server takes it. Both halves are written in full before
//! each measurement, so a discard has space to free. Each server is measured with and without
//! discards, one after the other; the result is the ratio of the two.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use flowstone_experiment::{Experiment, Figures, interval, table};
use flowstone_testkit::load::{Aside, Completion, LoadOptions, LoadReport};

use crate::place::{drive, pass, remove, timed};
use crate::run::{Base, choose, defaults};
use crate::server::of_image;

/// Options.
#[derive(Clone, Debug, Args)]
#[command(mut_args(defaults(&[("rounds", "3"), ("runtime", "4"), ("size", "2G")])))]
pub struct StormArgs {
    /// Only servers whose name contains this; may be given several times.
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    #[command(flatten)]
    base: Base,
}

/// A server and its image format.
#[derive(Clone, Copy, Debug)]
struct Contender {
    format: &'static str,
    qsd: bool,
    /// Clusters of 4 KiB if the format has clusters: otherwise discarding a block has no effect.
    create: &'static [&'static str],
}

const CONTENDERS: [(&str, Contender); 5] = [
    ("raw", Contender { format: "raw", qsd: false, create: &[] }),
    ("QSD raw", Contender { format: "raw", qsd: true, create: &[] }),
    ("qcow2", Contender { format: "qcow2", qsd: false, create: &["--cluster-size", "4K"] }),
    ("QSD qcow2", Contender { format: "qcow2", qsd: true, create: &["--cluster-size", "4K"] }),
    ("log", Contender { format: "log", qsd: false, create: &[] }),
];

/// Removing an image makes many small discards: the disk becomes idle after them.
const REST: Duration = Duration::from_secs(2);

/// Discards in flight.
const STORM_DEPTH: u16 = 32;

const POINT: &str = "4 KiB random write QD32";
const CALM: &str = "writes_per_s";
const CALM_P99: &str = "write_p99_ms";
const STORMY: &str = "stormy_writes_per_s";
const STORMY_P99: &str = "stormy_write_p99_ms";
const DISCARDS: &str = "discards_per_s";
const DISCARD_P99: &str = "discard_p99_ms";

/// Carries out the subcommand.
pub fn storm(args: &StormArgs) -> Result<()> {
    let mut experiment = args.base.experiment("storm")?;
    let contenders = choose(&CONTENDERS, &args.only, |(name, _)| name)?;
    let measure = |(): &(), contender: &Contender| contender.measure(args);
    experiment.run(args.base.run.rounds, &[(POINT, ())], &contenders, measure)?;
    experiment.describe(&format!(
        "One queue writes 4 KiB at random at QD32 in the lower half of a written disk of {} MiB, \
         another one discards 4 KiB at random in the upper half at QD{STORM_DEPTH}, as fast as it \
         is let (qcow2 with clusters of 4 KiB, or such a discard would do nothing). O_DIRECT, each \
         server on one core, in turn, {} s.",
        args.base.size >> 20,
        args.base.runtime
    ));
    args.base.run.publish(render, &experiment)
}

/// Renders the table.
pub fn render(experiment: &Experiment) -> String {
    let rows = experiment.contenders(POINT).into_iter().map(|name| {
        let own = experiment.at(POINT, name);
        vec![
            name.to_owned(),
            own.count(CALM),
            own.cell(CALM_P99, 2),
            own.count(STORMY),
            interval(own.ratios_of(STORMY, own, CALM)),
            own.cell(STORMY_P99, 2),
            interval(own.ratios_of(STORMY_P99, own, CALM_P99)),
            own.count(DISCARDS),
            own.cell(DISCARD_P99, 1),
        ]
    });
    let titles = "server | writes/s | p99, ms | in the storm | ratio | p99, ms | p99 ratio | \
                  discards/s | their p99, ms";
    table(titles, rows)
}

impl Contender {
    /// Measures writes without and with concurrent discards, on a new image that is written in
    /// full.
    fn measure(self, args: &StormArgs) -> Result<Figures> {
        let at = |name: &str| args.base.run.dir.join(name);
        let (image, socket) = (at("storm.image"), at("storm.sock"));
        args.base.place.create(&image, self.format, args.base.size, self.create)?;
        let place = &args.base.place;
        let (command, end) = of_image(place, self.qsd, (self.format, &image), &socket, 2, false)?;
        let mut daemon = args.base.place.start(command, &socket)?;
        drive(&pass(LoadOptions::new(&socket), "write", args.base.size))?;
        let calm = load(args, &socket, None)?;
        let stormy = load(args, &socket, Some(STORM_DEPTH))?;
        end(&mut daemon)?;
        remove(&image)?;
        std::thread::sleep(REST);
        Ok(vec![
            (CALM, calm.write.count as f64 / calm.seconds),
            (CALM_P99, calm.write.p99_us / 1e3),
            (STORMY, stormy.write.count as f64 / stormy.seconds),
            (STORMY_P99, stormy.write.p99_us / 1e3),
            (DISCARDS, stormy.discard.count as f64 / stormy.seconds),
            (DISCARD_P99, stormy.discard.p99_us / 1e3),
        ])
    }
}

fn load(args: &StormArgs, socket: &Path, storm: Option<u16>) -> Result<LoadReport> {
    let mut options = args.base.place.load(socket, "randwrite", 32);
    options.client = options.client.queues(if storm.is_some() { 2 } else { 1 });
    options.aside = storm.map(Aside::Discards);
    // Writes stay in the lower half without discards, too.
    options.span_bytes = if storm.is_some() { args.base.size } else { args.base.size / 2 };
    options.completion = Completion::Eventfd;
    options.limit = timed(args.base.runtime);
    drive(&options)
}
