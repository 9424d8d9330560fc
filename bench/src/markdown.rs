//! The tables of the comparison, as Markdown.

use flowstone_experiment::noise::{LIMIT_PERCENT, OTHERS_PERCENT};
use flowstone_experiment::{
    CALLS_PER_IO, CPU_US, IOPS, KICKS_PER_IO, Of, P50_US, P99_US, table, thousands,
};

use crate::compare::{Contender, Group, Report};
use crate::idle::{self, ANONYMOUS_MIB, CPU_PERCENT, RSS_MIB, THREADS, WAKEUPS};
use crate::point::Backend;
use crate::server::Server;

/// Renders the whole report.
pub fn render(report: &Report<'_>) -> String {
    let mut text = preamble(report);
    let headings = [
        (Backend::Null, "Null backend, client polls"),
        (Backend::Tmpfs, "Raw file on tmpfs, page cache, client polls"),
        (Backend::Disk, "Raw file on a disk, O_DIRECT, client sleeps"),
        (
            Backend::Warm,
            "The same, read before: in the cache (O_DIRECT) or in the page cache; client polls",
        ),
        (Backend::NewQcow2, "New qcow2 image on a disk, O_DIRECT, client sleeps"),
        (
            Backend::NewLog,
            "New log image with room, nothing is cleaned: a burst; O_DIRECT, client sleeps",
        ),
        (
            Backend::SteadyLog,
            "Full log image, overwritten four times at random: cleaning keeps pace; O_DIRECT, client sleeps",
        ),
    ];
    for (backend, heading) in headings {
        let points: Vec<_> = report.points.iter().filter(|p| p.point.backend == backend).collect();
        if !points.is_empty() {
            text += &format!("\n### {heading}\n\n{}", load_table(report, &points));
        }
    }
    if !report.idle.is_empty() {
        text += "\n### Idle, 8 connected disks in one daemon\n\n";
        text += &idle_table(report);
    }
    text
}

fn preamble(report: &Report<'_>) -> String {
    let (args, host) = (report.args, report.experiment.host());
    let paragraphs = [
        host.sentence(),
        format!(
            "Server on CPU {}, client on CPU {} (one thread), queue size 128; plain fio is one \
             io_uring job on CPU {}, without a server, and its us/IO is its own CPU. {} rounds \
             of {} s a point, servers in turn; medians, rates with (min-max). Ratios are those \
             of the rates of a round, with the interval that holds the true one in 95 % of all runs \
             (of 6 rounds and more); QSD is its better engine at that point. \"Noisy\" is a point during which others used \
             that share of the machine: do not trust it.",
            args.base.place.server_cpu,
            args.base.place.client_cpu,
            args.base.place.client_cpu,
            args.base.run.rounds,
            args.base.runtime
        ),
        match &args.device {
            Some(device) => format!("Disk: {}, {}.", device.display(), host.device),
            None => format!("Disk image: {} MiB, {}.", args.base.size >> 20, host.device),
        },
    ];
    let version = |(program, version): &(String, String)| format!("- {program}: {version}\n");
    let versions: String = host.versions.iter().map(version).collect();
    format!("{}\n\n{versions}", paragraphs.join("\n\n"))
}

fn load_table(report: &Report<'_>, points: &[&Group]) -> String {
    let rows = points
        .iter()
        .flat_map(|group| group.servers.iter().map(|contender| load_row(report, group, contender)));
    let titles = "point | server | IOPS median (min-max) | p50 us | p99 us | server CPU us/IO | \
                  kicks/IO | calls/IO | vs QSD | vs fio | vs our raw";
    table(titles, rows)
}

fn load_row(report: &Report<'_>, group: &Group, contender: &Contender) -> Vec<String> {
    let Contender { name, failures, .. } = contender;
    let mut row = vec![group.point.title.clone(), name.clone()];
    let own = report.experiment.at(&group.point.name, name);
    let Some(rate) = own.median(IOPS) else {
        row.push(contender.problem());
        return row;
    };
    let mut remarks = String::new();
    if !failures.is_empty() {
        remarks += &format!(", {} failed", failures.len());
    }
    let others = own.all(OTHERS_PERCENT).into_iter().fold(0.0, f64::max);
    if others > LIMIT_PERCENT {
        remarks += &format!(", noisy: {others:.0} %");
    }
    let rates = own.all(IOPS).into_iter();
    let (least, most) = (rates.clone().fold(rate, f64::min), rates.fold(rate, f64::max));
    let ratio = |to: Option<Of<'_>>| to.map_or("-".to_owned(), |to| own.ratio(to, IOPS));
    let [rate, least, most] = [rate, least, most].map(thousands);
    row.extend([
        format!("{rate} ({least}-{most}){remarks}"),
        own.cell(P50_US, 1),
        own.cell(P99_US, 1),
        own.cell(CPU_US, 2),
        own.cell(KICKS_PER_IO, 3),
        own.cell(CALLS_PER_IO, 3),
        ratio(report.best_qsd(group)),
        ratio(report.best(group, |server| server == Server::Fio)),
        ratio(report.best(group, |server| server == Server::FlowstoneRaw)),
    ]);
    row
}

fn idle_table(report: &Report<'_>) -> String {
    let row = |contender: &Contender| {
        let own = report.experiment.at(idle::NAME, &contender.name);
        let digits =
            [(CPU_PERCENT, 3), (WAKEUPS, 1), (THREADS, 0), (RSS_MIB, 1), (ANONYMOUS_MIB, 1)];
        let mut row = vec![contender.name.clone()];
        match own.median(CPU_PERCENT) {
            Some(_) => row.extend(digits.map(|(figure, digits)| own.cell(figure, digits))),
            None => row.push(contender.problem()),
        }
        row
    };
    let titles = "server | CPU % | wakeups/s | threads | RSS MiB | anonymous MiB";
    table(titles, report.idle.iter().map(row))
}

#[cfg(test)]
mod tests;
