//! What `flowstone stats --json` says, as far as tests and the demo read it.
//!
//! The one place that knows the names in that document.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// The whole document.
#[derive(Clone, Debug, Deserialize)]
pub struct Stats {
    disks: Vec<DiskStats>,
}

/// One disk.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct DiskStats {
    queues: Vec<QueueStats>,
    host: HostStats,
}

/// One queue; counters since the daemon started.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct QueueStats {
    requests: BTreeMap<String, u64>,
    bytes_read: u64,
    bytes_written: u64,
    bytes_discarded: u64,
    kicks: u64,
    calls: u64,
    latency_us: BTreeMap<String, Latency>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct HostStats {
    allocated_bytes: u64,
}

/// Latency of one kind of request.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Latency {
    /// Median in microseconds.
    pub p50: f64,
    /// 99th percentile in microseconds.
    pub p99: f64,
}

impl Stats {
    /// Reads the document.
    pub fn parse(json: &str) -> Result<Self> {
        serde_json::from_str(json).with_context(|| format!("read stats {json}"))
    }

    /// The disk of a daemon that serves one.
    pub fn only_disk(mut self) -> Result<DiskStats> {
        match self.disks.len() {
            1 => Ok(self.disks.remove(0)),
            count => bail!("stats of {count} disks, expected one"),
        }
    }
}

impl DiskStats {
    /// Requests of a kind: `read write flush discard write_zeroes get_id`.
    #[must_use]
    pub fn requests(&self, kind: &str) -> u64 {
        self.queues.iter().filter_map(|queue| queue.requests.get(kind)).sum()
    }

    /// Requests of all kinds.
    #[must_use]
    pub fn all_requests(&self) -> u64 {
        self.queues.iter().flat_map(|queue| queue.requests.values()).sum()
    }

    /// Bytes the guest has read.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.queues.iter().map(|queue| queue.bytes_read).sum()
    }

    /// Bytes the guest has written.
    #[must_use]
    pub fn bytes_written(&self) -> u64 {
        self.queues.iter().map(|queue| queue.bytes_written).sum()
    }

    /// Bytes the guest has given back.
    #[must_use]
    pub fn bytes_discarded(&self) -> u64 {
        self.queues.iter().map(|queue| queue.bytes_discarded).sum()
    }

    /// Notifications from the guest.
    #[must_use]
    pub fn kicks(&self) -> u64 {
        self.queues.iter().map(|queue| queue.kicks).sum()
    }

    /// Interrupts to the guest.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.queues.iter().map(|queue| queue.calls).sum()
    }

    /// Latency of a kind of request, of the queue that had most of them.
    #[must_use]
    pub fn latency(&self, kind: &str) -> Option<Latency> {
        let count = |queue: &&QueueStats| queue.requests.get(kind).copied().unwrap_or(0);
        self.queues.iter().max_by_key(count)?.latency_us.get(kind).copied()
    }

    /// Space the image takes on the host.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.host.allocated_bytes
    }
}
