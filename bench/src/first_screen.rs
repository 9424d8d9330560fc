//! The table of README's first screen: selected points of the comparison, all from one run.

use std::fmt::Write;

use crate::compare::{IdleResult, PointResult, ServerResult};
use crate::experiment::interval;
use crate::markdown::Report;
use crate::sample::Sample;
use crate::server::Server;
use crate::size::thousands;

/// Names of the points, and their titles in the table.
const ROWS: [(&str, &str); 13] = [
    ("null-randread-4k-qd1", "no disk behind it, QD1"),
    ("null-randread-4k-qd32", "no disk behind it, QD32"),
    ("tmpfs-randread-4k-qd32", "file in memory, random read QD32"),
    ("disk-randread-4k-qd1", "ext4 file, random read QD1"),
    ("disk-randread-4k-qd32", "ext4 file, random read QD32"),
    ("disk-randwrite-4k-qd32", "ext4 file, random write QD32"),
    ("warm-randread-4k-qd32", "read again, QD32: our cache, its page cache"),
    ("qcow2-new-randwrite-4k-qd32", "new qcow2 image, random write QD32"),
    ("log-new-randwrite-4k-qd32", "new log image, random write QD32 (a burst)"),
    ("log-steady-randwrite-4k-qd1", "full log image, random write QD1"),
    ("log-steady-randwrite-4k-qd32", "full log image, random write QD32"),
    ("log-steady-randwrite-4k-qd128", "full log image, random write QD128"),
    ("disk-write-128k-qd8", "ext4 file, 128 KiB sequential write QD8"),
];

/// Renders the table, with the origin of its figures.
pub fn render(report: &Report<'_>) -> String {
    let mut text = String::from(
        "| requests/s (server CPU each); 4 KiB, one queue | Flowstone | qemu-storage-daemon | ratio (95 %) \
         | plain fio, or our raw image | ratio (95 %) | p99, ratio to the QSD's or raw's |\n\
         |---|---:|---:|---|---:|---|---|\n",
    );
    for (name, title) in ROWS {
        if let Some(point) = report.points.iter().find(|point| point.point.name == name) {
            writeln!(text, "{}", row(title, point)).expect("strings take everything");
        }
    }
    text += &idle_row(report.idle);
    let versions = report.host.versions.iter().map(|(_, version)| version.as_str());
    let versions: Vec<_> = versions.collect();
    write!(
        text,
        "\n{} Medians of {} rounds of {} s, servers in turn, ratios with their 95 % intervals; {}.",
        report.host.sentence(),
        report.args.rounds,
        report.args.runtime,
        versions.join(", ")
    )
    .expect("strings take everything");
    text
}

fn row(title: &str, point: &PointResult) -> String {
    let ours = point.best(|server| server == Server::Flowstone);
    let qsd = point.best_qsd();
    let beside = point.best(|server| matches!(server, Server::Fio | Server::FlowstoneRaw));
    format!(
        "| {title} | {} | {} | {} | {} | {} | {} |",
        figure(ours),
        figure(qsd),
        ratio(ours, qsd, |sample| sample.iops),
        figure(beside),
        ratio(ours, beside, |sample| sample.iops),
        ratio(ours, qsd.or(beside), |sample| sample.p99_us),
    )
}

fn figure(of: Option<&ServerResult>) -> String {
    let summary = of.and_then(|result| result.summary.as_ref());
    summary.map_or(String::new(), |summary| {
        format!("{} ({:.2} us)", thousands(summary.iops), summary.server_us_per_io)
    })
}

fn ratio(
    of: Option<&ServerResult>,
    to: Option<&ServerResult>,
    figure: fn(&Sample) -> f64,
) -> String {
    of.zip(to).map_or(String::new(), |(of, to)| interval(of.ratios(to, figure)))
}

fn idle_row(results: &[IdleResult]) -> String {
    let cell = |wanted: &str| {
        let found = results.iter().find(|result| result.name.starts_with(wanted));
        let sample = found.and_then(|result| result.sample.as_ref());
        sample.map_or(String::new(), |sample| {
            let (cpu, memory, threads) = (sample.cpu_percent, sample.rss_mib, sample.threads);
            format!("{cpu:.3} %, {memory:.1} MiB, {threads} threads")
        })
    };
    match results {
        [] => String::new(),
        _ => format!(
            "| 8 idle disks: CPU, memory | {} | {} | | | | |\n",
            cell("Flowstone"),
            cell("QSD")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::Point;

    #[test]
    fn every_row_names_a_point_of_the_comparison() {
        let points = Point::all();
        for (name, _) in ROWS {
            assert!(points.iter().any(|point| point.name == name), "{name}");
        }
    }
}
