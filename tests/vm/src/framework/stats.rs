//! What `flowstone stats --json` says, as far as tests and the demo read it.
//!
//! The one place that knows the names in that document.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// The whole document.
#[derive(Clone, Debug, Deserialize)]
pub struct Stats {
    /// That use the disks now.
    pub vms: Vec<VmStats>,
    /// Threads that run queues now.
    pub pollers: Vec<PollerStats>,
    /// In the order of the configuration.
    pub disks: Vec<DiskStats>,
}

/// A thread that runs queues.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct PollerStats {
    /// On it now.
    pub queues: u64,
    /// That came from other pollers.
    pub moves: u64,
}

/// A VM, as its disks show it.
#[derive(Clone, Debug, Deserialize)]
pub struct VmStats {
    /// The process that runs it.
    pub pid: Option<u32>,
    /// vCPUs.
    pub cpus: u32,
    /// Its memory.
    pub memory_bytes: u64,
    /// Its part of what is shared.
    pub weight: f64,
    /// What its file cache has said.
    pub guest_cache: Option<GuestCacheStats>,
}

/// The file cache of a guest.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct GuestCacheStats {
    /// What its copies take.
    pub used_bytes: u64,
    /// What the host lets them take.
    pub grant_bytes: Option<u64>,
    /// Opens that a copy answered.
    pub hits: u64,
    /// Seconds since it said so.
    pub age_s: f64,
}

/// What the cache did for a disk, in blocks of 4 KiB.
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
    /// As configured, or made from the image's.
    pub name: String,
    /// Space the image takes on the host.
    #[serde(default)]
    pub allocated_bytes: u64,
    /// What the image takes and has given back; absent without an image.
    pub space: Option<Space>,
    /// Of a log image.
    pub log: Option<LogStats>,
    /// What became of discards; absent without an image.
    pub discards: Option<Discards>,
    /// Reads and writes by what they carry.
    pub classes: Classes,
    /// Absent without a cache.
    pub cache: Option<CacheStats>,
    /// All queues together.
    pub total: Totals,
    /// Those that the monitor has set up, each of them, in order.
    pub queues: Vec<Totals>,
}

/// What a log image has done by itself.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct LogStats {
    /// How often all of it has been put in order.
    pub resort_passes: u64,
}

/// Requests by class.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Classes {
    /// Of a journal.
    pub journal: ClassCount,
    /// Of metadata.
    pub metadata: ClassCount,
    /// Of data, or of what nobody knows.
    pub data: ClassCount,
    /// What has decided.
    pub rules: Rules,
}

/// Requests by the rule that decided their class.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Rules {
    /// The guest's priority word.
    pub hint: u64,
    /// The list of a journal.
    pub journal: u64,
    /// The header of what was written.
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

/// Bytes of an image.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Space {
    /// Of the disk.
    pub virtual_bytes: u64,
    /// That hold data, if the image knows.
    pub live_bytes: Option<u64>,
    /// On the host.
    pub allocated_bytes: u64,
    /// That are of no use any more, on images that leave such behind.
    pub dead_bytes: Option<u64>,
    /// That the host has got back.
    pub reclaimed_bytes: u64,
}

/// Discarded ranges on their way to the host.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Discards {
    /// Requests that brought them.
    pub requests: u64,
    /// That came in.
    pub ranges: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Runs that the host was to have back.
    pub merged: u64,
    /// Calls that gave space back.
    pub punches: u64,
    /// That came in and are not done.
    pub waiting: u64,
}

/// Counters. Kinds of request are `read`, `write`, `flush`, `discard` and `write_zeroes`.
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
    /// Reads the document.
    pub fn parse(json: &str) -> Result<Self> {
        serde_json::from_str(json).with_context(|| format!("read stats {json}"))
    }

    /// How often queues have moved between pollers.
    #[must_use]
    pub fn moves(&self) -> u64 {
        self.pollers.iter().map(|poller| poller.moves).sum()
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
    /// How many queues the monitor has set up.
    #[must_use]
    pub fn queue_count(&self) -> usize {
        self.queues.len()
    }

    /// What the image takes and has given back.
    pub fn space(&self) -> Result<Space> {
        self.space.context("no image")
    }

    /// What became of discards.
    pub fn discards(&self) -> Result<Discards> {
        self.discards.context("no image")
    }

    /// Requests of a kind.
    #[must_use]
    pub fn requests(&self, kind: &str) -> u64 {
        self.total.requests.get(kind).copied().unwrap_or(0)
    }

    /// Requests of all kinds.
    #[must_use]
    pub fn all_requests(&self) -> u64 {
        self.total.all_requests()
    }

    /// Bytes read, written, discarded or zeroed.
    #[must_use]
    pub fn bytes(&self, kind: &str) -> u64 {
        self.total.bytes.get(kind).copied().unwrap_or(0)
    }

    /// Latency of a kind, if there was a request of it.
    #[must_use]
    pub fn latency(&self, kind: &str) -> Option<Latency> {
        self.total.device_us.get(kind).copied().filter(|_| self.requests(kind) > 0)
    }
}

impl Totals {
    /// Requests of all kinds.
    #[must_use]
    pub fn all_requests(&self) -> u64 {
        self.requests.values().sum()
    }
}
