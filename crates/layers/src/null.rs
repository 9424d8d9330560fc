//! A disk that completes every request at once and does nothing: it leaves the cost of everything
//! above it to measure.
//!
//! Reads leave the guest's memory as it is.

use std::io;

use flowstone_block::{
    Channel, Completion, Geometry, Layer, NextLook, QueueContext, Request, SectorCount,
};

/// The null disk.
pub struct Null {
    geometry: Geometry,
}

/// A channel that completes every request when it is submitted.
pub struct AtOnce<F> {
    execute: F,
    done: Vec<Completion>,
}

impl Null {
    /// Makes a null disk of `capacity`.
    pub const fn new(capacity: SectorCount) -> Self {
        Self { geometry: Geometry::with_capacity(capacity) }
    }
}

impl Layer for Null {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        Ok(Box::new(AtOnce::new(context, |_| {})))
    }
}

impl<F: Fn(&Request)> AtOnce<F> {
    pub fn new(context: &QueueContext, execute: F) -> Self {
        Self { execute, done: Vec::with_capacity(usize::from(context.depth.0)) }
    }
}

impl<F: Fn(&Request)> Channel for AtOnce<F> {
    fn submit(&mut self, request: Box<Request>) {
        (self.execute)(&request);
        self.done.push(Completion { request, outcome: Ok(()) });
    }

    fn kick(&mut self) {}

    fn reap(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.done);
    }

    fn next_look(&mut self) -> NextLook {
        NextLook::now_if(!self.done.is_empty())
    }
}
