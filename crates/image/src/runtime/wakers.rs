//! Wakes the queues of an image from other threads.
//!
//! A queue's own I/O ends the sleep of its thread by itself. Wakers are for events on other
//! threads, e.g. a record of another queue has committed that this queue waits behind, a sync of
//! another queue covers its flush, or the maintenance worker has freed space.

use std::sync::{Arc, PoisonError, Weak};

use flowstone_block::sync::{Mutex, MutexGuard};
use flowstone_block::{Reactor, Waker};

/// Wakes the thread of one queue.
pub struct QueueWaker(Arc<Waker>);

impl QueueWaker {
    /// A waker of a queue on the thread of `reactor`.
    pub fn new(reactor: &Reactor) -> Arc<Self> {
        Arc::new(Self(reactor.waker()))
    }

    /// Wakes the thread if it sleeps. The change that it must see must be stored before the call.
    pub fn wake(&self) {
        self.0.wake();
    }
}

/// The wakers of all queues of an image.
#[derive(Default)]
pub struct Wakers(Mutex<Vec<Weak<QueueWaker>>>);

impl Wakers {
    fn lock(&self) -> MutexGuard<'_, Vec<Weak<QueueWaker>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a waker for a new queue. It is registered for as long as the queue holds it.
    pub fn add(&self, reactor: &Reactor) -> Arc<QueueWaker> {
        let waker = QueueWaker::new(reactor);
        let mut wakers = self.lock();
        wakers.retain(|waker| waker.strong_count() > 0);
        wakers.push(Arc::downgrade(&waker));
        waker
    }

    /// Wakes every queue: the condition that any of them waits for may have changed.
    pub fn wake_all(&self) {
        self.lock().iter().filter_map(Weak::upgrade).for_each(|waker| waker.wake());
    }
}
