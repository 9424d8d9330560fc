//! Counters of incoming and waiting discards and write-zeroes that may give space back; the host
//! calls for them are counted where they are made.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flowstone_block::Op;
use flowstone_fileio::Punched;

use crate::image::Discards;

/// Shared by all queues of an image.
#[derive(Debug, Default)]
pub struct DiscardCounters {
    /// Ranges received by queues.
    pub ranges: AtomicU64,
    /// Bytes of the received ranges.
    pub bytes: AtomicU64,
    /// Merged runs of neighbouring ranges handed to the host.
    pub merged: AtomicU64,
    /// Ranges not completed yet.
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

    /// Counts merged runs handed to the host.
    pub fn count_runs(&self, runs: usize) {
        self.merged.fetch_add(runs as u64, Ordering::Relaxed);
    }

    /// Returns these counters together with those of the file.
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
