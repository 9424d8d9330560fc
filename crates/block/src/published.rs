//! A value that many threads look at and one replaces now and then. A reader keeps the one it has
//! seen, and asks for the next one only when there is one: no look writes anything that others
//! read.
//!
//! A reader that sleeps would keep its value for as long as it sleeps, each another one. So readers
//! say how they are woken: they look when there is a new value, and the old one is gone.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::{Reactor, Waker, mutant};

/// Wakes the thread of a reader. The reader holds it for as long as it is there.
pub type ReaderWaker = Arc<Waker>;

/// The value.
#[derive(Default)]
pub struct Published<T> {
    version: AtomicU64,
    value: Mutex<Arc<T>>,
    readers: Mutex<Vec<Weak<ReaderWaker>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Published<T> {
    /// Replaces the value, and wakes readers.
    pub fn publish(&self, value: T) {
        let mut current = lock(&self.value);
        *current = Arc::new(value);
        // While the lock is held, so that the version of a value never is behind that of an older
        // one.
        self.version.fetch_add(1, Ordering::Release);
        drop(current);
        if !mutant("block.published.wakes-no-reader") {
            let readers = lock(&self.readers);
            readers.iter().filter_map(Weak::upgrade).for_each(|reader| reader.wake());
        }
    }

    /// Wakes the thread of `reactor` for each new value from now on, while the reader holds what is
    /// returned.
    pub fn wakes(&self, reactor: &Reactor) -> Arc<ReaderWaker> {
        let reader = Arc::new(reactor.waker());
        let mut readers = lock(&self.readers);
        readers.retain(|reader| reader.strong_count() > 0);
        readers.push(Arc::downgrade(&reader));
        reader
    }

    /// The value as it is now.
    pub fn get(&self) -> Arc<T> {
        Arc::clone(&lock(&self.value))
    }
}

/// One reader's view of it.
#[derive(Debug)]
pub struct Seen<T> {
    version: u64,
    value: Arc<T>,
}

impl<T> Seen<T> {
    /// As it is now.
    pub fn of(published: &Published<T>) -> Self {
        let version = published.version.load(Ordering::Acquire);
        Self { version, value: published.get() }
    }

    /// Whether there is a newer one.
    #[inline]
    pub fn is_old(&self, published: &Published<T>) -> bool {
        published.version.load(Ordering::Acquire) != self.version
    }

    /// The newest value.
    #[inline]
    pub fn look(&mut self, published: &Published<T>) -> &T {
        self.newer(published);
        &self.value
    }

    /// The newest value, if it is not the one that was seen last.
    #[inline]
    pub fn newer(&mut self, published: &Published<T>) -> Option<&T> {
        if !self.is_old(published) {
            return None;
        }
        *self = Self::of(published);
        Some(&self.value)
    }

    /// The value that was seen last.
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

    /// What is not there any more is not woken, nor kept.
    #[test]
    fn a_reader_that_has_gone_is_not_woken() {
        let published = Published::<u32>::default();
        let reactors = [(); 2].map(|()| Reactor::new().unwrap());
        let [gone, _kept] = [0, 1].map(|at| published.wakes(&reactors[at]));
        drop(gone);
        let _third = published.wakes(&reactors[0]);
        assert_eq!(lock(&published.readers).len(), 2);
    }

    /// The version is read before the value: a value that comes between the two is seen again, and
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
