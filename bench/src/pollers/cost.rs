//! The cost of four disks under moderate loads.

use anyhow::Result;
use flowstone_experiment::{
    CALLS_PER_IO, CPU_US, Experiment, IOPS, KICKS_PER_IO, P50_US, P99_US, table,
};
use flowstone_testkit::load::{Completion, LoadOptions};

use super::{CPU_PERCENT, PollersArgs, interleave};
use crate::disks::{Disks, Servers, Who};

const OURS: [Who; 3] = [Who::Flowstone("auto"), Who::Flowstone("1"), Who::Flowstone("per-queue")];
const PEERS: [Who; 3] = [Who::Qsd, Who::QsdOneThread, Who::QsdThreads];
const DISKS: usize = 4;
/// Beginning of the points' names.
const PREFIX: &str = "cost, ";
const TITLES: &str = "load of each | client | server | IOPS | CPU % | CPU us/IO | to QSD (95 %) | p50 us | \
     p99 us | kicks/IO | calls/IO";

/// An open-loop load of each disk.
struct Load {
    name: &'static str,
    rate: f64,
    burst: u32,
    iodepth: u16,
}

const LOADS: [Load; 3] = [
    Load { name: "20,000/s", rate: 20_000.0, burst: 1, iodepth: 1 },
    Load { name: "2,000/s", rate: 2_000.0, burst: 1, iodepth: 1 },
    Load { name: "100 each 10 ms", rate: 10_000.0, burst: 100, iodepth: 128 },
];

/// Measures with a client that sleeps and with one that polls.
pub fn measure(args: &PollersArgs, experiment: &mut Experiment) -> Result<String> {
    let disks = Disks::on_tmpfs(DISKS);
    let servers = Servers::start(&args.place, &[OURS, PEERS].concat(), disks)?;
    for Load { name, rate, burst, iodepth } in LOADS {
        for (client, completion) in [("sleeps", Completion::Eventfd), ("polls", Completion::Poll)] {
            let point = format!("{PREFIX}{name}, {client}");
            interleave(args, &point, &servers, experiment, |load| LoadOptions {
                completion,
                burst,
                ..load.rate(rate).iodepth(iodepth)
            })?;
        }
    }
    servers.stop()?;
    Ok(format!(
        "{DISKS} disks on tmpfs, one queue each, random reads of 4 KiB on each at random moments: \
         20,000 or 2,000 a second at depth one, or 100 together in every 10 ms at depth 128. Server on \
         CPU {}, one client thread on CPU {}. {} rounds of {} s; \"to QSD\" is the ratio of CPU \
         time per request to that QSD which needs the least. To reach: .8.",
        args.place.server_cpu, args.place.client_cpu, args.run.rounds, args.runtime,
    ))
}

/// Renders the table.
pub fn render(experiment: &Experiment) -> String {
    let mut rows = Vec::new();
    for point in experiment.points() {
        let of_loads = point.strip_prefix(PREFIX).and_then(|it| it.rsplit_once(", "));
        let Some((load, client)) = of_loads else { continue };
        let of = |server: &str| experiment.at(point, server).median(CPU_US).unwrap_or(f64::MAX);
        let best = PEERS.map(Who::name).into_iter().min_by(|a, b| of(a).total_cmp(&of(b)));
        let best = best.unwrap_or_default();
        rows.extend(experiment.contenders(point).into_iter().map(|server| {
            let own = experiment.at(point, server);
            vec![
                load.to_owned(),
                client.to_owned(),
                server.to_owned(),
                own.cell(IOPS, 0),
                own.count(CPU_PERCENT),
                own.cell(CPU_US, 2),
                own.ratio(experiment.at(point, &best), CPU_US),
                own.cell(P50_US, 1),
                own.cell(P99_US, 1),
                own.cell(KICKS_PER_IO, 2),
                own.cell(CALLS_PER_IO, 2),
            ]
        }));
    }
    table(TITLES, rows)
}
