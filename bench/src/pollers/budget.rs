//! Accuracy of a CPU budget under a load that wants more.

use anyhow::Result;
use flowstone_experiment::{Experiment, signed, spread, table};
use flowstone_testkit::load::Completion;

use super::{CPU_PERCENT, PollersArgs, interleave};
use crate::disks::{Disks, Server, Servers, Who};

const BUDGETS: [Option<u32>; 4] = [Some(30), Some(80), Some(150), None];
const DISKS: usize = 4;

/// Measures three budgets, and the usage without one.
pub fn measure(args: &PollersArgs, experiment: &mut Experiment) -> Result<String> {
    let cpus = [args.place.server_cpu, args.place.client_cpu];
    let disks = Disks::on_tmpfs(DISKS);
    for budget in BUDGETS {
        let keys = budget.map_or(String::new(), |percent| format!("cpu-budget = \"{percent}%\"\n"));
        let servers =
            Servers(vec![Server::start(&args.place, Who::Flowstone("2"), disks, &cpus, &keys)?]);
        interleave(args, &point(budget), &servers, experiment, |load| {
            let mut load = load.workload("read").iodepth(8);
            (load.block_bytes, load.completion) = (256 << 10, Completion::Eventfd);
            load
        })?;
        servers.stop()?;
    }
    Ok(format!(
        "`cpu-budget` of the process, two pollers, {DISKS} disks on tmpfs with sequential reads of \
         256 KiB at QD8; server on CPUs {} and {}, the client on the latter, asleep while it \
         waits. {} s a round. To reach: within 5 %.",
        cpus[0], cpus[1], args.runtime,
    ))
}

fn name(budget: Option<u32>) -> String {
    budget.map_or("none".to_owned(), |percent| format!("{percent} %"))
}

fn point(budget: Option<u32>) -> String {
    format!("budget {}", name(budget))
}

/// Renders the table.
pub fn render(experiment: &Experiment) -> String {
    let row = |budget: Option<u32>| {
        let point = point(budget);
        let used = experiment.at(&point, experiment.contenders(&point).first()?).all(CPU_PERCENT);
        let off = budget.map_or("-".to_owned(), |percent| {
            signed(used.iter().map(|used| used / f64::from(percent) - 1.0).collect())
        });
        Some(vec![name(budget), spread(used), off])
    };
    table("budget | used, % of a CPU | off by", BUDGETS.into_iter().filter_map(row))
}
