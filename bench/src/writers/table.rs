//! The table of the writers.

use super::environment::ENVIRONMENTS;
use super::{IODEPTH, PATTERNS, WRITERS, Who, WritersArgs, point};
use crate::experiment::{Experiment, IOPS, table};

const TITLES: &str = "environment | writes | runs | raw | one raw writer | log | log / raw | \
     log / one raw writer";

/// Renders the whole report.
pub fn render(args: &WritersArgs, skipped: &[(&str, String)], experiment: &Experiment) -> String {
    let mut rows = Vec::new();
    for environment in &ENVIRONMENTS {
        rows.extend(PATTERNS.iter().filter_map(|rw| row(environment.name, rw, experiment)));
        for (name, why) in skipped.iter().filter(|(name, _)| *name == environment.name) {
            let why = format!("skipped: {}", why.replace('|', "/").replace('\n', " "));
            rows.push([&[(*name).to_owned(), why][..], &[const { String::new() }; 6]].concat());
        }
    }
    format!(
        "{}\n\n{WRITERS} writers, each a queue with {IODEPTH} writes of 4 KiB in flight in a part of \
         its own: {} MiB each on ext4 ({}, set to none), {} MiB each elsewhere (file systems in a \
         file on it, behind a loop device with direct I/O; loop-X are ext4 on a loop device with \
         the scheduler X). Server on CPU {}, client on CPU {}, waiting on its eventfd; O_DIRECT, \
         except on btrfs, which does not say what that demands, so that it is served through the \
         page cache. Raw images have every block written before, log images are new. Random \
         writers draw their blocks with replacement. Writes per second and ratios of each round: \
         medians with their 95 % intervals.\n\n{}",
        experiment.host().sentence(),
        args.job_size >> 20,
        experiment.host().device,
        args.small_job_size >> 20,
        args.place.server_cpu,
        args.place.client_cpu,
        table(TITLES, rows),
    )
}

fn row(environment: &str, rw: &str, experiment: &Experiment) -> Option<Vec<String>> {
    let point = point(environment, rw);
    let [raw, one, log] = Who::ALL.map(|who| experiment.at(&point, who.name()));
    let runs = log.all(IOPS).len();
    let words = if rw == "write" { "sequential" } else { "random" };
    (runs > 0).then(|| {
        vec![
            environment.to_owned(),
            words.to_owned(),
            runs.to_string(),
            raw.count(IOPS),
            one.count(IOPS),
            log.count(IOPS),
            log.ratio(raw, IOPS),
            log.ratio(one, IOPS),
        ]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Host;

    #[test]
    fn a_row_has_medians_and_intervals() {
        let mut experiment = Experiment::new("test", Host::default());
        for rates in [[100.0, 50.0, 200.0], [200.0, 100.0, 200.0]] {
            for (who, rate) in Who::ALL.into_iter().zip(rates) {
                let figures = [(IOPS, rate * 1000.0)];
                experiment.add(&point("xfs", "write"), who.name(), &figures);
            }
        }
        let row = |rw| row("xfs", rw, &experiment).map(|row| row.join(" | "));
        let wanted = "xfs | sequential | 2 | 150,000 (100,000-200,000, 50 %) | 75,000 \
                      (50,000-100,000, 50 %) | 200,000 (200,000-200,000, 50 %) | 1.500 \
                      (1.000-2.000, 50 %) | 3.000 (2.000-4.000, 50 %)";
        assert_eq!(row("write").as_deref(), Some(wanted));
        assert_eq!(row("randwrite"), None);
    }
}
