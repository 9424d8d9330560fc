//! Sixteen disks on one poller, compared with one disk of their total depth.

use std::path::Path;

use anyhow::Result;
use flowstone_testkit::load::Completion;

use super::server::{Disks, Server, Servers, TMPFS, Who};
use super::{PollersArgs, cpu_us, interleave, ratios, spread};
use crate::sample::interval;
use crate::size::thousands;

const DISKS: usize = 16;
const DEPTH: u16 = 4;
/// Total size of all disks.
const BYTES: u64 = 1 << 30;

/// Measures on both file systems.
pub fn measure(args: &PollersArgs) -> Result<String> {
    let mut text = format!(
        "{DISKS} disks on one poller, QD{DEPTH} each, against one disk on a thread of its own, QD{}; random, 4 KiB, {} \
         MiB in all; server on CPU {}, one client thread on CPU {}, which polls or sleeps. {} rounds of {} s. To reach: \
         0.95 of the rate, 1.1 of the CPU time.\n\n\
         | load | {DISKS} disks | one disk | ratio (95 %) | CPU us/IO | one disk's | ratio (95 %) | p99 us | one disk's |\n\
         |---|---:|---:|---|---:|---:|---|---:|---:|\n",
        DISKS as u16 * DEPTH,
        BYTES >> 20,
        args.server_cpu,
        args.client_cpu,
        args.rounds,
        args.runtime,
    );
    for (place, dir) in [("tmpfs", Path::new(TMPFS)), ("ext4", &args.dir)] {
        let disks = |count| Disks { count, bytes: BYTES / count as u64, sparse: false, dir };
        let cpus = [args.server_cpu];
        let servers = Servers(vec![
            Server::start(args, Who::Flowstone("1"), disks(DISKS), &cpus, "")?,
            Server::start(args, Who::Flowstone("per-queue"), disks(1), &cpus, "")?,
        ]);
        let sleeps: &[bool] = if place == "tmpfs" { &[false] } else { &[false, true] };
        for (sleeps, rw) in sleeps.iter().flat_map(|it| [(*it, "randread"), (*it, "randwrite")]) {
            let client = if sleeps { "sleeps" } else { "polls" };
            let completion = if sleeps { Completion::Eventfd } else { Completion::Poll };
            text +=
                &row(args, &format!("{place} {rw}, client {client}"), rw, completion, &servers)?;
        }
        servers.stop()?;
    }
    Ok(text)
}

fn row(
    args: &PollersArgs,
    what: &str,
    rw: &str,
    completion: Completion,
    servers: &Servers,
) -> Result<String> {
    let one = servers.0[1].sockets()[0].clone();
    let rounds = interleave(args, what, servers, |load| {
        let depth = if load.client.socket == one { DISKS as u16 * DEPTH } else { DEPTH };
        let mut load = load.workload(rw).iodepth(depth);
        load.completion = completion;
        load
    })?;
    let [all, single] = &rounds[..] else { unreachable!("two servers were started") };
    let median = |reports, figure: fn(&_) -> f64| spread(reports, figure)[0];
    Ok(format!(
        "| {what} | {} | {} | {} | {:.2} | {:.2} | {} | {:.0} | {:.0} |\n",
        thousands(median(all, |it| it.iops)),
        thousands(median(single, |it| it.iops)),
        interval(ratios(all, single, |it| it.iops)),
        median(all, cpu_us),
        median(single, cpu_us),
        interval(ratios(all, single, cpu_us)),
        median(all, |it| it.latency.p99_us),
        median(single, |it| it.latency.p99_us),
    ))
}
