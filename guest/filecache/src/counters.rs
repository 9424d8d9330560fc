//! The counters of a mount.
//!
//! The kernel reads copies and the source's files itself, so hits and misses count opens for
//! reading, and their bytes are the file's size at that open. Reads and writes through the daemon
//! are counted separately, as they happen.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::health::SourceState;
use crate::open_mode::Mode;

/// A counter.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns the count so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Clone for Counter {
    fn clone(&self) -> Self {
        Self(self.get().into())
    }
}

/// All counters of a mount, as the report has them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Opens for reading served from a copy.
    pub hits: Counter,
    /// Opens for reading not served from a copy.
    pub misses: Counter,
    /// Sum of the file sizes of the hits.
    pub hit_bytes: Counter,
    /// Sum of the file sizes of the misses.
    pub miss_bytes: Counter,
    /// Bytes read through the daemon.
    pub read_bytes: Counter,
    /// Bytes written through the daemon.
    pub written_bytes: Counter,
    /// Files copied.
    pub fills: Counter,
    /// Bytes of prefetched files.
    pub prefetched_bytes: Counter,
    /// Files that had changed at the source when they were to be written back.
    pub conflicts: Counter,
    /// Opens of copies that were not compared with the source.
    pub unchecked_opens: Counter,
    /// Opens by the way they were served.
    pub opens: Opens,
}

/// Opens, by mode.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Opens {
    /// Of a copy.
    pub copy: Counter,
    /// Of the source's file.
    pub source: Counter,
    /// Through the daemon.
    pub plain: Counter,
}

impl Counters {
    /// Counts an open.
    pub fn opened(&self, mode: Mode) {
        let counter = match mode {
            Mode::Copy => &self.opens.copy,
            Mode::Source => &self.opens.source,
            Mode::Plain | Mode::Direct => &self.opens.plain,
        };
        counter.add(1);
    }

    /// Counts an open for reading.
    pub fn read_opened(&self, is_hit: bool, bytes: u64) {
        let (opens, sizes) =
            if is_hit { (&self.hits, &self.hit_bytes) } else { (&self.misses, &self.miss_bytes) };
        opens.add(1);
        sizes.add(bytes);
    }
}

/// The report of `stats`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// What is counted.
    #[serde(flatten)]
    pub counters: Counters,
    /// Number of copies.
    pub cached_files: u64,
    /// Bytes of copies, including dropped ones that are still open.
    pub cached_bytes: u64,
    /// Bytes of open copies.
    pub pinned_bytes: u64,
    /// Dirty bytes: written here and not yet at the source.
    pub dirty_bytes: u64,
    /// Limit of the copies in bytes.
    pub limit_bytes: u64,
    /// Origin of the limit: an option (`memory`, `size`), the `guest`'s memory, the `host`'s grant.
    pub limit_by: String,
    /// Copies evicted to make room.
    pub evictions: u64,
    /// Completed epochs of the policy.
    pub epochs: u64,
    /// State of the source: `up`, `suspect`, `down`.
    pub source: SourceState,
}
