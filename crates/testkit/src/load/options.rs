//! What the generator should do.
//!
//! `LoadOptions::new` asks for random 4 KiB reads, one at a time, polled, for a second; tests and
//! benches change the fields they are about.

use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;

use crate::HANG;
use crate::client::ClientOptions;

/// Where requests go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Anywhere in the span.
    Random,
    /// One after the other, each queue in its own part of the span.
    Sequential,
}

/// What requests do, in percent of all requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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

    /// Do the parts make a whole?
    pub fn is_whole(&self) -> bool {
        let parts = [self.read, self.write, self.discard, self.zeroes];
        parts.iter().map(|&part| u32::from(part)).sum::<u32>() == 100
    }
}

/// Order and mix together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Workload {
    /// Where requests go.
    pub order: Order,
    /// What they do.
    pub mix: Mix,
}

impl FromStr for Workload {
    type Err = String;

    /// fio's words: read, write, randread, randwrite, rw, randrw, discard, randdiscard; `mix` is
    /// random with some of everything.
    fn from_str(name: &str) -> Result<Self, String> {
        let half = Mix { read: 50, write: 50, discard: 0, zeroes: 0 };
        let all = Mix { read: 45, write: 45, discard: 5, zeroes: 5 };
        let (order, mix) = match name {
            "read" => (Order::Sequential, Mix::READ),
            "write" => (Order::Sequential, Mix::WRITE),
            "rw" => (Order::Sequential, half),
            "discard" => (Order::Sequential, Mix::DISCARD),
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

/// How the client learns of completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Completion {
    /// It looks at the used ring all the time and asks for no calls.
    Poll,
    /// It sleeps on the call eventfd, as a guest waits for an interrupt.
    Eventfd,
}

/// When the generator stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// After this many requests over all queues.
    Ops(u64),
    /// After a time, of which the first part is not measured.
    Time {
        /// Not measured.
        ramp: Duration,
        /// Measured.
        runtime: Duration,
    },
}

/// Everything about one run.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Socket, queues, queue size, features and memory.
    pub client: ClientOptions,
    /// What to do.
    pub workload: Workload,
    /// Size of every request.
    pub block_bytes: u64,
    /// Requests in flight per queue.
    pub iodepth: u16,
    /// Requests per second and queue, sent when they are due, whatever has become of those before;
    /// but no more than `iodepth` are in flight. `None`: the next one is sent when one is answered.
    pub rate: Option<f64>,
    /// Client threads; 0 means one per queue. Queue q belongs to thread q modulo threads.
    pub threads: usize,
    /// CPU of each thread, repeated as needed; empty means anywhere.
    pub cpus: Vec<usize>,
    /// How completions are noticed.
    pub completion: Completion,
    /// When to stop.
    pub limit: Limit,
    /// A flush after so many writes of a queue; 0 means never.
    pub flush_every: u64,
    /// Random places are drawn by Zipf's law with this exponent, not uniformly. The hot blocks are
    /// scattered over the span.
    pub zipf: Option<f64>,
    /// Random requests of a queue keep to a part of the span that is the queue's own, as sequential
    /// ones always do.
    pub parts: bool,
    /// The last queue discards at random instead, with so many requests in flight. It has the upper
    /// half of the span to itself.
    pub storm: Option<u16>,
    /// First byte of the disk to use.
    pub offset_bytes: u64,
    /// Bytes of the disk to use; 0 means up to the end.
    pub span_bytes: u64,
    /// Seed of all choices and of the data pattern.
    pub seed: u64,
    /// Write the pattern and check every read against it.
    pub verify: bool,
    /// With `verify`: read everything known again at the end.
    pub verify_final: bool,
    /// With `verify`: discarded blocks must read as zeroes (else they may hold anything).
    pub discard_zeroes: bool,
    /// Process whose CPU time is charged to the requests.
    pub server_pid: Option<u32>,
    /// Give up when nothing completes for so long.
    pub stall_timeout: Duration,
    /// When the backend dies, wait so long for a successor and go on; `None` fails at once.
    pub reconnect: Option<Duration>,
}

impl LoadOptions {
    /// Random 4 KiB reads, depth 1, polled, one second.
    pub fn new(socket: impl AsRef<Path>) -> Self {
        LoadOptions {
            client: ClientOptions::new(socket),
            workload: Workload { order: Order::Random, mix: Mix::READ },
            block_bytes: 4096,
            iodepth: 1,
            rate: None,
            threads: 0,
            cpus: Vec::new(),
            completion: Completion::Poll,
            limit: Limit::Time { ramp: Duration::ZERO, runtime: Duration::from_secs(1) },
            flush_every: 0,
            zipf: None,
            parts: false,
            storm: None,
            offset_bytes: 0,
            span_bytes: 0,
            seed: 1,
            verify: false,
            verify_final: false,
            discard_zeroes: false,
            server_pid: None,
            stall_timeout: HANG,
            reconnect: None,
        }
    }

    /// The same with another workload, by name.
    ///
    /// # Panics
    /// When no workload has that name.
    pub fn workload(mut self, name: &str) -> Self {
        self.workload = name.parse().expect("the caller names a known workload");
        self
    }

    /// The same with this many requests in flight per queue.
    pub fn iodepth(mut self, iodepth: u16) -> Self {
        self.iodepth = iodepth;
        self
    }

    /// The same with this many requests per second and queue.
    pub fn rate(mut self, rate: f64) -> Self {
        self.rate = Some(rate);
        self
    }

    /// The same, ended after this many requests.
    pub fn ops(mut self, ops: u64) -> Self {
        self.limit = Limit::Ops(ops);
        self
    }

    /// Number of client threads for so many queues.
    pub(super) fn thread_count(&self, queues: usize) -> usize {
        if self.threads == 0 { queues } else { self.threads.clamp(1, queues) }
    }
}
