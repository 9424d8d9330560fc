//! The table of the writers.

use std::fmt::Write;

use super::environment::ENVIRONMENTS;
use super::{IODEPTH, PATTERNS, WRITERS, Who, WritersArgs, key};
use crate::host::Host;
use crate::series::{Series, Spread};
use crate::size::thousands;

/// Renders the whole report.
pub fn render(
    args: &WritersArgs,
    host: &Host,
    series: &Series,
    skipped: &[(&str, String)],
) -> String {
    let mut text = format!(
        "{}\n\n{WRITERS} writers, each a queue with {IODEPTH} writes of 4 KiB in flight in a part of its own: {} MiB each on \
         ext4 ({}, set to none), {} MiB each elsewhere (file systems in a file on it, behind a loop device with \
         direct I/O; loop-X are ext4 on a loop device with the scheduler X). Server on CPU {}, client on CPU {}, \
         waiting on its eventfd; O_DIRECT, except on btrfs, which does not say what that demands, so that it is \
         served through the page cache. Raw images have every block written before, log images are new. Random \
         writers draw their blocks with replacement. Writes per second, mean and standard deviation; ratios are \
         means of those of each round.\n\n",
        host.sentence(),
        args.job_size >> 20,
        host.device,
        args.small_job_size >> 20,
        args.run.place.server_cpu,
        args.run.place.client_cpu,
    );
    text += "| environment | writes | runs | raw | one raw writer | log | log / raw | log / one raw writer |\n";
    text += "|---|---|---:|---:|---:|---:|---:|---:|\n";
    for environment in &ENVIRONMENTS {
        PATTERNS.iter().for_each(|rw| row(&mut text, environment.name, rw, series));
        for (name, why) in skipped.iter().filter(|(name, _)| *name == environment.name) {
            writeln!(
                text,
                "| {name} | skipped: {} | | | | | | |",
                why.replace('|', "/").replace('\n', " ")
            )
            .expect("strings take everything");
        }
    }
    text
}

fn row(text: &mut String, environment: &str, rw: &str, series: &Series) {
    let [raw, one, log] = Who::ALL.map(|who| key(environment, rw, who));
    let runs = series.of(&log).len();
    if runs == 0 {
        return;
    }
    let rate = |name: &str| {
        Spread::of(series.of(name)).map_or("-".to_owned(), |it| {
            format!("{} ± {}", thousands(it.mean), thousands(it.deviation))
        })
    };
    let ratio = |to: &str| {
        Spread::of(&series.ratios(&log, to))
            .map_or("-".to_owned(), |it| format!("{:.2} ± {:.2}", it.mean, it.deviation))
    };
    let words = if rw == "write" { "sequential" } else { "random" };
    writeln!(
        text,
        "| {environment} | {words} | {runs} | {} | {} | {} | {} | {} |",
        rate(&raw),
        rate(&one),
        rate(&log),
        ratio(&raw),
        ratio(&one),
    )
    .expect("strings take everything");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_means_and_spreads() {
        let mut series = Series::new("test");
        for (raw, one, log) in [(100.0, 50.0, 200.0), (200.0, 100.0, 200.0)] {
            for (who, rate) in Who::ALL.into_iter().zip([raw, one, log]) {
                series.add(&key("xfs", "write", who), rate * 1000.0);
            }
        }
        let mut text = String::new();
        row(&mut text, "xfs", "write", &series);
        row(&mut text, "xfs", "randwrite", &series);
        let wanted = "| xfs | sequential | 2 | 150,000 ± 70,711 | 75,000 ± 35,355 | 200,000 ± 0 | 1.50 ± 0.71 | 3.00 ± 1.41 |\n";
        assert_eq!(text, wanted);
    }
}
