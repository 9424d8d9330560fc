//! One queue at depth on a disk that answers at once, and how near to each other the CPUs of the
//! server and the client were meanwhile.

use std::path::{Path, PathBuf};

use anyhow::Result;
use flowstone_experiment::noise::{HANDOVER_NS, handover_ns};
use flowstone_experiment::{Experiment, IOPS, figures, median, spread, table};
use flowstone_testkit::process::Ready;
use flowstone_testkit::{Daemon, DaemonCommand};
use tempfile::tempdir_in;

use super::PollersArgs;
use crate::place::{TMPFS, drive, serve, stop, timed};
use crate::server::qsd;

/// Beginning of the points' names.
const PREFIX: &str = "depth, ";
const OURS: &str = "`auto`";
const PEER: &str = "QSD";
/// Queues, and requests in flight in each.
const POINTS: [(&str, (usize, u16)); 3] =
    [("QD1", (1, 1)), ("QD32", (1, 32)), ("2 queues, QD32", (2, 32))];
/// CPUs are near while a line takes less than this many times the median of all runs.
const NEAR: f64 = 2.0;

/// Measures both servers in turn at each depth.
pub fn measure(args: &PollersArgs, experiment: &mut Experiment) -> Result<String> {
    let dir = tempdir_in(TMPFS)?;
    let (own, peer) = (dir.path().join("own"), dir.path().join("peer"));
    let (mut own_daemon, mut peer_daemon) = (start(args, &own)?, start_peer(args, &peer)?);
    let points = POINTS.map(|(name, point)| (format!("{PREFIX}{name}"), point));
    let contenders = [(OURS, own), (PEER, peer)];
    experiment.run(
        args.run.rounds,
        &points,
        &contenders,
        |&(queues, depth), socket: &PathBuf| {
            let handover = || handover_ns([args.place.server_cpu, args.place.client_cpu]);
            let before = handover()?;
            let mut load = args.place.load(socket, "randread", depth);
            (load.client.queues, load.limit) = (queues, timed(args.runtime));
            let mut figures = figures(&drive(&load)?);
            figures.push((HANDOVER_NS, before.max(handover()?)));
            Ok(figures)
        },
    )?;
    stop(&mut own_daemon)?;
    peer_daemon.kill()?;
    Ok(format!(
        "Random reads of 4 KiB of a null disk; server on CPU {}, one client thread on CPU {}, \
         which polls. A line of memory that both CPUs write in turn takes a time that depends on \
         where the host runs them: *near* are runs before and after which it took less than \
         {NEAR} times the median of all. {} runs of {} s each, in turn. To reach: the worst \
         run 2.5, 2.0 and 2.2 times QSD's median.",
        args.place.server_cpu, args.place.client_cpu, args.run.rounds, args.runtime,
    ))
}

fn start(args: &PollersArgs, socket: &Path) -> Result<Daemon> {
    let command = serve(&args.place.program()?, socket).args(["--queues", "2"]);
    args.place.start(command.args(["--backend", "null:8G"]), socket)
}

fn start_peer(args: &PollersArgs, socket: &Path) -> Result<Daemon> {
    let command = DaemonCommand::new(qsd::PROGRAM).args(["--object", "iothread,id=t"]);
    let command = qsd::export(command, "d", qsd::NULL, socket, 2, Some("t"));
    args.place.start(command.ready(Ready::Sockets(vec![socket.to_owned()])), socket)
}

/// Renders the table.
pub fn render(experiment: &Experiment) -> String {
    let points = || experiment.points().into_iter().filter(|point| point.starts_with(PREFIX));
    let of = |name| points().flat_map(move |point| experiment.at(point, name).all(HANDOVER_NS));
    let times: Vec<f64> = of(OURS).chain(of(PEER)).collect();
    let middle_ns = median(times.clone()).unwrap_or(f64::NAN);
    let rows = points().map(|point| {
        let [own, peer] = [OURS, PEER].map(|name| experiment.at(point, name));
        let runs = |is_near: bool| {
            [own, peer].map(|of| {
                let runs = of.all(IOPS).into_iter().zip(of.all(HANDOVER_NS));
                let those = runs.filter(|(_, ns)| (*ns < NEAR * middle_ns) == is_near);
                those.map(|(rate, _)| rate).collect::<Vec<f64>>()
            })
        };
        let ([near, peer_near], [far, peer_far]) = (runs(true), runs(false));
        let middle = |runs: &[f64]| median(runs.to_vec());
        let ratio = |rate: Option<f64>, to: &[f64]| match (rate, middle(to)) {
            (Some(rate), Some(to)) => format!("{:.2}", rate / to),
            _ => "-".to_owned(),
        };
        let rates = |runs: &[f64]| format!("{} of {}", spread(runs.to_vec()), runs.len());
        let worst = near.iter().copied().reduce(f64::min);
        vec![
            point[PREFIX.len()..].to_owned(),
            rates(&near),
            rates(&peer_near),
            ratio(middle(&near), &peer_near),
            ratio(worst, &peer_near),
            rates(&far),
            rates(&peer_far),
            ratio(middle(&far), &peer_far),
        ]
    });
    let titles = "load | near: IOPS, of runs | QSD's IOPS | ratio | worst run to QSD's median | far: IOPS, \
                  of runs | QSD's IOPS | ratio";
    let at = |end: fn(f64, f64) -> f64| times.iter().copied().reduce(end).unwrap_or(f64::NAN);
    format!(
        "{}\nThe line takes {middle_ns:.0} ns ({:.0}-{:.0}).\n",
        table(titles, rows),
        at(f64::min),
        at(f64::max),
    )
}
