//! A disk for tests that completes nothing until it is released.

use std::io;
use std::sync::{Arc, Mutex};

use flowstone_block::sync::atomic::{AtomicBool, Ordering};
use flowstone_block::{
    Channel, Completion, Geometry, Layer, NextLook, QueueContext, Request, SectorCount, Waker,
};

/// A disk that holds its completions. Clones share one state.
#[derive(Clone, Default)]
pub struct Held {
    /// Whether it has received a request.
    pub has_one: Arc<AtomicBool>,
    goes_on: Arc<AtomicBool>,
    waker: Arc<Mutex<Option<Arc<Waker>>>>,
}

struct HeldChannel(Held, Vec<Completion>);

impl Held {
    pub fn go_on(&self) {
        self.goes_on.store(true, Ordering::Release);
        self.waker.lock().unwrap().as_ref().unwrap().wake();
    }
}

impl Layer for Held {
    fn geometry(&self) -> Geometry {
        Geometry::with_capacity(SectorCount::new(1 << 12))
    }

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        *self.waker.lock().unwrap() = Some(context.reactor.waker());
        Ok(Box::new(HeldChannel(self.clone(), Vec::new())))
    }
}

impl Channel for HeldChannel {
    fn submit(&mut self, request: Box<Request>) {
        self.1.push(Completion { request, outcome: Ok(()) });
        self.0.has_one.store(true, Ordering::Release);
    }

    fn kick(&mut self) {}

    fn reap(&mut self, done: &mut Vec<Completion>) {
        if self.0.goes_on.load(Ordering::Acquire) {
            done.append(&mut self.1);
        }
    }

    fn next_look(&mut self) -> NextLook {
        NextLook::now_if(self.0.goes_on.load(Ordering::Acquire) && !self.1.is_empty())
    }
}
