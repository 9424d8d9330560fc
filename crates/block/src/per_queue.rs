//! Counters that each queue has of its own, so that counting shares no cache line.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The counters `T` of all queues of a disk, which outlive these.
#[derive(Debug, Default)]
pub struct PerQueue<T> {
    queues: Mutex<BTreeMap<u16, Arc<T>>>,
}

impl<T: Default> PerQueue<T> {
    /// Those of a queue: the same ones each time, and one thread at a time runs it.
    pub fn of_queue(&self, queue: u16) -> Arc<T> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(queues.entry(queue).or_default())
    }

    /// A counter, of all queues.
    pub fn sum(&self, counter: impl Fn(&T) -> &AtomicU64) -> u64 {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.values().map(|queue| counter(queue).load(Ordering::Relaxed)).sum()
    }
}

/// Adds to a counter that one thread at a time writes: a plain addition, without the price of an
/// atomic one.
pub fn count(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}
