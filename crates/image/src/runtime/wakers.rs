//! How other threads wake the queues of an image.
//!
//! A queue's own I/O ends the sleep of its thread by itself. This is for what other threads do,
//! e.g. a record of another queue has committed that ours waits behind, a sync of another queue
//! covers our flush, the maintenance worker has made room.

use std::sync::{Arc, PoisonError, Weak};

use flowstone_block::sync::{Mutex, MutexGuard};
use flowstone_block::{Reactor, Waker};

/// Wakes the thread of one queue.
pub struct QueueWaker(Arc<Waker>);

impl QueueWaker {
    /// Of a queue on the thread of `reactor`.
    pub fn new(reactor: &Reactor) -> Arc<Self> {
        Arc::new(Self(reactor.waker()))
    }

    /// Wakes the thread if it sleeps. What it will find must have been stored before.
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

    /// A waker for a new queue. It is one of these for as long as the queue holds it.
    pub fn add(&self, reactor: &Reactor) -> Arc<QueueWaker> {
        let waker = QueueWaker::new(reactor);
        let mut wakers = self.lock();
        wakers.retain(|waker| waker.strong_count() > 0);
        wakers.push(Arc::downgrade(&waker));
        waker
    }

    /// Wakes every queue: something has changed that any of them may wait for.
    pub fn wake_all(&self) {
        self.lock().iter().filter_map(Weak::upgrade).for_each(|waker| waker.wake());
    }
}
