//! Accuracy of a CPU budget under a load that wants more.

use std::path::Path;

use anyhow::Result;
use flowstone_testkit::load::Completion;

use super::server::{Disks, Server, Servers, TMPFS, Who};
use super::{PollersArgs, cpu_percent, interleave, spread};

const BUDGETS: [Option<u32>; 4] = [Some(30), Some(80), Some(150), None];
const DISKS: usize = 4;
const BYTES: u64 = 64 << 20;

/// Measures three budgets, and the usage without one.
pub fn measure(args: &PollersArgs) -> Result<String> {
    let cpus = [args.server_cpu, args.client_cpu];
    let mut text = format!(
        "`cpu-budget` of the process, two pollers, {DISKS} disks on tmpfs with sequential reads of 256 KiB at QD8; server on \
         CPUs {} and {}, the client on the latter, asleep while it waits. {} rounds of {} s. To reach: within 5 %.\n\n\
         | budget | used, % of a CPU (min-max) | off by |\n|---|---:|---:|\n",
        cpus[0], cpus[1], args.rounds, args.runtime,
    );
    let disks = Disks { count: DISKS, bytes: BYTES, sparse: false, dir: Path::new(TMPFS) };
    for budget in BUDGETS {
        let keys = budget.map_or(String::new(), |percent| format!("cpu-budget = \"{percent}%\"\n"));
        let servers = Servers(vec![Server::start(args, Who::Flowstone("2"), disks, &cpus, &keys)?]);
        let what = budget.map_or("none".to_owned(), |percent| format!("{percent} %"));
        let rounds = interleave(args, &what, &servers, |load| {
            let mut load = load.workload("read").iodepth(8);
            (load.block_bytes, load.completion) = (256 << 10, Completion::Eventfd);
            load
        })?;
        let [used, least, most] = spread(&rounds[0], cpu_percent);
        let off = budget.map_or("-".to_owned(), |percent| {
            format!("{:+.1} %", (used / f64::from(percent) - 1.0) * 100.0)
        });
        text += &format!("| {what} | {used:.1} ({least:.1}-{most:.1}) | {off} |\n");
        servers.stop()?;
    }
    Ok(text)
}
