//! One to four disks on one poller and on threads of their own, with the same CPU for all threads.

use anyhow::Result;
use flowstone_experiment::plot::{Axes, Lines, draw};
use flowstone_experiment::{Experiment, IOPS, table};

use super::{PollersArgs, cells, interleave};
use crate::disks::{Disks, Servers, Who};

const CHOICES: [&str; 3] = ["1", "auto", "per-queue"];
const DISKS_MAX: usize = 4;
const DEPTHS: [u16; 2] = [1, 32];

/// Measures all numbers of disks at all depths.
pub fn measure(args: &PollersArgs, experiment: &mut Experiment) -> Result<String> {
    let (mut rows, mut lines) = (Vec::new(), Lines::new());
    for count in 1..=DISKS_MAX {
        let disks = Disks::on_tmpfs(count);
        let servers = Servers::start(&args.place, &CHOICES.map(Who::Flowstone), disks)?;
        let own = servers.0[CHOICES.len() - 1].name.clone();
        for depth in DEPTHS {
            let point = format!("share, {count} disks QD{depth}");
            interleave(args, &point, &servers, experiment, |load| load.iodepth(depth))?;
            for server in &servers.0 {
                let row = [depth.to_string(), count.to_string(), server.name.clone()];
                rows.push([&row[..], &cells(experiment, &point, &server.name, &own)].concat());
                let name = format!("QD{depth}, {}", server.name.trim_matches('`'));
                let rate = experiment.at(&point, &server.name).median(IOPS);
                lines.entry(name).or_default().push((count as f64, rate.unwrap_or(0.0) / 1e3));
            }
        }
        servers.stop()?;
    }
    if let Some(path) = &args.plot {
        let y = "thousand requests per second";
        let axes = Axes { x: "disks", y, is_log: false, below: String::new() };
        draw(path, &axes, &lines)?;
    }
    let titles = "depth | disks | pollers | IOPS | to `per-queue` (95 %) | CPU us/IO | p50 us | \
                  p99 us";
    Ok(format!(
        "Random reads of 4 KiB on tmpfs, each disk with one queue; whatever threads there are, the \
         server has CPU {} and no other one; one client thread, which polls, on CPU {}. {} rounds \
         of {} s; medians, rates with their 95 % intervals.\n\n{}",
        args.place.server_cpu,
        args.place.client_cpu,
        args.run.rounds,
        args.runtime,
        table(titles, rows),
    ))
}
