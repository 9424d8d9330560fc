//! What a mount has counted.
//!
//! The kernel reads copies and the source's files itself, so hits and misses are opens for reading,
//! and their bytes the size of the file at that open. What goes through the daemon is counted
//! apart, as it is read.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::copies::Holdings;
use crate::health::SourceState;
use crate::open_mode::Mode;

/// A counter.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// So many more.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// All counters of a mount.
#[derive(Debug, Default)]
pub struct Counters {
    /// Opens for reading that a copy answered.
    pub hits: Counter,
    /// Opens for reading that none did.
    pub misses: Counter,
    /// Sizes of the files of those opens.
    pub hit_bytes: Counter,
    /// Sizes of the files of these.
    pub miss_bytes: Counter,
    /// Bytes read through the daemon.
    pub read_bytes: Counter,
    /// Bytes written through it.
    pub written_bytes: Counter,
    /// Files copied.
    pub fills: Counter,
    /// Sizes of those that were copied ahead of their use.
    pub prefetched_bytes: Counter,
    /// Files that had changed at the source when they were to be written back.
    pub conflicts: Counter,
    /// Opens of copies that were not compared with the source.
    pub unchecked_opens: Counter,
    copy: Counter,
    source: Counter,
    plain: Counter,
}

impl Counters {
    /// A file was opened.
    pub fn opened(&self, mode: Mode) {
        let counter = match mode {
            Mode::Copy => &self.copy,
            Mode::Source => &self.source,
            Mode::Plain | Mode::Direct => &self.plain,
        };
        counter.add(1);
    }

    /// A file was opened for reading.
    pub fn read_opened(&self, is_hit: bool, bytes: u64) {
        let (opens, sizes) =
            if is_hit { (&self.hits, &self.hit_bytes) } else { (&self.misses, &self.miss_bytes) };
        opens.add(1);
        sizes.add(bytes);
    }

    /// All of it, with what is held.
    pub fn report(
        &self,
        held: Holdings,
        pinned_bytes: u64,
        dirty_bytes: u64,
        source: SourceState,
    ) -> Report {
        Report {
            hits: self.hits.get(),
            misses: self.misses.get(),
            hit_bytes: self.hit_bytes.get(),
            miss_bytes: self.miss_bytes.get(),
            read_bytes: self.read_bytes.get(),
            written_bytes: self.written_bytes.get(),
            cached_files: held.files,
            cached_bytes: held.bytes,
            pinned_bytes,
            dirty_bytes,
            conflicts: self.conflicts.get(),
            limit_bytes: held.limit.bytes,
            limit_by: held.limit.by.to_owned(),
            fills: self.fills.get(),
            prefetched_bytes: self.prefetched_bytes.get(),
            evictions: held.evictions,
            epochs: held.epochs,
            unchecked_opens: self.unchecked_opens.get(),
            source,
            opens: Opens {
                copy: self.copy.get(),
                source: self.source.get(),
                plain: self.plain.get(),
            },
        }
    }
}

/// What `stats` shows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Opens for reading that a copy answered.
    pub hits: u64,
    /// Opens for reading that none did.
    pub misses: u64,
    /// Sizes of the files of the hits.
    pub hit_bytes: u64,
    /// Sizes of the files of the misses.
    pub miss_bytes: u64,
    /// Bytes read through the daemon.
    pub read_bytes: u64,
    /// Bytes written through it.
    pub written_bytes: u64,
    /// Copies.
    pub cached_files: u64,
    /// What they take, those included that are dropped when they are closed.
    pub cached_bytes: u64,
    /// What those take that are open.
    pub pinned_bytes: u64,
    /// Bytes that were written here and are not at the source.
    pub dirty_bytes: u64,
    /// Files that had changed at the source when they were to be written back.
    pub conflicts: u64,
    /// What copies may take.
    pub limit_bytes: u64,
    /// What says so: an option (`memory`, `size`), the `guest`'s memory, the `host`'s grant.
    pub limit_by: String,
    /// Files copied.
    pub fills: u64,
    /// Sizes of those that were copied ahead of their use.
    pub prefetched_bytes: u64,
    /// Copies dropped to make room.
    pub evictions: u64,
    /// Epochs of the policy that have ended.
    pub epochs: u64,
    /// Opens of copies that were not compared with the source.
    pub unchecked_opens: u64,
    /// Whether the source answers: `up`, `suspect`, `down`.
    pub source: SourceState,
    /// Opens, by how they were answered.
    pub opens: Opens,
}

/// Opens, by mode.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Opens {
    /// Of a copy.
    pub copy: u64,
    /// Of the source's file.
    pub source: u64,
    /// Through the daemon.
    pub plain: u64,
}
