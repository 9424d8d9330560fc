//! Who still uses the host clusters that were in the map a while ago.
//!
//! Time is cut into generations; a commit begins a new one. A request enters the present one when
//! it looks into the map, under the map's lock, and leaves it when its I/O is done. A cluster that
//! the map dropped in some generation may get another use when everybody who entered in that one
//! or before has left.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Everybody who does I/O on behalf of requests.
#[derive(Default)]
pub struct Epochs {
    registered: Mutex<Vec<Weak<AtomicU64>>>,
}

/// One queue's or thread's requests in flight.
pub struct EpochPins {
    /// Generations with requests in flight, and how many, from the oldest on.
    counts: VecDeque<(u64, usize)>,
    /// The oldest one, for others to see.
    oldest: Arc<AtomicU64>,
}

const NONE: u64 = u64::MAX;

impl Epochs {
    /// A log for another queue or thread.
    pub fn register(&self) -> EpochPins {
        let oldest = Arc::new(AtomicU64::new(NONE));
        let mut registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        registered.retain(|oldest| oldest.strong_count() > 0);
        registered.push(Arc::downgrade(&oldest));
        EpochPins { counts: VecDeque::new(), oldest }
    }

    /// The oldest generation in which something is in flight. To be called after the map's lock
    /// has been taken and given back since the generation in question ended.
    pub fn oldest(&self) -> u64 {
        let registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        let alive = registered.iter().filter_map(Weak::upgrade);
        alive.map(|oldest| oldest.load(Ordering::Acquire)).min().unwrap_or(NONE)
    }
}

impl EpochPins {
    /// A request enters; to be called under the map's lock, from which `epoch` is.
    pub fn pin(&mut self, epoch: u64) {
        match self.counts.back_mut() {
            Some((last, count)) if *last == epoch => *count += 1,
            _ => self.counts.push_back((epoch, 1)),
        }
        self.publish();
    }

    /// A request that entered in this generation is done with its I/O.
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
        self.oldest.store(oldest, Ordering::Release);
    }
}

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
