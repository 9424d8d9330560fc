//! The cost of disks of idle guests.

use std::time::Duration;

use anyhow::Result;
use flowstone_experiment::{Experiment, table};

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
    let [few, many] = COUNTS;
    let points = COUNTS.map(|count| format!("{count} disks, idle"));
    for who in WHO {
        for (point, count) in points.iter().zip(COUNTS) {
            experiment.add(point, &who.name(), &watch_idle(&args.place, who, count, WATCH)?);
        }
    }
    let rows = WHO.map(|who| {
        let name = who.name();
        let [small, large] = points.each_ref().map(|point| experiment.at(point, &name));
        let each = |figure| {
            let of_many = large.median(figure).zip(small.median(figure));
            let each = of_many.map(|(large, small)| (large - small) * 1024.0 / (many - few) as f64);
            each.map_or("-".to_owned(), |kib| format!("{kib:.0}"))
        };
        vec![
            name.clone(),
            large.cell(CPU_PERCENT, 3),
            large.cell(WAKEUPS, 1),
            large.cell(THREADS, 0),
            each(ANONYMOUS_MIB),
            each(RSS_MIB),
        ]
    });
    let titles = "server | CPU % | wake-ups/s | threads | own memory of a disk, KiB | \
                  with its guest's, KiB";
    Ok(format!(
        "{many} disks with connected drivers, one queue of 128 each, that have done one write and \
         one read. Memory of one disk is the difference to {few} disks, divided; guests' memory \
         that a server has touched is not its own. To reach: 0.0 %, 64 KiB.\n\n{}",
        table(titles, rows),
    ))
}
