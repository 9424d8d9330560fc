//! The interface of front ends: a [`GuestQueue`] yields the driver's requests and takes their
//! completions.
//!
//! A queue has two halves, each with one owner. One thread owns both (fused), or two threads one
//! each (split): then a chain goes from the [`FrontHalf`] to the [`BackHalf`], and back when it is
//! done. A chain is one descriptor chain of the driver; its head index names it until it is done.

use std::fs::File;
use std::io;
use std::sync::Arc;

use crate::{Completion, Outcome, Request};

/// The result of taking chains from a queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taken {
    /// Chains taken.
    pub chains: usize,
    /// Those of them that were answered without the disk.
    pub answered: usize,
    /// Chains that were available and were not taken.
    pub left: usize,
}

/// The result of publishing: whether the driver was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// No completion was published.
    Nothing,
    /// Published, and the driver was interrupted, as it had asked.
    Sent,
    /// Published; the driver had suppressed the interrupt.
    Suppressed,
}

/// A chain that is done.
pub struct Finished {
    /// Its head index.
    pub head: u16,
    /// Its request, to be reused.
    pub request: Box<Request>,
    /// Its outcome.
    pub outcome: Outcome,
}

/// A queue of a guest, with both halves on one thread. It may move to another thread when nothing
/// is in flight.
pub trait GuestQueue: Sized + Send + 'static {
    /// The half that takes requests.
    type Front: FrontHalf;
    /// The half that completes them.
    type Back: BackHalf<Start = <Self::Front as FrontHalf>::Start>;

    /// The queue may be moved to another thread than the first that runs it, or be split over two.
    const IS_MOVABLE: bool = true;

    /// Returns the taking half, to inspect it.
    fn front(&self) -> &Self::Front;

    /// Returns the taking half, to ask it for available chains.
    fn front_mut(&mut self) -> &mut Self::Front;

    /// Takes at most `batch_max` available requests and passes them to `submit`. Requests that need
    /// no disk are answered; [`publish`](Self::publish) shows their completions. Asks `go_on`
    /// before each further request: a single one may keep `submit` busy for 100 ms.
    fn take(
        &mut self,
        batch_max: usize,
        go_on: impl Fn() -> bool,
        submit: impl FnMut(Box<Request>),
    ) -> Taken;

    /// Takes the oldest request that a dead daemon left undone, as [`take`](Self::take) does. Only
    /// one is in flight at a time: if it makes the daemon crash, no other request is suspected.
    fn take_undone(&mut self, submit: impl FnMut(Box<Request>)) -> Taken;

    /// Called when the disk has all requests that were taken.
    fn handed_over(&mut self);

    /// Takes a completion. Returns the outcome of the guest's request if this was its last part.
    fn complete(&mut self, completion: Completion) -> Option<Outcome>;

    /// Publishes all new completions in the used ring, and interrupts the driver if it asks for
    /// that.
    fn publish(&mut self) -> Signal;

    /// Returns the NUMA node of the guest's memory, if it is known.
    fn home(&self) -> Option<u32>;

    /// Splits the queue into halves for one thread each. Nothing may be in flight.
    ///
    /// The taking half must get a done chain back before the driver can see that it is done
    /// ([`FrontHalf::take_back`] before [`BackHalf::publish`]), and must not take a head again
    /// before the marks of its last use are cleared (after [`BackHalf::publish`]).
    fn split(self) -> (Self::Front, Self::Back);

    /// Joins two halves into a queue. Nothing may be in flight between them.
    fn join(front: Self::Front, back: Self::Back) -> Self;
}

/// The half of a queue that takes requests from the driver.
pub trait FrontHalf: Send + 'static {
    /// A taken chain, on its way to the other half.
    type Start: Send + 'static;

    /// Returns the queue size.
    fn size(&self) -> u16;

    /// Returns the number of chains taken and not taken back.
    fn in_flight(&self) -> usize;

    /// Returns the descriptor that is readable when the driver has notified us.
    fn kick(&self) -> &Arc<File>;

    /// Clears the driver's notifications and returns their number.
    fn clear_kicks(&self) -> u64;

    /// Enables notifications by the driver. Returns whether chains are available already.
    fn ask_for_kicks(&self) -> bool;

    /// Disables notifications by the driver: the ring is polled.
    fn refuse_kicks(&self);

    /// Returns whether the queue has stopped permanently.
    fn is_broken(&self) -> bool;

    /// Returns whether the weight in flight has reached its limit: nothing is taken before the next
    /// completion.
    fn is_full(&self) -> bool;

    /// Returns whether a chain is left to take that a dead daemon left undone.
    fn has_undone(&self) -> bool;

    /// Returns whether a chain is available.
    fn has_available(&self) -> bool;

    /// Returns the number of chains that the driver has made available and that are not taken.
    fn available(&mut self) -> u16;

    /// Returns the head of the next available chain; there must be one.
    fn next_head(&self) -> u16;

    /// Returns whether a chain with this head has been taken and not taken back.
    fn is_busy(&self, head: u16) -> bool;

    /// Takes the next available chain; there must be one. `None` if it cannot be taken: the memory
    /// in flight has reached its limit, or the driver has broken the queue.
    fn take(&mut self) -> Option<Self::Start>;

    /// Takes the oldest chain that a dead daemon left undone. Only one is in flight at a time: if
    /// it makes the daemon crash, no other chain is suspected.
    fn take_undone(&mut self) -> Option<Self::Start>;

    /// Returns the requests of a chain to the disk; none if it is answered without.
    fn requests(start: &Self::Start) -> &[Box<Request>];

    /// Called before a taken chain waits for the other half on another thread: if the daemon dies
    /// meanwhile, the chain is not suspected.
    fn set_aside(&mut self, start: &Self::Start);

    /// Takes back a done chain, whose head may then be used again, with its request if it had one.
    fn take_back(&mut self, head: u16, request: Option<Box<Request>>);
}

/// The half of a queue that gives completions to the driver.
pub trait BackHalf: Send + 'static {
    /// See [`FrontHalf::Start`].
    type Start: Send + 'static;

    /// Called before a chain begins that the other half has [set aside](FrontHalf::set_aside).
    fn take_up(&mut self, start: &Self::Start);

    /// Begins a chain from the other half. Passes its requests to `submit`, each of which is to be
    /// completed. Returns the head of a chain that needs no disk, which is answered here.
    fn begin(&mut self, start: Self::Start, submit: impl FnMut(Box<Request>)) -> Option<u16>;

    /// Called when the disk has all requests that were begun.
    fn handed_over(&mut self);

    /// Takes a completion. Returns the chain if this was its last part.
    fn complete(&mut self, completion: Completion) -> Option<Finished>;

    /// Returns the counter of done chains, published or not.
    fn done(&self) -> u16;

    /// Publishes all new completions in the used ring, and interrupts the driver if it asks for
    /// that.
    fn publish(&mut self) -> Signal;
}

/// Runs the queues of one disk, as its front end starts and stops them.
pub trait QueueRunner<Q>: Send {
    /// Begins to run a queue.
    fn start(&mut self, index: usize, queue: Q) -> io::Result<()>;

    /// Asks the queue to take no more chains; does not wait, so that all queues of a guest can
    /// drain at the same time.
    fn begin_stop(&mut self, index: usize);

    /// Waits until nothing of the queue is in flight, and returns it; `None` if it is lost.
    fn stop(&mut self, index: usize) -> Option<Q>;
}
