//! The cost of disks of idle guests.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::PollersArgs;
use super::server::{Disks, Server, TMPFS, Who};
use crate::experiment::{Experiment, table};
use crate::idle::{IdleSample, use_once, watch};

/// The memory of one disk is computed from the difference.
const COUNTS: [usize; 2] = [8, 64];
const BYTES: u64 = 64 << 20;
const WATCH: Duration = Duration::from_secs(2);

const WHO: [Who; 4] =
    [Who::Flowstone("auto"), Who::Flowstone("1"), Who::Flowstone("per-queue"), Who::Qsd];

/// The balancer still checks pollers for two seconds after the last request.
const SETTLE: Duration = Duration::from_secs(2);

/// Watches few and many disks of each server.
pub fn measure(args: &PollersArgs, experiment: &mut Experiment) -> Result<String> {
    let [few, many] = COUNTS;
    let mut rows = Vec::new();
    for who in WHO {
        let [small, large] = [sample(args, who, few)?, sample(args, who, many)?];
        let each = |figure: fn(&IdleSample) -> f64| {
            (figure(&large) - figure(&small)) * 1024.0 / (many - few) as f64
        };
        for sample in [&small, &large] {
            let point = format!("{} disks, idle", sample.disks);
            experiment.add(&point, &who.name(), &sample.figures());
        }
        rows.push(vec![
            who.name(),
            format!("{:.3}", large.cpu_percent),
            format!("{:.1}", large.wakeups_per_second),
            large.threads.to_string(),
            format!("{:.0}", each(|it| it.anonymous_mib)),
            format!("{:.0}", each(|it| it.rss_mib)),
        ]);
    }
    let titles = "server | CPU % | wake-ups/s | threads | own memory of a disk, KiB | \
                  with its guest's, KiB";
    Ok(format!(
        "{many} disks with connected drivers, one queue of 128 each, that have done one write and \
         one read. Memory of one disk is the difference to {few} disks, divided; guests' memory \
         that a server has touched is not its own. To reach: 0.0 %, 64 KiB.\n\n{}",
        table(titles, rows),
    ))
}

fn sample(args: &PollersArgs, who: Who, count: usize) -> Result<IdleSample> {
    let disks = Disks { count, bytes: BYTES, sparse: true, dir: Path::new(TMPFS) };
    let server = Server::start(args, who, disks, &[args.place.server_cpu], "")?;
    let clients = server.sockets().iter().map(|socket| use_once(socket));
    let clients = clients.collect::<Result<Vec<_>>>()?;
    std::thread::sleep(SETTLE);
    let sample = watch(server.pid(), count, WATCH)?;
    drop(clients);
    server.stop()?;
    Ok(sample)
}
