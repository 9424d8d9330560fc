//! What an image counts about discards, and about write-zeroes that may give space back: how they
//! come in and wait here; what they become on the host is counted where its calls are made.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flowstone_block::Op;
use flowstone_fileio::Punched;

use crate::image::Discards;

/// Shared by all queues of an image.
#[derive(Debug, Default)]
pub struct DiscardCounters {
    /// Ranges that queues were given.
    pub ranges: AtomicU64,
    /// Bytes of these.
    pub bytes: AtomicU64,
    /// Runs of neighbours that the host was to have back.
    pub merged: AtomicU64,
    /// Ranges that have not come back yet.
    pub waiting: AtomicU64,
}

/// A range that is counted as waiting until this is dropped.
pub struct Waiting(Arc<DiscardCounters>);

impl DiscardCounters {
    /// Counts a request if it may give space back.
    pub fn come_in(self: &Arc<Self>, op: Op) -> Option<Waiting> {
        if !matches!(op, Op::Discard(_) | Op::WriteZeroes { unmap: true, .. }) {
            return None;
        }
        self.ranges.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(op.bytes(), Ordering::Relaxed);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Some(Waiting(Arc::clone(self)))
    }

    /// The host is to have so many runs back.
    pub fn count_runs(&self, runs: usize) {
        self.merged.fetch_add(runs as u64, Ordering::Relaxed);
    }

    /// Together with what the file has counted.
    pub fn read(&self, punched: Punched) -> Discards {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Discards {
            ranges: get(&self.ranges),
            bytes: get(&self.bytes),
            merged: get(&self.merged),
            waiting: get(&self.waiting),
            punches: punched.calls,
            punched_bytes: punched.bytes,
            reclaimed_bytes: punched.freed_bytes,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
