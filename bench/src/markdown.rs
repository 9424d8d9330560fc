//! The tables of the comparison, as Markdown.

use flowstone_experiment::noise::{LIMIT_PERCENT, OTHERS_PERCENT};
use flowstone_experiment::{
    CALLS_PER_IO, CPU_US, Experiment, IOPS, KICKS_PER_IO, Of, P50_US, P99_US, table, thousands,
};

use crate::idle::{self, ANONYMOUS_MIB, CPU_PERCENT, RSS_MIB, THREADS, WAKEUPS};
use crate::point::{Backend, Point};
use crate::server::Server;

/// Renders all tables.
pub fn render(experiment: &Experiment) -> String {
    let mut text = String::new();
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
    let measured = experiment.points();
    let is_measured = |point: &Point| measured.contains(&&*point.name);
    let points: Vec<_> = Point::all().into_iter().filter(is_measured).collect();
    for (backend, heading) in headings {
        let points: Vec<_> = points.iter().filter(|point| point.backend == backend).collect();
        if !points.is_empty() {
            text += &format!("### {heading}\n\n{}\n", load_table(experiment, &points));
        }
    }
    if measured.contains(&idle::NAME) {
        text += "### Idle, 8 connected disks in one daemon\n\n";
        text += &idle_table(experiment);
    }
    text
}

/// Returns the figures of the fastest of some servers.
pub fn best<'a>(
    experiment: &'a Experiment,
    at: &'a Point,
    wanted: impl Fn(Server) -> bool,
) -> Option<Of<'a>> {
    let servers = Server::for_point(at).into_iter().filter(|server| wanted(*server));
    let names: Vec<_> = servers.map(|server| server.name(at.backend)).collect();
    let own = experiment
        .contenders(&at.name)
        .into_iter()
        .filter(|name| names.contains(&(*name).to_owned()));
    let rates = own.filter_map(|name| {
        let of = experiment.at(&at.name, name);
        Some((of, of.median(IOPS)?))
    });
    rates.max_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(of, _)| of)
}

/// Returns the figures of qemu-storage-daemon with its better engine.
pub fn best_qsd<'a>(experiment: &'a Experiment, at: &'a Point) -> Option<Of<'a>> {
    best(experiment, at, |server| matches!(server, Server::Qsd(_)))
}

fn load_table(experiment: &Experiment, points: &[&Point]) -> String {
    let rows = points.iter().flat_map(|point| {
        let servers = experiment.contenders(&point.name).into_iter();
        servers.map(|server| load_row(experiment, point, server))
    });
    let titles = "point | server | IOPS median (min-max) | p50 us | p99 us | server CPU us/IO | \
                  kicks/IO | calls/IO | vs QSD | vs fio | vs our raw";
    table(titles, rows)
}

fn load_row(experiment: &Experiment, point: &Point, server: &str) -> Vec<String> {
    let own = experiment.at(&point.name, server);
    let rates = own.all(IOPS).into_iter();
    let failed = own.all_rounds(IOPS) - rates.len();
    let mut remarks = String::new();
    if failed > 0 {
        remarks += &format!(", {failed} failed");
    }
    let others = own.all(OTHERS_PERCENT).into_iter().fold(0.0, f64::max);
    if others > LIMIT_PERCENT {
        remarks += &format!(", noisy: {others:.0} %");
    }
    let most = rates.clone().fold(0.0, f64::max);
    let least = rates.fold(most, f64::min);
    let rate = own.median(IOPS).map_or("-".to_owned(), |rate| {
        let [rate, least, most] = [rate, least, most].map(thousands);
        format!("{rate} ({least}-{most})")
    });
    let ratio = |to: Option<Of<'_>>| to.map_or("-".to_owned(), |to| own.ratio(to, IOPS));
    vec![
        point.title.clone(),
        server.to_owned(),
        rate + &remarks,
        own.cell(P50_US, 1),
        own.cell(P99_US, 1),
        own.cell(CPU_US, 2),
        own.cell(KICKS_PER_IO, 3),
        own.cell(CALLS_PER_IO, 3),
        ratio(best_qsd(experiment, point)),
        ratio(best(experiment, point, |server| server == Server::Fio)),
        ratio(best(experiment, point, |server| server == Server::FlowstoneRaw)),
    ]
}

fn idle_table(experiment: &Experiment) -> String {
    let digits = [(CPU_PERCENT, 3), (WAKEUPS, 1), (THREADS, 0), (RSS_MIB, 1), (ANONYMOUS_MIB, 1)];
    let row = |server: &str| {
        let own = experiment.at(idle::NAME, server);
        let cells = digits.map(|(figure, digits)| own.spread(figure, digits));
        [&[server.to_owned()][..], &cells].concat()
    };
    let titles = "server | CPU % | wake-ups/s | threads | RSS MiB | anonymous MiB";
    table(titles, experiment.contenders(idle::NAME).into_iter().map(row))
}

#[cfg(test)]
mod tests;
