//! Latency beside busy processes on the CPU of the server.

use std::process::{Child, Command};

use anyhow::Result;
use flowstone_experiment::{Experiment, P50_US, P99_US, table};
use flowstone_testkit::load::{Completion, LoadOptions};

use super::{PollersArgs, interleave};
use crate::disks::{Disks, Server, Servers, Who};

const NICE: i8 = -10;
const OURS: [&str; 2] = ["auto", "per-queue"];
const PEERS: [Who; 2] = [Who::Qsd, Who::QsdOneThread];
const RATE: f64 = 2000.0;
const LOOPS: usize = 2;
/// Beginning of the points' names.
const PREFIX: &str = "busy, ";
const TITLES: &str =
    "client | server | alone: p50 us | p99 us | beside: p50 us | p99 us | p99, ratio (95 %)";
const ALONE: &str = "alone";
const BESIDE: &str = "beside";

/// Processes that never sleep.
struct Loops(Vec<Child>);

impl Loops {
    fn start(cpu: usize, count: usize) -> Result<Self> {
        let mut loops = Self(Vec::new());
        for _ in 0..count {
            let mut command = Command::new("taskset");
            command.args(["-c", &cpu.to_string(), "sh", "-c", "while :; do :; done"]);
            loops.0.push(command.spawn()?);
        }
        Ok(loops)
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Measures at depth one, with and without busy loops.
pub fn measure(args: &PollersArgs, experiment: &mut Experiment) -> Result<String> {
    let servers = start(args)?;
    for (client, completion) in [("sleeps", Completion::Eventfd), ("polls", Completion::Poll)] {
        for (beside, count) in [(ALONE, 0), (BESIDE, LOOPS)] {
            let loops = Loops::start(args.place.server_cpu, count)?;
            let point = format!("{PREFIX}{client}, {beside}");
            interleave(args, &point, &servers, experiment, |load| LoadOptions {
                completion,
                ..load.rate(RATE).iodepth(1)
            })?;
            drop(loops);
        }
    }
    servers.stop()?;
    Ok(format!(
        "One disk on tmpfs with one queue, {RATE} random reads of 4 KiB a second at random moments, \
         at depth one: alone, and beside {LOOPS} processes on the CPU of the server that never \
         sleep. Server on CPU {}, client on CPU {}. {} rounds of {} s. To reach: a p99 of at most \
         twice that alone.",
        args.place.server_cpu, args.place.client_cpu, args.run.rounds, args.runtime,
    ))
}

/// Starts each choice of pollers as nice as its process, and less nice, and the peers.
fn start(args: &PollersArgs) -> Result<Servers> {
    let disks = Disks::on_tmpfs(1);
    let cpus = [args.place.server_cpu];
    let mut servers = Vec::new();
    for choice in OURS {
        let who = Who::Flowstone(choice);
        servers.push(Server::start(&args.place, who, disks, &cpus, "")?);
        let keys = format!("poller_nice = {NICE}\n");
        let mut less_nice = Server::start(&args.place, who, disks, &cpus, &keys)?;
        less_nice.name = format!("{}, `--poller-nice {NICE}`", who.name());
        servers.push(less_nice);
    }
    for peer in PEERS {
        servers.push(Server::start(&args.place, peer, disks, &cpus, "")?);
    }
    Ok(Servers(servers))
}

/// Renders the table.
pub fn render(experiment: &Experiment) -> String {
    let mut rows = Vec::new();
    for client in ["sleeps", "polls"] {
        let [alone, beside] = [ALONE, BESIDE].map(|it| format!("{PREFIX}{client}, {it}"));
        rows.extend(experiment.contenders(&alone).into_iter().map(|server| {
            let [alone, beside] = [&alone, &beside].map(|point| experiment.at(point, server));
            vec![
                client.to_owned(),
                server.to_owned(),
                alone.cell(P50_US, 1),
                alone.cell(P99_US, 1),
                beside.cell(P50_US, 1),
                beside.cell(P99_US, 1),
                beside.ratio(alone, P99_US),
            ]
        }));
    }
    table(TITLES, rows)
}
