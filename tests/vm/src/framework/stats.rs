//! The fields of `flowstone stats --json` that tests and the demo read.
//!
//! Only this file knows the names in that document.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// The whole document.
#[derive(Clone, Debug, Deserialize)]
pub struct Stats {
    /// VMs that use the disks now.
    pub vms: Vec<VmStats>,
    /// Pollers that exist now.
    pub pollers: Vec<PollerStats>,
    /// Disks, in the order of the configuration.
    pub disks: Vec<DiskStats>,
}

/// A poller.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct PollerStats {
    /// Queues on it now.
    pub queues: u64,
    /// Queues that came from other pollers.
    pub moves: u64,
}

/// A VM, as seen from its disks.
#[derive(Clone, Debug, Deserialize)]
pub struct VmStats {
    /// The ID of its process.
    pub pid: Option<u32>,
    /// vCPUs.
    pub cpus: u32,
    /// Its memory.
    pub memory_bytes: u64,
    /// Its weight in shared resources.
    pub weight: f64,
    /// The last report of its file cache.
    pub guest_cache: Option<GuestCacheStats>,
}

/// The file cache of a guest.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct GuestCacheStats {
    /// Bytes of its copies.
    pub used_bytes: u64,
    /// Limit granted by the host.
    pub grant_bytes: Option<u64>,
    /// Opens served from a copy.
    pub hits: u64,
    /// Age of the report in seconds.
    pub age_s: f64,
}

/// Statistics of the cache for a disk, in blocks of 4 KiB.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct CacheStats {
    /// Read from memory.
    pub hits: u64,
    /// Read from below.
    pub misses: u64,
}

/// One disk; counters since the daemon started.
#[derive(Clone, Debug, Deserialize)]
pub struct DiskStats {
    /// As configured, or derived from the image's name.
    pub name: String,
    /// Space the image takes on the host.
    #[serde(default)]
    pub allocated_bytes: u64,
    /// Space of the image; absent without an image.
    pub space: Option<Space>,
    /// Only for a log image.
    pub log: Option<LogStats>,
    /// Statistics of discards; absent without an image.
    pub discards: Option<Discards>,
    /// Reads and writes by class.
    pub classes: Classes,
    /// Absent without a cache.
    pub cache: Option<CacheStats>,
    /// Sums over all queues.
    pub total: Totals,
    /// Each queue that the monitor has set up, in order.
    pub queues: Vec<Totals>,
}

/// Background work of a log image.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct LogStats {
    /// Segments whose live blocks the cleaner has copied.
    pub cleaned_segments: u64,
    /// Completed passes of sorting the image.
    pub resort_passes: u64,
}

/// Requests by class.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Classes {
    /// Requests of class journal.
    pub journal: ClassCount,
    /// Requests of class metadata.
    pub metadata: ClassCount,
    /// Requests of class data, including unknown ones.
    pub data: ClassCount,
    /// Requests by the rule that decided.
    pub rules: Rules,
}

/// Requests by the rule that decided their class.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Rules {
    /// The guest's I/O priority hint.
    pub hint: u64,
    /// The list of a journal.
    pub journal: u64,
    /// The header of the written block.
    pub header: u64,
}

/// Requests of a class.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct ClassCount {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
}

/// Space of an image in bytes.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Space {
    /// Size of the disk.
    pub virtual_bytes: u64,
    /// Bytes that hold data, if the image knows.
    pub live_bytes: Option<u64>,
    /// Bytes allocated on the host.
    pub allocated_bytes: u64,
    /// Garbage, on images that have it.
    pub dead_bytes: Option<u64>,
    /// Bytes freed on the host.
    pub reclaimed_bytes: u64,
}

/// Statistics of discards.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Discards {
    /// Discard requests.
    pub requests: u64,
    /// Discarded ranges.
    pub ranges: u64,
    /// Bytes of the ranges.
    pub bytes: u64,
    /// Merged runs to be freed on the host.
    pub merged: u64,
    /// Calls that freed space.
    pub punches: u64,
    /// Ranges not yet done.
    pub waiting: u64,
}

/// Counters by kind of request: `read`, `write`, `flush`, `discard` and `write_zeroes`.
#[derive(Clone, Debug, Deserialize)]
pub struct Totals {
    requests: BTreeMap<String, u64>,
    bytes: BTreeMap<String, u64>,
    device_us: BTreeMap<String, Latency>,
    /// Notifications from the guest.
    pub kicks: u64,
    /// Interrupts to the guest.
    pub calls: u64,
}

/// Time from a request's start to its completion below the queue, in microseconds.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Latency {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
}

impl Stats {
    /// Parses the document.
    pub fn parse(json: &str) -> Result<Self> {
        serde_json::from_str(json).with_context(|| format!("read stats {json}"))
    }

    /// Returns the number of moves of queues between pollers.
    #[must_use]
    pub fn moves(&self) -> u64 {
        self.pollers.iter().map(|poller| poller.moves).sum()
    }

    /// Returns the only disk of a daemon.
    pub fn only_disk(mut self) -> Result<DiskStats> {
        match self.disks.len() {
            1 => Ok(self.disks.remove(0)),
            count => bail!("stats of {count} disks, expected one"),
        }
    }
}

impl DiskStats {
    /// Returns the number of queues set up by the monitor.
    #[must_use]
    pub fn queue_count(&self) -> usize {
        self.queues.len()
    }

    /// Returns the space of the image.
    pub fn space(&self) -> Result<Space> {
        self.space.context("no image")
    }

    /// Returns the statistics of discards.
    pub fn discards(&self) -> Result<Discards> {
        self.discards.context("no image")
    }

    /// Returns the requests of a kind.
    #[must_use]
    pub fn requests(&self, kind: &str) -> u64 {
        self.total.requests.get(kind).copied().unwrap_or(0)
    }

    /// Returns the requests of all kinds.
    #[must_use]
    pub fn all_requests(&self) -> u64 {
        self.total.all_requests()
    }

    /// Returns the bytes read, written, discarded or zeroed.
    #[must_use]
    pub fn bytes(&self, kind: &str) -> u64 {
        self.total.bytes.get(kind).copied().unwrap_or(0)
    }

    /// Returns the latency of a kind, if there was a request of it.
    #[must_use]
    pub fn latency(&self, kind: &str) -> Option<Latency> {
        self.total.device_us.get(kind).copied().filter(|_| self.requests(kind) > 0)
    }
}

impl Totals {
    /// Returns the requests of all kinds.
    #[must_use]
    pub fn all_requests(&self) -> u64 {
        self.requests.values().sum()
    }
}
