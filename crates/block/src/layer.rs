//! The interface of layers: a shared, immutable [`Layer`] makes one owned [`Channel`] per queue.
//!
//! A layer wraps the one below it and forwards what it does not change, so any suffix of the stack
//! is a disk of its own. Queues share no mutable state through this interface, and no call of it
//! blocks: a thread sleeps once for all its channels, in its [`Reactor`].

use std::io;

use flowstone_reactor::{NextLook, Reactor};

use crate::{Completion, Geometry, Origin, Request};

/// The most requests a queue has in flight at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueDepth(pub u16);

/// The description of a queue, for the channel that is made for it.
#[derive(Clone)]
pub struct QueueContext {
    /// The most requests that it has in flight.
    pub depth: QueueDepth,
    /// The disk and queue that requests come from.
    pub origin: Origin,
    /// The reactor of its thread. Channels of several disks may share it.
    pub reactor: Reactor,
}

impl QueueContext {
    /// Makes a context with a reactor of its own and no guest: for tools and maintenance.
    pub fn alone(depth: QueueDepth) -> io::Result<Self> {
        Ok(Self { depth, origin: Origin::default(), reactor: Reactor::new()? })
    }
}

/// A disk, or something that changes how the disk below it behaves.
pub trait Layer: Send + Sync {
    /// Returns the current geometry; a live resize changes the capacity.
    fn geometry(&self) -> Geometry;

    /// Makes a channel for one queue. It stays on the thread of `context.reactor`, which is the
    /// calling thread. A layer may open several channels below for one of its own.
    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>>;
}

/// One queue's way into a layer. Every submitted request comes back from [`reap`](Self::reap)
/// exactly once, in any order.
///
/// Dropping a channel waits for what is in flight, which blocks the whole thread and all disks that
/// it serves; so a thread that serves several [retires](Self::retire) a channel first.
pub trait Channel {
    /// Takes a request. This cannot fail: a refusal is a completion.
    fn submit(&mut self, request: Box<Request>);

    /// Starts everything submitted so far; at most one system call for the whole batch.
    fn kick(&mut self);

    /// Appends completed requests to `done`. Does not wait.
    fn reap(&mut self, done: &mut Vec<Completion>);

    /// Returns when [`reap`](Self::reap) is to be called next. Called last before the thread sleeps
    /// ([`Reactor::sleep`]), which starts what has been submitted.
    fn next_look(&mut self) -> NextLook;

    /// Drains the channel; nothing is submitted or reaped any more. Collects what is still in
    /// flight (requests of the channel's own, of other queues, and after a panic its owner's too),
    /// returns none of it to the owner, and starts nothing new. Returns whether all has come back:
    /// a drop then waits for nothing. Does not wait; called until it returns `true`.
    ///
    /// A layer forwards the call when its own requests have come back. The default has nothing to
    /// wait for.
    fn retire(&mut self) -> bool {
        true
    }
}
