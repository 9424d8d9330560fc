//! The seam: a shared, immutable [`Layer`] makes one owned [`Channel`] for each queue.
//!
//! A layer wraps the one below it and forwards what it does not change, so any suffix of the
//! stack is a disk of its own. Queues share nothing mutable through this seam.

use std::io;

use crate::{Completion, Doorbells, Geometry, Request};

/// The most requests a queue has in flight at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueDepth(pub u16);

/// A disk, or something that changes how the disk below it behaves.
pub trait Layer: Send + Sync {
    /// What the disk looks like now; a live resize changes the capacity.
    fn geometry(&self) -> Geometry;

    /// A way to submit requests from one queue. It stays on the thread that called this: engines
    /// bind their rings to it.
    fn channel(&self, depth: QueueDepth) -> io::Result<Box<dyn Channel>>;
}

/// One queue's way into a layer. Every request submitted comes back from [`reap`](Self::reap)
/// exactly once, in any order.
pub trait Channel {
    /// Takes a request. This cannot fail: a refusal is a completion.
    fn submit(&mut self, request: Box<Request>);

    /// Starts everything submitted so far; at most one system call for the whole batch.
    fn kick(&mut self);

    /// Appends what has completed. Does not wait.
    fn reap(&mut self, done: &mut Vec<Completion>);

    /// Starts what has been submitted, and sleeps until there may be a completion to reap or a
    /// doorbell rings. May wake up early.
    fn sleep(&mut self, doorbells: &Doorbells<'_>);
}
