//! What the queues of a disk may take from their rings, as a stage says that limits disks.

use std::sync::Arc;

use crate::{Geometry, NextLook, Op, Reactor};

/// Of a disk.
pub trait Throttle: Send + Sync + 'static {
    /// What asks it.
    type Intake: Intake;

    /// For a queue on the thread of this reactor.
    fn intake(self: Arc<Self>, disk: &Geometry, reactor: &Reactor) -> Self::Intake;
}

/// Of one queue, on the thread that takes its requests.
pub trait Intake {
    /// Begins a batch, of so many chains in the ring at most. Returns whether any may be taken;
    /// then [`close`](Self::close) is to follow.
    fn open(&mut self, available: usize) -> bool;

    /// Asked before each chain of a batch: whether it may be taken, too.
    fn goes_on(&self) -> bool;

    /// Something has been taken that asks for this.
    fn spend(&self, op: Op);

    /// So many chains have been taken that are answered without the disk.
    fn spend_answered(&self, chains: usize);

    /// Ends a batch: what it has cost is paid, or owed by the disk.
    fn close(&mut self);

    /// Nothing waits any more.
    fn forget(&mut self);

    /// Whether what waits in the ring has to wait on: nothing may be taken before
    /// [`next_look`](Self::next_look).
    fn is_closed(&self) -> bool;

    /// When more of what waits may be taken, as the last look before a sleep.
    fn next_look(&self) -> NextLook;
}
