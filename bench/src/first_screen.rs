//! The table of README's first screen: selected points of the comparison, all from one run.

use flowstone_experiment::{CPU_US, Experiment, IOPS, Of, P99_US, table, thousands};

use crate::idle::{self, CPU_PERCENT, RSS_MIB, THREADS};
use crate::markdown::{best, best_qsd};
use crate::point::Point;
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

/// Renders the table.
pub fn render(experiment: &Experiment) -> String {
    let points = Point::all();
    let measured = experiment.points();
    let rows =
        ROWS.iter().filter(|(name, _)| measured.contains(name)).filter_map(|(name, title)| {
            let point = points.iter().find(|point| point.name == *name)?;
            Some(row(title, experiment, point))
        });
    let titles = "requests/s (server CPU each); 4 KiB, one queue | Flowstone | qemu-storage-daemon | \
                  ratio (95 %) | plain fio, or our raw image | ratio (95 %) | \
                  p99, ratio to the QSD's or raw's";
    table(titles, rows.chain(idle_row(experiment)))
}

fn row(title: &str, experiment: &Experiment, point: &Point) -> Vec<String> {
    let ours = best(experiment, point, |server| server == Server::Flowstone);
    let qsd = best_qsd(experiment, point);
    let is_beside = |server| matches!(server, Server::Fio | Server::FlowstoneRaw);
    let beside = best(experiment, point, is_beside);
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

fn idle_row(experiment: &Experiment) -> Option<Vec<String>> {
    let servers = experiment.contenders(idle::NAME);
    let cell = |wanted: &str| {
        let found = servers.iter().find(|name| name.starts_with(wanted));
        found.map_or(String::new(), |name| {
            let own = experiment.at(idle::NAME, name);
            let [cpu, memory, threads] = [(CPU_PERCENT, 3), (RSS_MIB, 1), (THREADS, 0)]
                .map(|(figure, digits)| own.cell(figure, digits));
            format!("{cpu} %, {memory} MiB, {threads} threads")
        })
    };
    let row = vec!["8 idle disks: CPU, memory".to_owned(), cell("Flowstone"), cell("QSD")];
    (!servers.is_empty()).then_some(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_names_a_point_of_the_comparison() {
        let points = Point::all();
        for (name, _) in ROWS {
            assert!(points.iter().any(|point| point.name == name), "{name}");
        }
    }
}
