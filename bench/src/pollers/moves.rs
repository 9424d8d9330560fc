//! Queues that move between pollers because their loads change.

use std::time::Duration;

use anyhow::{Context, Result};
use flowstone_experiment::command::number;
use flowstone_experiment::{Experiment, GAP_MS, table, turns};
use flowstone_testkit::load::{Completion, LoadOptions};
use serde_json::Value;

use super::PollersArgs;
use crate::disks::{Disks, Server, Who};
use crate::place::seconds;

const DISKS: usize = 4;
const CHOICES: [&str; 2] = ["2", "auto"];
const POINT: &str = "moves";
const MOVES: &str = "moves";
const MEAN_US: &str = "mean_us";
const LONGEST_US: &str = "longest_us";
/// Long enough for two moves: loads are checked every 100 ms, and a moved queue stays for 500 ms.
const PHASE: f64 = 0.9;
const PHASES_PER_ROUND: usize = 4;
/// Pairs of heavily loaded disks, in turn; the others are lightly loaded.
const HARD: [[usize; 2]; 6] = [[0, 1], [2, 3], [0, 2], [1, 3], [0, 3], [1, 2]];

/// Measures with two pollers, and with as many as are needed.
pub fn measure(args: &PollersArgs, experiment: &mut Experiment) -> Result<String> {
    let cpus = [args.place.server_cpu, args.place.client_cpu];
    for round in 0..args.run.rounds {
        for choice in turns(round, &CHOICES) {
            let disks = Disks::on_tmpfs(DISKS);
            let server = Server::start(&args.place, Who::Flowstone(choice), disks, &cpus, "")?;
            let mut gap_ms = 0.0_f64;
            for phase in 0..PHASES_PER_ROUND {
                let hard = HARD[(round * PHASES_PER_ROUND + phase) % HARD.len()];
                gap_ms = gap_ms.max(drive(args, &server, hard)?);
            }
            let [moves, mean, longest] = moved(&server.stats()?)?;
            server.stop()?;
            let figures =
                [(MOVES, moves), (MEAN_US, mean), (LONGEST_US, longest), (GAP_MS, gap_ms)];
            experiment.add(POINT, choice, &figures);
        }
    }
    Ok(format!(
        "{DISKS} disks on tmpfs; in turn two of them have random reads of 4 KiB at QD32, the others \
         1,000 a second at QD1, so that queues move. Server on CPUs {} and {}, the client on the \
         latter, asleep while it waits. From the last drained completion of a queue on one poller \
         until it may submit on the other. To reach: 200 us.",
        cpus[0], cpus[1],
    ))
}

/// Renders the table.
pub fn render(experiment: &Experiment) -> String {
    let rows = CHOICES.map(|choice| {
        let own = experiment.at(POINT, choice);
        let longest = own.all(LONGEST_US).into_iter().fold(0.0, f64::max);
        vec![
            format!("`{choice}`"),
            own.count(MOVES),
            own.spread(MEAN_US, 1),
            own.spread(LONGEST_US, 1),
            format!("{longest:.1}"),
            own.spread(GAP_MS, 1),
        ]
    });
    let titles = "pollers | moves of a round | mean, us | longest of a round, us | of all, us | \
                  longest gap without an answer, ms";
    table(titles, rows)
}

/// Drives all disks for a phase. Returns the longest time without a completion.
fn drive(args: &PollersArgs, server: &Server, hard: [usize; 2]) -> Result<f64> {
    let load = |(disk, socket)| {
        let load = LoadOptions::new(socket);
        let mut load = if hard.contains(&disk) { load.iodepth(32) } else { load.rate(1000.0) };
        (load.threads, load.cpus) = (1, vec![args.place.client_cpu]);
        load.completion = Completion::Eventfd;
        load.limit = seconds(Duration::ZERO, PHASE);
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
        let moves = number(poller, "moves")?;
        count += moves;
        sum += moves * number(poller, "move_us_mean")?;
        longest = longest.max(number(poller, "move_us_max")?);
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
