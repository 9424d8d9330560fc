//! Requests that other threads have carried out for a queue.

use std::sync::{Arc, PoisonError};

use flowstone_block::sync::Mutex;
use flowstone_block::sync::atomic::{AtomicBool, Ordering};
use flowstone_block::{Completion, mutant};

use crate::runtime::wakers::QueueWaker;

/// See the module.
pub struct CompletionQueue {
    waker: Arc<QueueWaker>,
    done: Mutex<Vec<Completion>>,
    full: AtomicBool,
}

impl CompletionQueue {
    /// Empty; a completion wakes `waker`.
    pub fn new(waker: Arc<QueueWaker>) -> Self {
        Self { waker, done: Mutex::default(), full: AtomicBool::new(false) }
    }

    /// Gives a request back.
    pub fn put(&self, completion: Completion) {
        self.done.lock().unwrap_or_else(PoisonError::into_inner).push(completion);
        self.full.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Whether there may be something in it.
    pub fn has_completions(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    /// Everything that is in it.
    pub fn take(&self) -> Vec<Completion> {
        let late = mutant("image.completion-queue.lowers-its-flag-after-the-list");
        // Before the list is taken: what comes later raises it again.
        if !late {
            self.full.store(false, Ordering::Release);
        }
        let done = std::mem::take(&mut *self.done.lock().unwrap_or_else(PoisonError::into_inner));
        if late {
            self.full.store(false, Ordering::Release);
        }
        done
    }
}
