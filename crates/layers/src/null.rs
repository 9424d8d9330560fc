//! A disk that does nothing, at once: what is left is the cost of everything above it.
//!
//! Reads leave the guest's memory as it is.

use std::io;

use flowstone_block::{
    Channel, Completion, Doorbells, Geometry, Layer, QueueDepth, Request, SectorCount,
    poll_doorbells,
};

/// The disk that does nothing.
pub struct Null {
    geometry: Geometry,
}

struct NullChannel {
    done: Vec<Completion>,
}

impl Null {
    /// A null disk of this size.
    pub const fn new(capacity: SectorCount) -> Self {
        Self { geometry: Geometry::with_capacity(capacity) }
    }
}

impl Layer for Null {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn channel(&self, depth: QueueDepth) -> io::Result<Box<dyn Channel>> {
        Ok(Box::new(NullChannel { done: Vec::with_capacity(usize::from(depth.0)) }))
    }
}

impl Channel for NullChannel {
    fn submit(&mut self, request: Box<Request>) {
        self.done.push(Completion { request, outcome: Ok(()) });
    }

    fn kick(&mut self) {}

    fn reap(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.done);
    }

    fn sleep(&mut self, doorbells: &Doorbells<'_>) {
        if self.done.is_empty() {
            poll_doorbells(doorbells, None);
        }
    }
}
