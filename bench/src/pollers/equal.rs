//! Sixteen disks on one poller, compared with one disk of their total depth.

use std::path::Path;

use anyhow::Result;
use flowstone_experiment::{CPU_US, Experiment, IOPS, P99_US, table};
use flowstone_testkit::load::Completion;

use super::{PollersArgs, interleave};
use crate::disks::{Disks, Server, Servers, Who};
use crate::place::TMPFS;

const DISKS: usize = 16;
const DEPTH: u16 = 4;
/// Total size of all disks.
const BYTES: u64 = 1 << 30;
/// Beginning of the points' names.
const PREFIX: &str = "equal, ";

/// Measures on both file systems.
pub fn measure(args: &PollersArgs, experiment: &mut Experiment) -> Result<String> {
    for (place, dir) in [("tmpfs", Path::new(TMPFS)), ("ext4", &args.run.dir)] {
        let disks = |count| Disks { count, bytes: BYTES / count as u64, sparse: false, dir };
        let cpus = [args.place.server_cpu];
        let servers = Servers(vec![
            Server::start(&args.place, Who::Flowstone("1"), disks(DISKS), &cpus, "")?,
            Server::start(&args.place, Who::Flowstone("per-queue"), disks(1), &cpus, "")?,
        ]);
        let sleeps: &[bool] = if place == "tmpfs" { &[false] } else { &[false, true] };
        for (sleeps, rw) in sleeps.iter().flat_map(|it| [(*it, "randread"), (*it, "randwrite")]) {
            let client = if sleeps { "sleeps" } else { "polls" };
            let completion = if sleeps { Completion::Eventfd } else { Completion::Poll };
            let what = format!("{place} {rw}, client {client}");
            drive(args, &what, rw, completion, &servers, experiment)?;
        }
        servers.stop()?;
    }
    Ok(format!(
        "{DISKS} disks on one poller, QD{DEPTH} each, against one disk on a thread of its own, \
         QD{}; random, 4 KiB, {} MiB in all; server on CPU {}, one client thread on CPU {}, which \
         polls or sleeps. {} rounds of {} s. To reach: 0.95 of the rate, 1.1 of the CPU \
         time.\n\n{}",
        DISKS as u16 * DEPTH,
        BYTES >> 20,
        args.place.server_cpu,
        args.place.client_cpu,
        args.run.rounds,
        args.runtime,
        render(experiment),
    ))
}

fn drive(
    args: &PollersArgs,
    what: &str,
    rw: &str,
    completion: Completion,
    servers: &Servers,
    experiment: &mut Experiment,
) -> Result<()> {
    let (one, point) = (servers.0[1].sockets()[0].clone(), format!("{PREFIX}{what}"));
    interleave(args, &point, servers, experiment, |load| {
        let depth = if load.client.socket == one { DISKS as u16 * DEPTH } else { DEPTH };
        let mut load = load.workload(rw).iodepth(depth);
        load.completion = completion;
        load
    })
}

/// Renders the table.
pub fn render(experiment: &Experiment) -> String {
    let row = |point| {
        let what = str::strip_prefix(point, PREFIX)?;
        let &[all, single] = experiment.contenders(point).as_slice() else { return None };
        let [all, single] = [all, single].map(|server| experiment.at(point, server));
        Some(vec![
            what.to_owned(),
            all.cell(IOPS, 0),
            single.cell(IOPS, 0),
            all.ratio(single, IOPS),
            all.cell(CPU_US, 2),
            single.cell(CPU_US, 2),
            all.ratio(single, CPU_US),
            all.cell(P99_US, 0),
            single.cell(P99_US, 0),
        ])
    };
    let titles = format!(
        "load | {DISKS} disks | one disk | ratio (95 %) | CPU us/IO | one disk's | ratio (95 %) | \
         p99 us | one disk's"
    );
    table(&titles, experiment.points().into_iter().filter_map(row))
}
