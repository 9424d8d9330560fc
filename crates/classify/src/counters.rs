//! Counters of reads and writes by class, and of requests by the rule that decided.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use flowstone_block::{Class, PerQueue, count};
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
    classes: [[AtomicU64; 4]; Class::ALL.len()],
    /// Indexed by [`Rule`].
    rules: [AtomicU64; Rule::ALL.len()],
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

/// Counters of all queues of a disk. They outlive the queues.
#[derive(Debug, Default)]
pub struct Counters(PerQueue<QueueCounters>);

impl Counters {
    /// Returns the counters of a queue.
    pub fn of_queue(&self, queue: u16) -> Arc<QueueCounters> {
        self.0.of_queue(queue)
    }

    /// Returns the counts of a class so far.
    pub fn of_class(&self, class: Class) -> ClassCount {
        let sum = |field: usize| self.0.sum(|queue| &queue.classes[class as usize][field]);
        ClassCount { reads: sum(0), writes: sum(1), bytes_read: sum(2), bytes_written: sum(3) }
    }

    /// Returns the number of requests that a rule decided so far.
    pub fn of_rule(&self, rule: Rule) -> u64 {
        self.0.sum(|queue| &queue.rules[rule as usize])
    }
}
