//! A value that many threads read and one replaces rarely. A reader caches the last version and
//! fetches a new one only when the version number has changed: reading writes no shared cache line.
//!
//! A sleeping reader would keep its old value alive for as long as it sleeps. So readers register a
//! waker: a new value wakes them, they fetch it, and the old one is freed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::{Reactor, Waker, lock, mutated};

/// Wakes the thread of a reader. The reader holds it for its lifetime.
pub type ReaderWaker = Arc<Waker>;

/// The shared value.
#[derive(Default)]
pub struct Published<T> {
    version: AtomicU64,
    value: Mutex<Arc<T>>,
    readers: Mutex<Vec<Weak<ReaderWaker>>>,
}

impl<T> Published<T> {
    /// Replaces the value and wakes the readers.
    pub fn publish(&self, value: T) {
        let mut current = lock(&self.value);
        *current = Arc::new(value);
        // Under the lock, so that a newer value never has a lower version than an older one.
        self.version.fetch_add(1, Ordering::Release);
        drop(current);
        let wakes = mutated("block.published.wakes-no-reader", true, false);
        if wakes {
            let readers = lock(&self.readers);
            readers.iter().filter_map(Weak::upgrade).for_each(|reader| reader.wake());
        }
    }

    /// Registers `reactor`: each new value wakes its thread while the reader holds the returned
    /// waker.
    pub fn wakes(&self, reactor: &Reactor) -> Arc<ReaderWaker> {
        let reader = Arc::new(reactor.waker());
        let mut readers = lock(&self.readers);
        readers.retain(|reader| reader.strong_count() > 0);
        readers.push(Arc::downgrade(&reader));
        reader
    }

    /// Returns the current value.
    pub fn get(&self) -> Arc<T> {
        Arc::clone(&lock(&self.value))
    }
}

/// One reader's cached version of it.
#[derive(Debug)]
pub struct Seen<T> {
    version: u64,
    value: Arc<T>,
}

impl<T> Seen<T> {
    /// Caches the current value.
    pub fn of(published: &Published<T>) -> Self {
        let version = published.version.load(Ordering::Acquire);
        Self { version, value: published.get() }
    }

    /// Returns whether there is a newer value.
    #[inline]
    pub fn is_old(&self, published: &Published<T>) -> bool {
        published.version.load(Ordering::Acquire) != self.version
    }

    /// Returns the newest value.
    #[inline]
    pub fn look(&mut self, published: &Published<T>) -> &T {
        self.newer(published);
        &self.value
    }

    /// Returns the newest value if it is newer than the cached one.
    #[inline]
    pub fn newer(&mut self, published: &Published<T>) -> Option<&T> {
        if !self.is_old(published) {
            return None;
        }
        *self = Self::of(published);
        Some(&self.value)
    }

    /// Returns the cached value.
    pub fn last(&self) -> &T {
        &self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_sees_what_was_published_last() {
        let published = Published::<u32>::default();
        let mut seen = Seen::of(&published);
        published.publish(1);
        assert_eq!(*seen.last(), 0);
        assert_eq!(*seen.look(&published), 1);
        published.publish(2);
        published.publish(3);
        assert_eq!((*seen.look(&published), *published.get()), (3, 3));
    }

    /// A dropped reader is neither woken nor kept in the list.
    #[test]
    fn a_reader_that_has_gone_is_not_woken() {
        let published = Published::<u32>::default();
        let reactors = [(); 2].map(|()| Reactor::new().unwrap());
        let [gone, _kept] = [0, 1].map(|at| published.wakes(&reactors[at]));
        drop(gone);
        let _third = published.wakes(&reactors[0]);
        assert_eq!(lock(&published.readers).len(), 2);
    }

    /// The version is read before the value: a value published between the two is seen twice, and
    /// never missed.
    #[test]
    fn no_value_is_missed_while_others_are_published() {
        let published = Published::<u32>::default();
        std::thread::scope(|scope| {
            scope.spawn(|| (1..=20_000).for_each(|value| published.publish(value)));
            let mut seen = Seen::of(&published);
            let mut last = 0;
            while last < 20_000 {
                let now = *seen.look(&published);
                assert!(now >= last);
                last = now;
            }
        });
    }
}
