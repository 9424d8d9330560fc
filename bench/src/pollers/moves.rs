//! Queues that move between pollers because their loads change.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use flowstone_testkit::load::{Completion, Limit, LoadOptions};
use serde_json::Value;

use super::PollersArgs;
use super::server::{Disks, Server, TMPFS, Who};

const DISKS: usize = 4;
const BYTES: u64 = 64 << 20;
/// Long enough for two moves: loads are checked every 100 ms, and a moved queue stays for 500 ms.
const PHASE: Duration = Duration::from_millis(900);
const PHASES_PER_ROUND: usize = 4;
/// Pairs of heavily loaded disks, in turn; the others are lightly loaded.
const HARD: [[usize; 2]; 6] = [[0, 1], [2, 3], [0, 2], [1, 3], [0, 3], [1, 2]];

/// Measures with two pollers, and with as many as are needed.
pub fn measure(args: &PollersArgs) -> Result<String> {
    let cpus = [args.server_cpu, args.client_cpu];
    let mut text = format!(
        "{DISKS} disks on tmpfs; in turn two of them have random reads of 4 KiB at QD32, the others 1,000 a second at QD1, so \
         that queues move. Server on CPUs {} and {}, the client on the latter, asleep while it waits. From the last \
         drained completion of a queue on one poller until it may submit on the other. To reach: 200 us.\n\n\
         | pollers | moves | mean, us | longest, us | longest gap without an answer, ms |\n\
         |---|---:|---:|---:|---:|\n",
        cpus[0], cpus[1],
    );
    let disks = Disks { count: DISKS, bytes: BYTES, sparse: false, dir: Path::new(TMPFS) };
    for choice in ["2", "auto"] {
        let server = Server::start(args, Who::Flowstone(choice), disks, &cpus, "")?;
        let mut gap_ms = 0.0f64;
        for phase in 0..args.rounds * PHASES_PER_ROUND {
            let hard = HARD[phase % HARD.len()];
            gap_ms = gap_ms.max(drive(args, &server, hard)?);
        }
        let [moves, mean, longest] = moved(&server.stats()?)?;
        eprintln!("{choice}: {moves} moves, {mean:.1} us, at most {longest:.1} us");
        text += &format!("| `{choice}` | {moves} | {mean:.1} | {longest:.1} | {gap_ms:.1} |\n");
        server.stop()?;
    }
    Ok(text)
}

/// Drives all disks for a phase. Returns the longest time without a completion.
fn drive(args: &PollersArgs, server: &Server, hard: [usize; 2]) -> Result<f64> {
    let load = |(disk, socket)| {
        let load = LoadOptions::new(socket);
        let mut load = if hard.contains(&disk) { load.iodepth(32) } else { load.rate(1000.0) };
        (load.threads, load.cpus) = (1, vec![args.client_cpu]);
        load.completion = Completion::Eventfd;
        load.limit = Limit::Time { ramp: Duration::ZERO, runtime: PHASE };
        load
    };
    let loads: Vec<LoadOptions> = server.sockets().iter().enumerate().map(load).collect();
    Ok(server.drive_each(&loads)?.0.longest_gap_ms)
}

/// Returns the number of moves, and their mean and longest duration in microseconds.
fn moved(stats: &Value) -> Result<[f64; 3]> {
    let pollers = stats["pollers"].as_array().context("no pollers in the statistics")?;
    let (mut count, mut sum, mut longest) = (0.0, 0.0, 0.0f64);
    for poller in pollers {
        let number = |name: &str| poller[name].as_f64().with_context(|| format!("no {name}"));
        let moves = number("moves")?;
        count += moves;
        sum += moves * number("move_us_mean")?;
        longest = longest.max(number("move_us_max")?);
    }
    Ok([count, sum / f64::max(count, 1.0), longest])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn moves_of_all_pollers_are_summed_up() {
        let poller = |moves: u64, mean: f64, max: f64| json!({ "moves": moves, "move_us_mean": mean, "move_us_max": max });
        let stats = json!({ "pollers": [poller(3, 10.0, 20.0), poller(1, 30.0, 30.0)] });
        assert_eq!(moved(&stats).unwrap(), [4.0, 15.0, 30.0]);
        assert_eq!(moved(&json!({ "pollers": [] })).unwrap(), [0.0; 3]);
        assert!(moved(&json!({})).is_err());
    }
}
