//! The report of a poller in `stats --json`.

use std::sync::atomic::Ordering;

use serde::Serialize;

use crate::CpuList;
use crate::numa::Topology;
use crate::poller::PollerCounters;

/// One poller; see docs/operating.md.
#[derive(Serialize)]
pub struct PollerReport {
    /// The CPU that it is pinned to; `null` if there is not exactly one.
    cpu: Option<usize>,
    /// The NUMA node of all its CPUs; `null` if there is none.
    node: Option<u32>,
    queues: u64,
    turns: u64,
    sleeps: u64,
    busy_s: f64,
    looking_s: f64,
    resting_s: f64,
    /// Queues moved here from other pollers.
    moves: u64,
    /// Mean time for which a moving queue ran nowhere, in microseconds.
    move_us_mean: f64,
    /// Longest time for which a moving queue ran nowhere, in microseconds.
    move_us_max: f64,
}

impl PollerReport {
    /// Reads its counters.
    pub fn of(cpus: &CpuList, topology: &Topology, counters: &PollerCounters) -> Self {
        let moves = counters.moves.snapshot();
        Self {
            cpu: cpus.iter().next().filter(|_| cpus.len() == 1),
            node: topology.node_of_all(cpus),
            queues: counters.queues.load(Ordering::Relaxed),
            turns: counters.turns.load(Ordering::Relaxed),
            sleeps: counters.sleeps.load(Ordering::Relaxed),
            busy_s: PollerCounters::seconds(&counters.busy_ns),
            looking_s: PollerCounters::seconds(&counters.looking_ns),
            resting_s: PollerCounters::seconds(&counters.resting_ns),
            moves: moves.count(),
            move_us_mean: moves.mean_us(),
            move_us_max: moves.percentile_us(1.0),
        }
    }
}
