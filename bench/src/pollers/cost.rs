//! The cost of four disks under moderate load.

use std::path::Path;

use anyhow::Result;
use flowstone_testkit::load::Completion;

use super::server::{Disks, Servers, TMPFS, Who};
use super::{PollersArgs, cpu_percent, cpu_us, interleave, ratios, spread};
use crate::sample::{interval, median};
use crate::size::thousands;

const WHO: [Who; 6] = [
    Who::Flowstone("auto"),
    Who::Flowstone("1"),
    Who::Flowstone("per-queue"),
    Who::Qsd,
    Who::QsdOneThread,
    Who::QsdThreads,
];
const DISKS: usize = 4;
const RATE: f64 = 20_000.0;
const BYTES: u64 = 64 << 20;

/// Measures with a client that sleeps and with one that polls.
pub fn measure(args: &PollersArgs) -> Result<String> {
    let mut text = format!(
        "{DISKS} disks on tmpfs, one queue each, {} random reads of 4 KiB a second on each, at random moments, at depth one. \
         Server on CPU {}, one client thread on CPU {}. {} rounds of {} s; \"to QSD\" is the ratio of CPU time per \
         request to that QSD which needs the least. To reach: 0.5.\n\n\
         | client | server | IOPS | CPU % (min-max) | CPU us/IO | to QSD (95 %) | p50 us | p99 us | kicks/IO | calls/IO |\n\
         |---|---|---:|---:|---:|---|---:|---:|---:|---:|\n",
        thousands(RATE),
        args.server_cpu,
        args.client_cpu,
        args.rounds,
        args.runtime,
    );
    let disks = Disks { count: DISKS, bytes: BYTES, sparse: false, dir: Path::new(TMPFS) };
    let servers = Servers::start(args, &WHO, disks)?;
    for (client, completion) in [("sleeps", Completion::Eventfd), ("polls", Completion::Poll)] {
        let rounds = interleave(args, client, &servers, |load| {
            let mut load = load.rate(RATE);
            load.completion = completion;
            load
        })?;
        let cost = |at: &usize| spread(&rounds[*at], cpu_us)[0];
        let peers = (0..WHO.len()).filter(|at| !matches!(WHO[*at], Who::Flowstone(_)));
        let best = peers.min_by(|one, other| cost(one).total_cmp(&cost(other)));
        for (server, reports) in servers.0.iter().zip(&rounds) {
            let [percent, least, most] = spread(reports, cpu_percent);
            let figure = |figure: fn(&_) -> f64| spread(reports, figure)[0];
            let to_best = best.map(|best| interval(ratios(reports, &rounds[best], cpu_us)));
            text += &format!(
                "| {client} | {} | {} | {percent:.0} ({least:.0}-{most:.0}) | {:.2} | {} | {:.1} | {:.1} | {:.2} | {:.2} |\n",
                server.name,
                thousands(median(reports.iter().map(|it| it.iops).collect()).unwrap_or(f64::NAN)),
                figure(cpu_us),
                to_best.unwrap_or_default(),
                figure(|it| it.latency.p50_us),
                figure(|it| it.latency.p99_us),
                figure(|it| it.kicks_per_io),
                figure(|it| it.calls_per_io),
            );
        }
    }
    servers.stop()?;
    Ok(text)
}
