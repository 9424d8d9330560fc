//! The table of the writers.

use flowstone_experiment::{Experiment, IOPS, Of, P99_US, table};

use super::environment::ENVIRONMENTS;
use super::{CONFIGURATIONS, IODEPTH, JOB_BYTES, PATTERNS, SMALL_JOB_BYTES, WRITERS, point};

const TITLES: &str = "environment | writes | runs | raw | log | one raw writer | QSD | fio | \
     log / raw | log / one raw writer | log / QSD | log / fio | p99, ms: raw | log | QSD | fio";

/// Renders the whole report.
pub fn render(experiment: &Experiment) -> String {
    let rows_of = |name| PATTERNS.iter().map(move |rw| row(name, rw, experiment));
    let rows = ENVIRONMENTS.iter().flat_map(|environment| rows_of(environment.name));
    format!(
        "{WRITERS} writers, each a queue with {IODEPTH} writes of 4 KiB in flight in a part of \
         its own: {} MiB each on ext4 ({}, set to none), {} MiB each elsewhere (file systems in a \
         file on it, behind a loop device with direct I/O; loop-X are ext4 on a loop device with \
         the scheduler X). Server and client on a CPU each, the client waits on its eventfd; O_DIRECT, \
         except on btrfs, which does not say what that demands, so that it is served through the \
         page cache. Raw images have every block written before, log images are new. Random \
         writers draw their blocks with replacement. QSD is qemu-storage-daemon on the raw image, with \
         aio=native (threads on btrfs); fio is eight jobs on that image itself, with io_uring, on \
         the client's CPU alone. Writes per second and ratios of each round: medians with their \
         95 % intervals.\n\n{}",
        JOB_BYTES >> 20,
        experiment.host().device,
        SMALL_JOB_BYTES >> 20,
        table(TITLES, rows),
    )
}

fn row(environment: &str, rw: &str, experiment: &Experiment) -> Vec<String> {
    let point = point(environment, rw);
    let [raw, one, log, qsd, fio] = CONFIGURATIONS.map(|(name, _)| experiment.at(&point, name));
    let runs = log.all(IOPS).len();
    let words = if rw == "write" { "sequential" } else { "random" };
    let mut cells = vec![environment.to_owned(), words.to_owned(), runs.to_string()];
    cells.extend([raw, log, one, qsd, fio].map(|it| it.count(IOPS)));
    cells.extend([raw, one, qsd, fio].map(|it| log.ratio(it, IOPS)));
    cells.extend([raw, log, qsd, fio].map(|it| milliseconds(&it)));
    cells
}

fn milliseconds(of: &Of<'_>) -> String {
    of.median(P99_US).map_or("-".to_owned(), |us| format!("{:.2}", us / 1000.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flowstone_experiment::host::Host;

    #[test]
    fn a_row_has_medians_and_intervals() {
        let mut experiment = Experiment::new("test", Host::default());
        for rates in [[100.0, 50.0, 200.0, 80.0, 400.0], [200.0, 100.0, 200.0, 80.0, 400.0]] {
            for ((who, _), rate) in CONFIGURATIONS.into_iter().zip(rates) {
                let figures = [(IOPS, rate * 1000.0), (P99_US, rate * 10.0)];
                experiment.add(&point("xfs", "write"), who, &figures);
            }
        }
        let row = |rw| row("xfs", rw, &experiment).join(" | ");
        let wanted = "xfs | sequential | 2 | 150,000 (100,000-200,000, 50 %) | 200,000 \
                      (200,000-200,000, 50 %) | 75,000 (50,000-100,000, 50 %) | 80,000 \
                      (80,000-80,000, 50 %) | 400,000 (400,000-400,000, 50 %) | 1.500 \
                      (1.000-2.000, 50 %) | 3.000 (2.000-4.000, 50 %) | 2.500 (2.500-2.500, 50 %) \
                      | 0.500 (0.500-0.500, 50 %) | 1.50 | 2.00 | 0.80 | 4.00";
        assert_eq!(row("write"), wanted);
        let not_measured = format!("xfs | random | 0{}", " | -".repeat(13));
        assert_eq!(row("randwrite"), not_measured);
    }
}
