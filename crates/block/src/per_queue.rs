//! Counters per queue, so that counting shares no cache line between threads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::lock;

/// The counters `T` of all queues of a disk. They outlive the queues.
#[derive(Debug, Default)]
pub struct PerQueue<T> {
    queues: Mutex<BTreeMap<u16, Arc<T>>>,
}

impl<T: Default> PerQueue<T> {
    /// Returns the counters of a queue: always the same object, run by one thread at a time.
    pub fn of_queue(&self, queue: u16) -> Arc<T> {
        let mut queues = lock(&self.queues);
        Arc::clone(queues.entry(queue).or_default())
    }

    /// Returns the sum of a counter over all queues.
    pub fn sum(&self, counter: impl Fn(&T) -> &AtomicU64) -> u64 {
        let queues = lock(&self.queues);
        queues.values().map(|queue| counter(queue).load(Ordering::Relaxed)).sum()
    }
}

/// Adds to a counter that has one writer at a time: a plain addition, cheaper than an atomic one.
pub fn count(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}
