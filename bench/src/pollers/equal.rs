//! Sixteen disks on one poller, compared with one disk of their total depth, on a poller and on a
//! thread of its own.

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
        let start = |pollers, count| -> Result<Server> {
            let who = Who::Flowstone(pollers);
            let mut server = Server::start(&args.place, who, disks(count), &cpus, "")?;
            server.name = format!("{}, {count}", server.name);
            Ok(server)
        };
        let servers = Servers(vec![start("1", DISKS)?, start("1", 1)?, start("per-queue", 1)?]);
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
        "{DISKS} disks on one poller, QD{DEPTH} each, against one disk, QD{}, on a poller (`1`) and \
         on a thread of its own (`per-queue`); random, 4 KiB, {} MiB in all; server on CPU {}, one \
         client thread on CPU {}, which polls or sleeps. {} rounds of {} s. To reach: 0.95 of the \
         rate, 1.1 of the CPU time.",
        DISKS as u16 * DEPTH,
        BYTES >> 20,
        args.place.server_cpu,
        args.place.client_cpu,
        args.run.rounds,
        args.runtime,
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
    let (many, point) = (servers.0[0].sockets(), format!("{PREFIX}{what}"));
    interleave(args, &point, servers, experiment, |load| {
        let depth = if many.contains(&load.client.socket) { DEPTH } else { DISKS as u16 * DEPTH };
        let mut load = load.workload(rw).iodepth(depth);
        load.completion = completion;
        load
    })
}

/// Renders the table.
pub fn render(experiment: &Experiment) -> String {
    let mut rows = Vec::new();
    for point in experiment.points() {
        let Some(what) = point.strip_prefix(PREFIX) else { continue };
        let servers = experiment.contenders(point);
        let Some((all, single)) = servers.split_first() else { continue };
        let all = experiment.at(point, all);
        rows.extend(single.iter().map(|name| {
            let single = experiment.at(point, name);
            vec![
                what.to_owned(),
                (*name).to_owned(),
                all.cell(IOPS, 0),
                single.cell(IOPS, 0),
                all.ratio(single, IOPS),
                all.cell(CPU_US, 2),
                single.cell(CPU_US, 2),
                all.ratio(single, CPU_US),
                all.cell(P99_US, 0),
                single.cell(P99_US, 0),
            ]
        }));
    }
    let titles = format!(
        "load | one disk | {DISKS} disks, IOPS | one disk, IOPS | ratio (95 %) | CPU us/IO | one \
         disk's, us/IO | ratio (95 %) | p99 us | one disk's, us"
    );
    table(&titles, rows)
}
