//! The cost of disks of idle guests.

use std::time::Duration;

use anyhow::Result;
use flowstone_experiment::{Experiment, spread, table, turns};

use super::PollersArgs;
use crate::disks::Who;
use crate::idle::{ANONYMOUS_MIB, CPU_PERCENT, RSS_MIB, THREADS, WAKEUPS, watch_idle};

/// The memory of one disk is computed from the difference.
const COUNTS: [usize; 2] = [8, 64];
const WATCH: Duration = Duration::from_secs(2);

const WHO: [Who; 4] =
    [Who::Flowstone("auto"), Who::Flowstone("1"), Who::Flowstone("per-queue"), Who::Qsd];

/// Watches few and many disks of each server.
pub fn measure(args: &PollersArgs, experiment: &mut Experiment) -> Result<String> {
    for round in 0..args.run.rounds {
        for who in turns(round, &WHO) {
            for count in COUNTS {
                let figures = watch_idle(&args.place, *who, count, WATCH)?;
                experiment.add(&point(count), &who.name(), &figures);
            }
        }
    }
    Ok(format!(
        "{} disks with connected drivers, one queue of 128 each, that have done one write and one \
         read, watched for {} s. Memory of one disk is the difference to {} disks, divided; guests' \
         memory that a server has touched is not its own. To reach: 0.0 %, 64 KiB.",
        COUNTS[1],
        WATCH.as_secs(),
        COUNTS[0],
    ))
}

fn point(count: usize) -> String {
    format!("connected, {count} disks")
}

/// Renders the table.
pub fn render(experiment: &Experiment) -> String {
    let points = COUNTS.map(point);
    let rows = WHO.map(|who| {
        let name = who.name();
        let [small, large] = points.each_ref().map(|point| experiment.at(point, &name));
        let each = |figure| {
            let of_both = large.all(figure).into_iter().zip(small.all(figure));
            let disks = (COUNTS[1] - COUNTS[0]) as f64;
            spread(of_both.map(|(large, small)| (large - small) * 1024.0 / disks).collect())
        };
        vec![
            name.clone(),
            large.spread(CPU_PERCENT, 3),
            large.spread(WAKEUPS, 1),
            large.cell(THREADS, 0),
            each(ANONYMOUS_MIB),
            each(RSS_MIB),
        ]
    });
    let titles = "server | CPU % | wake-ups/s | threads | own memory of a disk, KiB | \
                  with its guest's, KiB";
    table(titles, rows)
}
