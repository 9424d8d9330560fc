//! Host clusters that the map has dropped but requests in flight may still use.
//!
//! Time is divided into epochs; a commit begins a new one. A request pins the present epoch when it
//! reads the map, before it releases the map's lock, and unpins it when its I/O is done. A cluster
//! that the map dropped in some epoch may be reused when that epoch and all before it have no pins.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use flowstone_block::mutated;
use flowstone_block::sync::atomic::{AtomicU64, Ordering};
use flowstone_block::sync::{Mutex, MutexGuard};

/// The pins of all queues and threads of an image.
#[derive(Default)]
pub struct Epochs(Arc<Registry>);

/// The oldest pin of each queue and thread.
#[derive(Default)]
struct Registry(Mutex<Vec<Arc<AtomicU64>>>);

impl Registry {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<AtomicU64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pins of one queue or thread.
pub struct EpochPins {
    /// Pinned epochs, and the number of their pins, oldest first.
    counts: VecDeque<(u64, usize)>,
    /// The oldest pinned epoch, for other threads to read.
    oldest: Arc<AtomicU64>,
    registry: Arc<Registry>,
}

const NONE: u64 = u64::MAX;

impl Epochs {
    /// Registers another queue or thread.
    pub fn register(&self) -> EpochPins {
        let oldest = Arc::new(AtomicU64::new(NONE));
        self.0.lock().push(Arc::clone(&oldest));
        EpochPins { counts: VecDeque::new(), oldest, registry: Arc::clone(&self.0) }
    }

    /// Returns the oldest epoch with a pin. Must be called after the map's lock has been taken and
    /// released since the epoch in question ended.
    pub fn oldest(&self) -> u64 {
        let registered = self.0.lock();
        registered.iter().map(|oldest| oldest.load(Ordering::Acquire)).min().unwrap_or(NONE)
    }
}

impl EpochPins {
    /// Releases the map's lock, with the present epoch, read under it, pinned for a request: a
    /// cluster seen under this lock is not reused before [`unpin`](Self::unpin). Returns the epoch.
    pub fn hold(&mut self, epoch: u64, map: impl Sized) -> u64 {
        let pins_first = mutated("qcow2.epochs.pins-after-the-look", true, false);
        if !pins_first {
            drop(map);
            self.pin(epoch);
            return epoch;
        }
        self.pin(epoch);
        epoch
    }

    fn pin(&mut self, epoch: u64) {
        match self.counts.back_mut() {
            Some((last, count)) if *last == epoch => *count += 1,
            _ => self.counts.push_back((epoch, 1)),
        }
        self.publish();
    }

    /// Removes the pin of a request whose I/O is done.
    pub fn unpin(&mut self, epoch: u64) {
        let found = self.counts.iter_mut().find(|(pinned, _)| *pinned == epoch);
        found.expect("a request leaves after it has entered").1 -= 1;
        while self.counts.front().is_some_and(|(_, count)| *count == 0) {
            self.counts.pop_front();
        }
        self.publish();
    }

    fn publish(&self) {
        let oldest = self.counts.front().map_or(NONE, |(epoch, _)| *epoch);
        // The request's effects are visible before another thread sees the pin gone.
        let order = Ordering::Release;
        let order = mutated("qcow2.epochs.unpins-without-order", order, Ordering::Relaxed);
        self.oldest.store(oldest, order);
    }
}

impl Drop for EpochPins {
    /// Under the lock: a thread that does not find the pins sees that all I/O of their requests is
    /// done.
    fn drop(&mut self) {
        self.registry.lock().retain(|oldest| !Arc::ptr_eq(oldest, &self.oldest));
    }
}

#[cfg(feature = "model")]
#[cfg(test)]
mod models;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_generation_ends_when_its_last_request_leaves() {
        let epochs = Epochs::default();
        let (mut one, mut other) = (epochs.register(), epochs.register());
        assert_eq!(epochs.oldest(), NONE);
        one.pin(3);
        one.pin(3);
        other.pin(4);
        one.pin(5);
        one.unpin(3);
        assert_eq!(epochs.oldest(), 3);
        one.unpin(3);
        assert_eq!(epochs.oldest(), 4);
        drop(other);
        assert_eq!(epochs.oldest(), 5);
    }
}
