//! The interface of limits: how much the queues of a disk may take from their rings.

use std::sync::Arc;

use crate::{Geometry, NextLook, Op, Reactor};

/// The limits of one disk.
pub trait Throttle: Send + Sync + 'static {
    /// The part of one queue.
    type Intake: Intake;

    /// Makes the intake of a queue on the thread of `reactor`.
    fn intake(self: Arc<Self>, disk: &Geometry, reactor: &Reactor) -> Self::Intake;
}

/// The limit as seen by one queue, on the thread that takes its requests.
pub trait Intake {
    /// Begins a batch, with at most `available` chains in the ring. Returns whether any may be
    /// taken; if so, [`close`](Self::close) must follow.
    fn open(&mut self, available: usize) -> bool;

    /// Returns whether the next chain of the batch may be taken.
    fn goes_on(&self) -> bool;

    /// Charges a taken request of operation `op`.
    fn spend(&self, op: Op);

    /// Charges `chains` chains that were answered without the disk.
    fn spend_answered(&self, chains: usize);

    /// Ends a batch: its cost is paid from tokens, or becomes the disk's debt.
    fn close(&mut self);

    /// Resets the wait: no chain is waiting any more.
    fn forget(&mut self);

    /// Returns whether waiting chains have to wait on: none may be taken before
    /// [`next_look`](Self::next_look).
    fn is_closed(&self) -> bool;

    /// Returns when more chains may be taken; called last before a sleep.
    fn next_look(&self) -> NextLook;
}
