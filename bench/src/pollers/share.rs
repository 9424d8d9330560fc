//! One to four disks on one poller and on threads of their own, with the same CPU for all threads.

use std::path::Path;

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
    for count in 1..=DISKS_MAX {
        let disks = Disks::on_tmpfs(count);
        let servers = Servers::start(&args.place, &CHOICES.map(Who::Flowstone), disks)?;
        for depth in DEPTHS {
            let point = point(count, depth);
            interleave(args, &point, &servers, experiment, |load| load.iodepth(depth))?;
        }
        servers.stop()?;
    }
    Ok(format!(
        "Random reads of 4 KiB on tmpfs, each disk with one queue; whatever threads there are, the \
         server has CPU {} and no other one; one client thread, which polls, on CPU {}. {} s a \
         round; medians, rates with their 95 % intervals.",
        args.place.server_cpu, args.place.client_cpu, args.runtime,
    ))
}

fn point(count: usize, depth: u16) -> String {
    format!("share, {count} disks QD{depth}")
}

fn points() -> impl Iterator<Item = (usize, u16, String)> {
    (1..=DISKS_MAX).flat_map(|count| DEPTHS.map(|depth| (count, depth, point(count, depth))))
}

/// Renders the table.
pub fn render(experiment: &Experiment) -> String {
    let mut rows = Vec::new();
    for (count, depth, point) in points() {
        let servers = experiment.contenders(&point);
        let Some(own) = servers.last() else { continue };
        rows.extend(servers.iter().map(|server| {
            let row = [depth.to_string(), count.to_string(), (*server).to_owned()];
            [&row[..], &cells(experiment, &point, server, own)].concat()
        }));
    }
    let titles = "depth | disks | pollers | IOPS | to `per-queue` (95 %) | CPU us/IO | p50 us | \
                  p99 us";
    table(titles, rows)
}

/// Draws the rates.
pub fn plot(path: &Path, experiment: &Experiment) -> Result<()> {
    let mut lines = Lines::new();
    for (count, depth, point) in points() {
        for server in experiment.contenders(&point) {
            let name = format!("QD{depth}, {}", server.trim_matches('`'));
            let rate = experiment.at(&point, server).median(IOPS).unwrap_or(0.0) / 1e3;
            lines.entry(name).or_default().push((count as f64, rate));
        }
    }
    let y = "thousand requests per second";
    draw(path, &Axes { x: "disks", y, is_log: false, below: String::new() }, &lines)
}
