//! The table of README's first screen: selected points of the comparison, all from one run.

use flowstone_experiment::{CPU_US, IOPS, Of, P99_US, table, thousands};

use crate::compare::{Group, Report};
use crate::idle::{self, CPU_PERCENT, RSS_MIB, THREADS};
use crate::server::Server;

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
    let rows = ROWS.iter().filter_map(|(name, title)| {
        let group = report.points.iter().find(|group| group.point.name == *name)?;
        Some(row(title, report, group))
    });
    let titles = "requests/s (server CPU each); 4 KiB, one queue | Flowstone | qemu-storage-daemon | \
                  ratio (95 %) | plain fio, or our raw image | ratio (95 %) | \
                  p99, ratio to the QSD's or raw's";
    let host = report.experiment.host();
    let versions: Vec<_> = host.versions.iter().map(|(_, version)| version.as_str()).collect();
    format!(
        "{}\n{} Medians of {} rounds of {} s, servers in turn, ratios with their 95 % intervals; {}.",
        table(titles, rows.chain(idle_row(report))),
        host.sentence(),
        report.args.base.run.rounds,
        report.args.base.runtime,
        versions.join(", ")
    )
}

fn row(title: &str, report: &Report<'_>, group: &Group) -> Vec<String> {
    let ours = report.best(group, |server| server == Server::Flowstone);
    let qsd = report.best_qsd(group);
    let beside = report.best(group, |server| matches!(server, Server::Fio | Server::FlowstoneRaw));
    vec![
        title.to_owned(),
        figure(ours),
        figure(qsd),
        ratio(ours, qsd, IOPS),
        figure(beside),
        ratio(ours, beside, IOPS),
        ratio(ours, qsd.or(beside), P99_US),
    ]
}

fn figure(of: Option<Of<'_>>) -> String {
    let rate = of.and_then(|of| of.median(IOPS));
    of.zip(rate).map_or(String::new(), |(of, rate)| {
        format!("{} ({} us)", thousands(rate), of.cell(CPU_US, 2))
    })
}

fn ratio(of: Option<Of<'_>>, to: Option<Of<'_>>, figure: &str) -> String {
    of.zip(to).map_or(String::new(), |(of, to)| of.ratio(to, figure))
}

fn idle_row(report: &Report<'_>) -> Option<Vec<String>> {
    let cell = |wanted: &str| {
        let found = report.idle.iter().find(|contender| contender.name.starts_with(wanted));
        let own = found.map(|contender| report.experiment.at(idle::NAME, &contender.name));
        own.filter(|own| own.median(CPU_PERCENT).is_some()).map_or(String::new(), |own| {
            let [cpu, memory, threads] = [(CPU_PERCENT, 3), (RSS_MIB, 1), (THREADS, 0)]
                .map(|(figure, digits)| own.cell(figure, digits));
            format!("{cpu} %, {memory} MiB, {threads} threads")
        })
    };
    let row = vec!["8 idle disks: CPU, memory".to_owned(), cell("Flowstone"), cell("QSD")];
    (!report.idle.is_empty()).then_some(row)
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
