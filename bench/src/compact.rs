//! `flowstone-bench compact`: sequential reads of a qcow2 image that was written at random, before
//! and after `flowstone compact`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use flowstone_block::parse_size;
use flowstone_experiment::command::succeed;
use flowstone_experiment::{Experiment, table};
use flowstone_testkit::load::{Completion, LoadOptions};

use crate::place::{create, drive, program, remove, serve, stop, timed, whole};
use crate::run::Run;

/// Options.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("rounds", |rounds| rounds.default_value("1")))]
pub struct CompactArgs {
    /// Size of the disk.
    #[arg(long, default_value = "2G", value_parser = parse_size)]
    size: u64,
    /// Measured seconds per row.
    #[arg(long, default_value_t = 3.0)]
    runtime: f64,
    /// The flowstone binary [default: FLOWSTONE_BIN, or beside this program].
    #[arg(long)]
    flowstone: Option<PathBuf>,
    #[command(flatten)]
    run: Run,
}

const CLUSTERS: [(&str, u64); 3] = [("4K", 4 << 10), ("64K", 64 << 10), ("2M", 2 << 20)];
const DEPTHS: [u16; 2] = [1, 8];
const READ_BYTES: u64 = 128 << 10;
/// Average number of writes per cluster: 2 % of the clusters are never written.
const WRITES_PER_CLUSTER: u64 = 4;
/// Largest write; a larger cluster is written in several parts.
const WRITE_BYTES_MAX: u64 = 64 << 10;
const MB_PER_S: &str = "mb_per_s";

/// Carries out the subcommand.
pub fn compact(args: &CompactArgs) -> Result<()> {
    let mut experiment = args.run.experiment(&format!("compact {} {}", args.size, args.runtime))?;
    let (program, image) =
        (program(args.flowstone.as_deref())?, args.run.dir.join("compact.qcow2"));
    for _ in 0..args.run.rounds {
        for (name, bytes) in CLUSTERS {
            create(&program, &image, "qcow2", args.size, &["--cluster-size", name])?;
            let bytes = bytes.min(WRITE_BYTES_MAX);
            load(args, &program, &image, |load| {
                whole(load.workload("randwrite").iodepth(16), bytes, args.size * WRITES_PER_CLUSTER)
            })?;
            read(args, &program, &image, (name, "before"), &mut experiment)?;
            let start = Instant::now();
            let said = succeed(Command::new(&program).arg("compact").arg(&image))?;
            let said = String::from_utf8(said)?;
            eprintln!("clusters of {name}: compact took {:.1?}\n{said}", start.elapsed());
            read(args, &program, &image, (name, "after"), &mut experiment)?;
        }
    }
    let rows = CLUSTERS.iter().flat_map(|(name, _)| DEPTHS.map(|depth| (*name, depth)));
    let rows = rows.map(|(name, depth)| {
        let point = point(name, depth);
        let [before, after] = ["before", "after"].map(|state| experiment.at(&point, state));
        let rates = [before, after].map(|it| it.cell(MB_PER_S, 0));
        [&[name.to_owned(), format!("QD{depth}")], &rates[..], &[after.ratio(before, MB_PER_S)]]
            .concat()
    });
    let titles = "clusters | 128 KiB sequential read | before, MB/s | after, MB/s | ratio";
    args.run.publish("compact", &table(titles, rows), &experiment)?;
    remove(&image)
}

fn point(clusters: &str, depth: u16) -> String {
    format!("{clusters} QD{depth}")
}

fn read(
    args: &CompactArgs,
    program: &Path,
    image: &Path,
    (clusters, state): (&str, &str),
    experiment: &mut Experiment,
) -> Result<()> {
    for depth in DEPTHS {
        let reads = load(args, program, image, |load| LoadOptions {
            block_bytes: READ_BYTES,
            limit: timed(args.runtime),
            ..load.workload("read").iodepth(depth)
        })?;
        let rate = (MB_PER_S, reads * READ_BYTES as f64 / 1e6);
        experiment.add(&point(clusters, depth), state, &[rate]);
    }
    Ok(())
}

/// Serves the image with direct I/O and loads it. Returns requests per second.
fn load(
    args: &CompactArgs,
    program: &Path,
    image: &Path,
    shape: impl FnOnce(LoadOptions) -> LoadOptions,
) -> Result<f64> {
    let socket = args.run.dir.join("compact.sock");
    remove(&socket)?;
    let mut daemon = serve(program, &socket).args(["--direct", "on"]).arg(image).spawn()?;
    let load = shape(LoadOptions::new(&socket));
    let report = drive(&LoadOptions { completion: Completion::Eventfd, ..load })?;
    stop(&mut daemon)?;
    Ok(report.iops)
}
