//! The seam: a shared, immutable [`Layer`] makes one owned [`Channel`] for each queue.
//!
//! A layer wraps the one below it and forwards what it does not change, so any suffix of the stack
//! is a disk of its own. Queues share nothing mutable through this seam, and nothing in it waits:
//! the thread sleeps once for all channels on it, in its [`Reactor`].

use std::io;

use flowstone_reactor::{NextLook, Reactor};

use crate::{Completion, Geometry, Origin, Request};

/// The most requests a queue has in flight at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueDepth(pub u16);

/// What a channel is told about the queue that it is made for.
#[derive(Clone)]
pub struct QueueContext {
    /// How many requests it has in flight at most.
    pub depth: QueueDepth,
    /// Which queue of which disk it is.
    pub origin: Origin,
    /// What its thread sleeps in. A channel may share it with channels of other disks.
    pub reactor: Reactor,
}

impl QueueContext {
    /// For a queue that has its thread to itself and belongs to no guest: tools and maintenance.
    pub fn alone(depth: QueueDepth) -> io::Result<Self> {
        Ok(Self { depth, origin: Origin::default(), reactor: Reactor::new()? })
    }
}

/// A disk, or something that changes how the disk below it behaves.
pub trait Layer: Send + Sync {
    /// What the disk looks like now; a live resize changes the capacity.
    fn geometry(&self) -> Geometry;

    /// A way to submit requests from one queue. It stays on the thread of `context.reactor`, which
    /// is the one that called this. A layer may make several channels below for one of its own.
    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>>;
}

/// One queue's way into a layer. Every request submitted comes back from [`reap`](Self::reap)
/// exactly once, in any order.
///
/// Dropping a channel waits for what is in flight, and with it the whole thread and all disks that
/// it serves; so a thread that serves several lets a channel [`retire`](Self::retire) first.
pub trait Channel {
    /// Takes a request. This cannot fail: a refusal is a completion.
    fn submit(&mut self, request: Box<Request>);

    /// Starts everything submitted so far; at most one system call for the whole batch.
    fn kick(&mut self);

    /// Appends what has completed. Does not wait.
    fn reap(&mut self, done: &mut Vec<Completion>);

    /// When the channel wants to be looked at again, that is, [`reap`](Self::reap) to be called.
    /// Asked as the last look before the thread sleeps ([`Reactor::sleep`]), which starts what has
    /// been submitted.
    fn next_look(&mut self) -> NextLook;

    /// Nothing is submitted or reaped any more. Takes back what is still on its way (what the
    /// channel does for itself, or for other queues, and after a panic its owner's requests too),
    /// gives none of it to its owner, and starts nothing of its own accord. Returns whether all is
    /// back: a drop waits for nothing then. Does not wait; called again until it is so.
    ///
    /// A layer forwards it, when what is its own has come back. By default there is nothing to wait
    /// for.
    fn retire(&mut self) -> bool {
        true
    }
}
