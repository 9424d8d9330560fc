//! Completions of requests that other threads have carried out for a queue.

use std::sync::{Arc, PoisonError};

use flowstone_block::sync::Mutex;
use flowstone_block::sync::atomic::{AtomicBool, Ordering};
use flowstone_block::{Completion, Errno, Outcome, Request, mutated};

use crate::runtime::wakers::QueueWaker;

/// See the module.
pub struct CompletionQueue {
    waker: Arc<QueueWaker>,
    done: Mutex<Vec<Completion>>,
    full: AtomicBool,
}

/// A request in the hands of another thread. It always completes: when it is dropped unanswered, as
/// when the thread panics, with EIO.
pub struct HandedOver {
    request: Option<Box<Request>>,
    reply_to: Arc<CompletionQueue>,
}

impl HandedOver {
    /// Hands over a request.
    pub fn new(request: Box<Request>, reply_to: &Arc<CompletionQueue>) -> Self {
        Self { request: Some(request), reply_to: Arc::clone(reply_to) }
    }

    /// Returns the request.
    pub fn request(&mut self) -> &mut Request {
        self.request.as_mut().expect("it is taken by the answer only, which takes all of this")
    }

    /// Completes the request.
    pub fn reply(mut self, outcome: Outcome) {
        self.give_back(outcome);
    }

    fn give_back(&mut self, outcome: Outcome) {
        if let Some(request) = self.request.take() {
            self.reply_to.put(Completion { request, outcome });
        }
    }
}

impl Drop for HandedOver {
    fn drop(&mut self) {
        let answers = mutated("image.handed-over.dropped-without-an-answer", true, false);
        if answers {
            self.give_back(Err(Errno::IO));
        }
    }
}

impl CompletionQueue {
    /// An empty queue; each completion wakes `waker`.
    pub fn new(waker: Arc<QueueWaker>) -> Self {
        Self { waker, done: Mutex::default(), full: AtomicBool::new(false) }
    }

    /// Adds a completion and wakes the queue.
    pub fn put(&self, completion: Completion) {
        self.done.lock().unwrap_or_else(PoisonError::into_inner).push(completion);
        self.full.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Returns whether there may be completions.
    pub fn has_completions(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    /// Takes all completions.
    pub fn take(&self) -> Vec<Completion> {
        // Before the list is taken: a later completion raises the flag again.
        let lowers_first =
            mutated("image.completion-queue.lowers-its-flag-after-the-list", true, false);
        if lowers_first {
            self.full.store(false, Ordering::Release);
        }
        let done = std::mem::take(&mut *self.done.lock().unwrap_or_else(PoisonError::into_inner));
        if !lowers_first {
            self.full.store(false, Ordering::Release);
        }
        done
    }
}
