//! The options of a run.
//!
//! `LoadOptions::new` asks for random 4 KiB reads at queue depth 1, polled, for a second; tests and
//! benches change the fields that matter.

use std::ops::Range;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use crate::HANG;
use crate::client::ClientOptions;

/// The order of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Random in the span.
    Random,
    /// Sequential, each queue in its own part of the span.
    Sequential,
}

/// The mix of operations, in percent of all requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Reads.
    pub read: u8,
    /// Writes.
    pub write: u8,
    /// Discards.
    pub discard: u8,
    /// Write-zeroes, with the unmap flag.
    pub zeroes: u8,
}

impl Mix {
    /// Only reads.
    pub const READ: Mix = Mix { read: 100, write: 0, discard: 0, zeroes: 0 };
    /// Only writes.
    pub const WRITE: Mix = Mix { read: 0, write: 100, discard: 0, zeroes: 0 };
    /// Only discards.
    pub const DISCARD: Mix = Mix { read: 0, write: 0, discard: 100, zeroes: 0 };

    /// Returns whether the parts add up to 100.
    pub fn is_whole(&self) -> bool {
        let parts = [self.read, self.write, self.discard, self.zeroes];
        parts.iter().map(|&part| u32::from(part)).sum::<u32>() == 100
    }
}

/// Order and mix together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// The order of blocks.
    pub order: Order,
    /// The mix of operations.
    pub mix: Mix,
}

impl FromStr for Workload {
    type Err = String;

    /// Parses fio's words: read, write, randread, randwrite, rw, randrw, randdiscard;
    /// `mix` is random with some of every operation.
    fn from_str(name: &str) -> Result<Self, String> {
        let half = Mix { read: 50, write: 50, discard: 0, zeroes: 0 };
        let all = Mix { read: 45, write: 45, discard: 5, zeroes: 5 };
        let (order, mix) = match name {
            "read" => (Order::Sequential, Mix::READ),
            "write" => (Order::Sequential, Mix::WRITE),
            "rw" => (Order::Sequential, half),
            "randread" => (Order::Random, Mix::READ),
            "randwrite" => (Order::Random, Mix::WRITE),
            "randrw" => (Order::Random, half),
            "randdiscard" => (Order::Random, Mix::DISCARD),
            "mix" => (Order::Random, all),
            other => return Err(format!("no workload is called {other:?}")),
        };
        Ok(Workload { order, mix })
    }
}

/// How the client detects completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// It polls the used ring and asks for no calls.
    Poll,
    /// It sleeps on the call eventfd, as a guest waits for an interrupt.
    Eventfd,
}

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// After this many requests over all queues.
    Ops(u64),
    /// After a time, whose first part is not measured.
    Time {
        /// The part that is not measured.
        ramp: Duration,
        /// The measured part.
        runtime: Duration,
    },
}

/// What the last queue of a run may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Aside {
    /// Random discards at this queue depth. It has the upper half of the span to itself.
    Discards(u16),
    /// Random writes of one block in these bytes of the disk, a sync after each, one after the
    /// other: the commits of a file system. An only queue has them beside its other requests. They
    /// have no rate, and the report has their latency apart.
    Commits(Range<u64>),
}

/// The options of one run.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Socket, queues, queue size, features and memory.
    pub client: ClientOptions,
    /// Order and mix of requests.
    pub workload: Workload,
    /// Size of every request.
    pub block_bytes: u64,
    /// Requests in flight per queue.
    pub iodepth: u16,
    /// Requests per second and queue, sent at their times independently of earlier completions, but
    /// with at most `iodepth` in flight. `None`: the next one is sent when one is completed.
    pub rate: Option<f64>,
    /// Requests sent together under a `rate`; those that do not fit into `iodepth` are late.
    pub burst: u32,
    /// Client threads; 0 means one per queue. Queue q belongs to thread q modulo threads.
    pub threads: usize,
    /// CPU of each thread, repeated as needed; empty for no affinity.
    pub cpus: Vec<usize>,
    /// How completions are detected.
    pub completion: Completion,
    /// When the run ends.
    pub limit: Limit,
    /// Number of writes of a queue between flushes; 0 means no flushes.
    pub flush_every: u64,
    /// Random blocks are drawn by Zipf's law with this exponent instead of uniformly. The hot
    /// blocks are scattered over the span.
    pub zipf: Option<f64>,
    /// Random requests of a queue stay in the queue's own part of the span, as sequential ones
    /// always do.
    pub parts: bool,
    /// What the last queue does instead.
    pub aside: Option<Aside>,
    /// First byte of the disk to use.
    pub offset_bytes: u64,
    /// Bytes of the disk to use; 0 means up to the end.
    pub span_bytes: u64,
    /// Write zeroes instead of random data: a device that compresses (zram) holds large disks.
    pub zero_data: bool,
    /// Seed of all choices and of the data pattern.
    pub seed: u64,
    /// Write the pattern and check every read against it.
    pub verify: bool,
    /// With `verify`: read all known blocks again at the end.
    pub verify_final: bool,
    /// With `verify`: discarded blocks must read as zeroes (else their content is unknown).
    pub discard_zeroes: bool,
    /// Process whose CPU time is attributed to the requests.
    pub server_pid: Option<u32>,
    /// Time without completions after which the run fails.
    pub stall_timeout: Duration,
    /// Time to wait for a successor of a dead backend; `None` fails at once.
    pub reconnect: Option<Duration>,
}

impl LoadOptions {
    /// Options for random 4 KiB reads, depth 1, polled, one second.
    pub fn new(socket: impl AsRef<Path>) -> Self {
        LoadOptions {
            client: ClientOptions::new(socket),
            workload: Workload { order: Order::Random, mix: Mix::READ },
            block_bytes: 4096,
            iodepth: 1,
            rate: None,
            burst: 1,
            threads: 0,
            cpus: Vec::new(),
            completion: Completion::Eventfd,
            limit: Limit::Time { ramp: Duration::ZERO, runtime: Duration::from_secs(1) },
            flush_every: 0,
            zipf: None,
            parts: false,
            aside: None,
            offset_bytes: 0,
            span_bytes: 0,
            zero_data: false,
            seed: 1,
            verify: false,
            verify_final: false,
            discard_zeroes: false,
            server_pid: None,
            stall_timeout: HANG,
            reconnect: None,
        }
    }

    /// Sets the workload by name.
    ///
    /// # Panics
    /// If there is no workload of that name.
    pub fn workload(mut self, name: &str) -> Self {
        self.workload = name.parse().expect("the caller names a known workload");
        self
    }

    /// Sets the requests in flight per queue.
    pub fn iodepth(mut self, iodepth: u16) -> Self {
        self.iodepth = iodepth;
        self
    }

    /// Sets the requests per second and queue.
    pub fn rate(mut self, rate: f64) -> Self {
        self.rate = Some(rate);
        self
    }

    /// Ends the run after this many requests.
    pub fn ops(mut self, ops: u64) -> Self {
        self.limit = Limit::Ops(ops);
        self
    }

    /// Returns the number of client threads for `queues` queues.
    pub(super) fn thread_count(&self, queues: usize) -> usize {
        if self.threads == 0 { queues } else { self.threads.clamp(1, queues) }
    }
}
