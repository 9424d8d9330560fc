//! `flowstone-bench compact`: sequential reads of a qcow2 image that was written at random, before
//! and after `flowstone compact`.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::Result;
use flowstone_experiment::command::succeed;
use flowstone_experiment::{Experiment, table};
use flowstone_testkit::load::{Completion, LoadOptions};

use crate::place::{remove, stop, timed, whole};
use crate::run::Base;

const CLUSTERS: [(&str, u64); 3] = [("4K", 4 << 10), ("64K", 64 << 10), ("2M", 2 << 20)];
const DEPTHS: [u16; 2] = [1, 8];
const READ_BYTES: u64 = 128 << 10;
/// Average number of writes per cluster: 2 % of the clusters are never written.
const WRITES_PER_CLUSTER: u64 = 4;
/// Largest write; a larger cluster is written in several parts.
const WRITE_BYTES_MAX: u64 = 64 << 10;
const MB_PER_S: &str = "mb_per_s";
const SECONDS: &str = "seconds";

/// Carries out the subcommand.
pub fn compact(args: &Base) -> Result<()> {
    let mut experiment = args.experiment("compact")?;
    let image = args.run.dir.join("compact.qcow2");
    for _ in 0..args.run.rounds {
        for (name, bytes) in CLUSTERS {
            args.place.create(&image, "qcow2", args.size, &["--cluster-size", name])?;
            let bytes = bytes.min(WRITE_BYTES_MAX);
            load(args, &image, |load| {
                whole(load.workload("randwrite").iodepth(16), bytes, args.size * WRITES_PER_CLUSTER)
            })?;
            read(args, &image, (name, "before"), &mut experiment)?;
            let start = Instant::now();
            let said = succeed(Command::new(args.place.program()?).arg("compact").arg(&image))?;
            let said = String::from_utf8(said)?;
            experiment.add(name, "compact", &[(SECONDS, start.elapsed().as_secs_f64())]);
            eprintln!("{said}");
            read(args, &image, (name, "after"), &mut experiment)?;
        }
    }
    experiment.describe(&format!(
        "Disks of {} MiB written at random in pieces of a cluster (64 KiB at most) through \
         Flowstone, O_DIRECT; sequential reads of 128 KiB for {} s before `compact` and after it.",
        args.size >> 20,
        args.runtime
    ));
    args.run.publish(render, &experiment)?;
    remove(&image)
}

/// Renders the table.
pub fn render(experiment: &Experiment) -> String {
    let rows = CLUSTERS.iter().flat_map(|(name, _)| DEPTHS.map(|depth| (*name, depth)));
    let rows = rows.map(|(name, depth)| {
        let point = point(name, depth);
        let [before, after] = ["before", "after"].map(|state| experiment.at(&point, state));
        vec![
            name.to_owned(),
            experiment.at(name, "compact").spread(SECONDS, 1),
            format!("QD{depth}"),
            before.count(MB_PER_S),
            after.count(MB_PER_S),
            after.ratio(before, MB_PER_S),
        ]
    });
    let titles = "clusters | `compact` took, s | 128 KiB sequential read | before, MB/s | \
                  after, MB/s | ratio";
    table(titles, rows)
}

fn point(clusters: &str, depth: u16) -> String {
    format!("{clusters} QD{depth}")
}

fn read(
    args: &Base,
    image: &Path,
    (clusters, state): (&str, &str),
    experiment: &mut Experiment,
) -> Result<()> {
    for depth in DEPTHS {
        let reads = load(args, image, |load| LoadOptions {
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
fn load(args: &Base, image: &Path, shape: impl FnOnce(LoadOptions) -> LoadOptions) -> Result<f64> {
    let socket = args.run.dir.join("compact.sock");
    let command = args.place.command(image, &socket, 1, &["--direct", "on"])?;
    let load = shape(args.place.load(&socket, "read", 1));
    let load = LoadOptions { completion: Completion::Eventfd, ..load };
    Ok(args.place.measure(command, &[load], stop)?.iops)
}
