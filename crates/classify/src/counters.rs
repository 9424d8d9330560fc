//! How many reads and writes there were of each class, and which rules decided.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use flowstone_block::Class;

use crate::verdict::{Rule, Verdict};

/// Requests and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// Counters of one queue, which alone writes them.
#[derive(Debug, Default)]
pub struct QueueCounters {
    /// Indexed by [`Class`], then as in [`ClassCount`].
    classes: [[AtomicU64; 4]; Class::ALL.len()],
    /// Indexed by [`Rule`].
    rules: [AtomicU64; Rule::ALL.len()],
}

impl QueueCounters {
    /// A read or write of so many bytes was judged.
    pub fn count(&self, verdict: Verdict, writes: bool, bytes: u64) {
        let [reads, written, bytes_read, bytes_written] = &self.classes[verdict.class as usize];
        let (requests, sum) = if writes { (written, bytes_written) } else { (reads, bytes_read) };
        add(requests, 1);
        add(sum, bytes);
        add(&self.rules[verdict.rule as usize], 1);
    }
}

/// One thread writes it: a plain addition, without the price of an atomic one.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

/// Counters of all queues of a disk, which outlive these.
#[derive(Debug, Default)]
pub struct Counters {
    queues: Mutex<BTreeMap<u16, Arc<QueueCounters>>>,
}

impl Counters {
    /// Those of a queue: the same ones each time, and one thread at a time runs it.
    pub fn of_queue(&self, queue: u16) -> Arc<QueueCounters> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(queues.entry(queue).or_default())
    }

    fn sum(&self, counter: impl Fn(&QueueCounters) -> &AtomicU64) -> u64 {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.values().map(|queue| counter(queue).load(Ordering::Relaxed)).sum()
    }

    /// Requests of a class so far.
    pub fn of_class(&self, class: Class) -> ClassCount {
        let sum = |field: usize| self.sum(|queue| &queue.classes[class as usize][field]);
        ClassCount { reads: sum(0), writes: sum(1), bytes_read: sum(2), bytes_written: sum(3) }
    }

    /// Requests that a rule decided so far.
    pub fn of_rule(&self, rule: Rule) -> u64 {
        self.sum(|queue| &queue.rules[rule as usize])
    }
}
