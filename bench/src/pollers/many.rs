//! CPU time for each request and memory of the server, over the number of its disks and queues.

use std::path::Path;

use anyhow::Result;
use flowstone_experiment::plot::{Axes, Lines, draw_panels};
use flowstone_experiment::{CPU_US, Experiment, Figures, GAP_MS, IOPS, P99_US, figures, table};
use flowstone_testkit::load::LoadOptions;
use tempfile::tempdir_in;

use super::PollersArgs;
use crate::disks::{Disks, Server, Who};
use crate::idle::{ANONYMOUS_MIB, figure_of};
use crate::place::{TMPFS, drive, pass, serve, stop, timed};

/// Requests in flight, over all disks or queues; at least one for each busy one.
const IN_FLIGHT: usize = 64;
/// Disks, and how many of them are busy.
const DISKS: [(usize, usize); 7] =
    [(1, 1), (4, 4), (16, 16), (64, 64), (200, 200), (20, 20), (200, 20)];
const QUEUES: [usize; 4] = [1, 4, 16, 64];
/// Total size of all disks.
const BYTES: u64 = 800 << 20;
/// Beginning of the points' names.
const PREFIX: &str = "many, ";
const OURS: Who = Who::Flowstone("auto");
const PEER: Who = Who::QsdOneThread;

/// Measures all numbers of disks beside qemu-storage-daemon, and all numbers of queues.
pub fn measure(args: &PollersArgs, experiment: &mut Experiment) -> Result<String> {
    let cpus = [args.place.server_cpu];
    for (count, busy) in DISKS {
        let disks = Disks { bytes: BYTES / count as u64 / 4096 * 4096, ..Disks::on_tmpfs(count) };
        let start = |who: Who| Server::start(&args.place, who, disks, &cpus, "");
        let servers = [(OURS.name(), start(OURS)?), (PEER.name(), start(PEER)?)];
        let point = [(format!("{PREFIX}{count} disks, {busy} busy"), ())];
        experiment.run(args.run.rounds, &point, &servers, |(), server| {
            let depth = IN_FLIGHT.div_ceil(busy);
            let loads: Vec<LoadOptions> = server.sockets()[..busy]
                .iter()
                .zip(1..)
                .map(|(at, seed)| LoadOptions { seed, ..load(args, at, depth) })
                .collect();
            let (report, _) = server.drive_each(&loads)?;
            with_memory(figures(&report), server.pid())
        })?;
        servers.into_iter().try_for_each(|(_, server)| server.stop())?;
    }
    for queues in QUEUES {
        let dir = tempdir_in(TMPFS)?;
        let (image, socket) = (dir.path().join("disk.raw"), dir.path().join("sock"));
        args.place.create::<&str>(&image, "raw", BYTES, &[])?;
        let command = serve(&args.place.program()?, &socket).args(["--direct", "off"]);
        let command = command.args(["--queues", &queues.to_string()]).arg(image);
        let mut daemon = args.place.start(command, &socket)?;
        drive(&pass(LoadOptions::new(&socket), "write", BYTES))?;
        let point = [(format!("{PREFIX}1 disk, {queues} queues"), ())];
        experiment.run(args.run.rounds, &point, &[(OURS.name(), ())], |(), ()| {
            let mut load = load(args, &socket, IN_FLIGHT.div_ceil(queues));
            (load.client.queues, load.server_pid) = (queues, Some(daemon.pid()));
            with_memory(figures(&drive(&load)?), daemon.pid())
        })?;
        stop(&mut daemon)?;
    }
    Ok(format!(
        "Random reads of 4 KiB on tmpfs, {IN_FLIGHT} in flight over all busy disks or queues, or one \
         for each; server on CPU {}, one client thread on CPU {}, which polls. Memory is the \
         server's own. {} rounds of {} s.",
        args.place.server_cpu, args.place.client_cpu, args.run.rounds, args.runtime,
    ))
}

fn load(args: &PollersArgs, socket: &Path, depth: usize) -> LoadOptions {
    let load = args.place.load(socket, "randread", depth as u16);
    LoadOptions { limit: timed(args.runtime), ..load }
}

fn with_memory(mut figures: Figures, pid: u32) -> Result<Figures> {
    figures.push((ANONYMOUS_MIB, figure_of(pid, "status", "RssAnon:")? / 1024.0));
    Ok(figures)
}

/// Draws CPU time, memory, and the longest gap, of which no hold of a lock in the same round is
/// longer: the server has one thread, and completes nothing while that waits.
pub fn plot(path: &Path, experiment: &Experiment) -> Result<()> {
    let panels = [
        (CPU_US, "us of CPU for each request"),
        (ANONYMOUS_MIB, "memory, MiB"),
        (GAP_MS, "longest time without a completion, ms"),
    ];
    let panels = panels.map(|(figure, y)| {
        let mut lines = Lines::new();
        for point in experiment.points() {
            let Some((count, unit)) = line_of(point) else { continue };
            for server in experiment.contenders(point) {
                let name = format!("{unit}, {}", server.trim_matches('`'));
                let value = experiment.at(point, server).median(figure).unwrap_or(0.0);
                lines.entry(name).or_default().push((count, value));
            }
        }
        let axes = Axes { x: "disks or queues", y, is_log: true, below: String::new() };
        (axes, lines)
    });
    draw_panels(path, &panels.each_ref().map(|(axes, lines)| (axes, lines)))
}

/// Returns the number and the unit of a point's place on the x axis, unless some disks are idle.
fn line_of(point: &str) -> Option<(f64, &'static str)> {
    let what = point.strip_prefix(PREFIX)?;
    if let Some(queues) = what.strip_prefix("1 disk, ") {
        return Some((queues.split(' ').next()?.parse().ok()?, "queues"));
    }
    let (count, busy) = what.split_once(" disks, ")?;
    (busy.strip_suffix(" busy") == Some(count)).then_some((count.parse().ok()?, "disks"))
}

/// Renders the table.
pub fn render(experiment: &Experiment) -> String {
    let mut rows = Vec::new();
    for point in experiment.points() {
        let Some(what) = point.strip_prefix(PREFIX) else { continue };
        rows.extend(experiment.contenders(point).iter().map(|server| {
            let of = experiment.at(point, server);
            let figures = [(CPU_US, 2), (ANONYMOUS_MIB, 1), (P99_US, 1), (GAP_MS, 1)];
            let cells = figures.map(|(figure, digits)| of.cell(figure, digits));
            [&[what.to_owned(), (*server).to_owned(), of.count(IOPS)][..], &cells].concat()
        }));
    }
    table(
        "disks or queues | server | IOPS | CPU us/IO | memory, MiB | p99 us | longest gap, ms",
        rows,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_points_whose_disks_are_all_busy() {
        assert_eq!(line_of("many, 16 disks, 16 busy"), Some((16.0, "disks")));
        assert_eq!(line_of("many, 200 disks, 20 busy"), None);
        assert_eq!(line_of("many, 1 disk, 64 queues"), Some((64.0, "queues")));
    }
}
