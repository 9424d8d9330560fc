//! The results of a run.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::cpu::CpuTime;
use super::options::LoadOptions;
use super::source::Kind;
use super::stats::Stats;

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Latency {
    /// Number of requests.
    pub count: u64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
}

impl Latency {
    fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1000.0;
        if histogram.is_empty() {
            return Latency::default();
        }
        Latency { count: histogram.len(), p50_us: at(0.5), p99_us: at(0.99) }
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct LoadReport {
    /// Configured requests per second and queue.
    pub rate: Option<f64>,
    /// Queues.
    pub queues: usize,
    /// Client threads.
    pub threads: usize,
    /// Measured time.
    pub seconds: f64,
    /// Requests completed in it, without flushes.
    pub ops: u64,
    /// Requests per second.
    pub iops: f64,
    /// Latency of all requests except flushes.
    pub latency: Latency,
    /// Latency of reads.
    pub read: Latency,
    /// Latency of writes.
    pub write: Latency,
    /// Latency of discards.
    pub discard: Latency,
    /// Latency of flushes.
    pub flush: Latency,
    /// Latency of the writes of a queue that commits; `write` has them as well.
    pub commit: Latency,
    /// Kicks sent.
    pub kicks: u64,
    /// Calls received.
    pub calls: u64,
    /// Longest time in which a thread of the client saw no completion.
    pub longest_gap_ms: f64,
    /// Kicks per request.
    pub kicks_per_io: f64,
    /// Calls per request.
    pub calls_per_io: f64,
    /// CPU time of the server per request; absent without a server pid.
    pub server_us_per_io: Option<f64>,
    /// Requests not completed with OK, in the whole run.
    pub errors: u64,
    /// The first of them.
    pub first_error: Option<String>,
    /// Number of blocks verified.
    pub verified_blocks: u64,
    /// Number of reconnects to another backend.
    pub reconnects: u64,
}

/// The input of a report.
pub(super) struct Totals {
    pub(super) queues: usize,
    pub(super) stats: Stats,
    /// The part of queues that commit.
    pub(super) commits: Stats,
    /// Longest measured time of a worker.
    pub(super) elapsed: Duration,
    /// Sum of the workers' rates.
    pub(super) iops: f64,
    pub(super) server_cpu: Option<CpuTime>,
    /// Time between the two samples of the server's CPU time.
    pub(super) server_elapsed: Duration,
    pub(super) verified_blocks: u64,
    pub(super) reconnects: u64,
}

impl LoadReport {
    pub(super) fn new(options: &LoadOptions, totals: Totals) -> Self {
        let stats = &totals.stats;
        let ops = stats.ops();
        let per_io = |count: f64| if ops == 0 { 0.0 } else { count / ops as f64 };
        // The server was sampled over slightly more time than the workers measured.
        let scale = totals.elapsed.as_secs_f64() / totals.server_elapsed.as_secs_f64().max(1e-9);
        let server_us = |cpu: CpuTime| per_io(cpu.cpu_ns as f64 / 1000.0 * scale.min(1.0));
        LoadReport {
            rate: options.rate,
            queues: totals.queues,
            threads: options.thread_count(totals.queues),
            seconds: totals.elapsed.as_secs_f64(),
            ops,
            iops: totals.iops,
            latency: Latency::of(&stats.requests()),
            read: Latency::of(stats.of(Kind::Read)),
            write: Latency::of(stats.of(Kind::Write)),
            discard: Latency::of(stats.of(Kind::Discard)),
            flush: Latency::of(stats.of(Kind::Flush)),
            commit: Latency::of(totals.commits.of(Kind::Write)),
            kicks: stats.kicks,
            calls: stats.calls,
            longest_gap_ms: stats.longest_gap_ns as f64 / 1e6,
            kicks_per_io: per_io(stats.kicks as f64),
            calls_per_io: per_io(stats.calls as f64),
            server_us_per_io: totals.server_cpu.map(server_us),
            errors: stats.errors,
            first_error: stats.first_error.clone(),
            verified_blocks: totals.verified_blocks,
            reconnects: totals.reconnects,
        }
    }
}
