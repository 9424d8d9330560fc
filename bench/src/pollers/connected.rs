//! The cost of disks of idle guests.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::PollersArgs;
use super::server::{Disks, Server, TMPFS, Who};
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
pub fn measure(args: &PollersArgs) -> Result<String> {
    let [few, many] = COUNTS;
    let mut text = format!(
        "{many} disks with connected drivers, one queue of 128 each, that have done one write and one read. Memory of one disk \
         is the difference to {few} disks, divided; guests' memory that a server has touched is not its own. To reach: \
         0.0 %, 64 KiB.\n\n\
         | server | CPU % | wake-ups/s | threads | own memory of a disk, KiB | with its guest's, KiB |\n\
         |---|---:|---:|---:|---:|---:|\n"
    );
    for who in WHO {
        let [small, large] = [sample(args, who, few)?, sample(args, who, many)?];
        let each = |figure: fn(&IdleSample) -> f64| {
            (figure(&large) - figure(&small)) * 1024.0 / (many - few) as f64
        };
        text += &format!(
            "| {} | {:.3} | {:.1} | {} | {:.0} | {:.0} |\n",
            who.name(),
            large.cpu_percent,
            large.wakeups_per_second,
            large.threads,
            each(|it| it.anonymous_mib),
            each(|it| it.rss_mib),
        );
    }
    Ok(text)
}

fn sample(args: &PollersArgs, who: Who, count: usize) -> Result<IdleSample> {
    let disks = Disks { count, bytes: BYTES, sparse: true, dir: Path::new(TMPFS) };
    let server = Server::start(args, who, disks, &[args.server_cpu], "")?;
    let clients = server.sockets().iter().map(|socket| use_once(socket));
    let clients = clients.collect::<Result<Vec<_>>>()?;
    std::thread::sleep(SETTLE);
    let sample = watch(server.pid(), count, WATCH)?;
    eprintln!("{count} disks {}: {sample:?}", server.name);
    drop(clients);
    server.stop()?;
    Ok(sample)
}
