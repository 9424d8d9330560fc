//! Counters of reads and writes by class, and of requests by the rule that decided.

use std::sync::atomic::AtomicU64;

use flowstone_block::{Class, count};
use serde::Serialize;

use crate::verdict::{Rule, Verdict};

/// Requests and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ClassCount {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
}

/// Counters of one queue, which is their only writer.
#[derive(Debug, Default)]
pub struct QueueCounters {
    /// Indexed by [`Class`], then as in [`ClassCount`].
    pub classes: [[AtomicU64; 4]; Class::ALL.len()],
    /// Indexed by [`Rule`].
    pub rules: [AtomicU64; Rule::ALL.len()],
}

impl QueueCounters {
    /// Counts a read or write of `bytes` bytes.
    pub fn count(&self, verdict: Verdict, writes: bool, bytes: u64) {
        let [reads, written, bytes_read, bytes_written] = &self.classes[verdict.class as usize];
        let (requests, sum) = if writes { (written, bytes_written) } else { (reads, bytes_read) };
        count(requests, 1);
        count(sum, bytes);
        count(&self.rules[verdict.rule as usize], 1);
    }
}
