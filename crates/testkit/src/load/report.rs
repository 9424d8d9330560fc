//! The results of a run.

use hdrhistogram::Histogram;

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Latency {
    /// Number of requests.
    pub count: u64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.99th percentile.
    pub p9999_us: f64,
    /// The longest.
    pub longest_us: f64,
}

impl Latency {
    pub(super) fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1000.0;
        if histogram.is_empty() {
            return Latency::default();
        }
        Latency {
            count: histogram.len(),
            p50_us: at(0.5),
            p99_us: at(0.99),
            p9999_us: at(0.9999),
            longest_us: at(1.0),
        }
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct LoadReport {
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
