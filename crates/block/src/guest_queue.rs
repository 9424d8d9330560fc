//! The seam of front ends: a [`GuestQueue`] hands out what its driver asks for, and takes what
//! becomes of it.
//!
//! A queue has two halves, each with one owner. One thread has both, or two have one each: then
//! what is taken goes from the [`FrontHalf`] to the [`BackHalf`], and comes back when it is done.
//! What the driver asks for at once is called a chain; a number, its head, names it until it is
//! done.

use std::fs::File;
use std::io;
use std::sync::Arc;

use crate::{Completion, Outcome, Request};

/// What was taken from a queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taken {
    /// Chains.
    pub chains: usize,
    /// Those of them that needed no disk.
    pub answered: usize,
    /// Chains that were there, and were not taken.
    pub left: usize,
}

/// What became of the wish to interrupt the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Nothing was published.
    Nothing,
    /// Published, and the driver had asked for an interrupt.
    Sent,
    /// Published, and the driver did not want one.
    Suppressed,
}

/// A chain that is done.
pub struct Finished {
    /// Its head.
    pub head: u16,
    /// To be used again.
    pub request: Box<Request>,
    /// How it went.
    pub outcome: Outcome,
}

/// A queue of a guest, whose halves are on one thread. It goes from thread to thread when nothing
/// is in flight.
pub trait GuestQueue: Sized + Send + 'static {
    /// What takes from it.
    type Front: FrontHalf;
    /// What completes.
    type Back: BackHalf<Start = <Self::Front as FrontHalf>::Start>;

    /// Whether it may run on another thread than the first one that runs it, or on two.
    const IS_MOVABLE: bool = true;

    /// Its half that takes, to be looked at.
    fn front(&self) -> &Self::Front;

    /// The same, to be asked for what is available.
    fn front_mut(&mut self) -> &mut Self::Front;

    /// Takes available requests, at most `batch_max` of them, and hands them to `submit`. Those
    /// that need no disk are answered; [`publish`](Self::publish) shows it. Asks `go_on` before
    /// each new one: a single request may keep `submit` busy for a tenth of a second.
    fn take(
        &mut self,
        batch_max: usize,
        go_on: impl Fn() -> bool,
        submit: impl FnMut(Box<Request>),
    ) -> Taken;

    /// Takes the oldest request that an earlier life left undone, as [`take`](Self::take) does.
    /// Only one: if it is what the daemon dies of, no other one is in hand.
    fn take_undone(&mut self, submit: impl FnMut(Box<Request>)) -> Taken;

    /// The disk has all requests that were taken.
    fn handed_over(&mut self);

    /// Takes a completion back. Returns how the guest's request went, if that was all of it.
    fn complete(&mut self, completion: Completion) -> Option<Outcome>;

    /// Shows all new completions to the driver, and interrupts it if it asks for that.
    fn publish(&mut self) -> Signal;

    /// The NUMA node of its guest's memory, if it is known.
    fn home(&self) -> Option<u32>;

    /// Its halves, to be used by one thread each. Nothing may be in flight.
    ///
    /// The half that takes must have back what is done before the driver can see that it is
    /// ([`FrontHalf::take_back`] before [`BackHalf::publish`]), and must not take a head again
    /// before the marks of its last use are cleared (after [`BackHalf::publish`]).
    fn split(self) -> (Self::Front, Self::Back);

    /// The queue of these halves, which nothing is in flight between.
    fn join(front: Self::Front, back: Self::Back) -> Self;
}

/// The half of a queue that takes requests from the driver.
pub trait FrontHalf: Send + 'static {
    /// A chain that has been taken, on its way to the other half.
    type Start: Send + 'static;

    /// How deep the queue is.
    fn size(&self) -> u16;

    /// Chains taken and not back yet.
    fn in_flight(&self) -> usize;

    /// Readable when the driver has notified us.
    fn kick(&self) -> &Arc<File>;

    /// Forgets the driver's notifications and says how many there were.
    fn clear_kicks(&self) -> u64;

    /// Asks the driver for a notification with its next request. Returns whether there is
    /// something to take already.
    fn ask_for_kicks(&self) -> bool;

    /// Asks the driver to save its notifications: we look by ourselves.
    fn refuse_kicks(&self);

    /// Whether the queue has stopped for good.
    fn is_broken(&self) -> bool;

    /// Whether what is in flight weighs so much that nothing more is taken: a completion has to
    /// come first.
    fn is_full(&self) -> bool;

    /// Whether there is something left to take that an earlier life left undone.
    fn has_undone(&self) -> bool;

    /// Whether there is something to take.
    fn has_available(&self) -> bool;

    /// How many new chains the driver has made available.
    fn available(&mut self) -> u16;

    /// The head of the next available chain; there must be one.
    fn next_head(&self) -> u16;

    /// Whether a chain with this head has been taken and is not back.
    fn is_busy(&self, head: u16) -> bool;

    /// Takes the next available chain; there must be one. Nothing if it cannot be taken: what is in
    /// flight weighs too much, or the driver has broken the queue.
    fn take(&mut self) -> Option<Self::Start>;

    /// Takes the oldest chain that an earlier life left undone. Only one at a time is in hand: if
    /// it is what the daemon dies of, no other one is.
    fn take_undone(&mut self) -> Option<Self::Start>;

    /// What a chain asks the disk for: nothing if it is answered without.
    fn requests(start: &Self::Start) -> &[Box<Request>];

    /// A chain is done: its head may be used again. A request for the disk comes along.
    fn take_back(&mut self, head: u16, request: Option<Box<Request>>);
}

/// The half of a queue that gives completions to the driver.
pub trait BackHalf: Send + 'static {
    /// See [`FrontHalf::Start`].
    type Start: Send + 'static;

    /// A chain has come from the other half. Hands its requests to `submit`; so many completions
    /// are to follow. Returns its head if it needs no disk: then it is answered.
    fn begin(&mut self, start: Self::Start, submit: impl FnMut(Box<Request>)) -> Option<u16>;

    /// The disk has all requests that were begun.
    fn handed_over(&mut self);

    /// Takes a completion back. Returns the chain, if that was all of it.
    fn complete(&mut self, completion: Completion) -> Option<Finished>;

    /// Counts chains that are done, those that are not published yet included.
    fn done(&self) -> u16;

    /// Shows all new completions to the driver, and interrupts it if it asks for that.
    fn publish(&mut self) -> Signal;
}

/// Runs the queues of one disk, as its front end starts and stops them.
pub trait QueueRunner<Q>: Send {
    /// Begins to run a queue.
    fn start(&mut self, index: usize, queue: Q) -> io::Result<()>;

    /// Asks the queue to take nothing more; does not wait. A guest whose queues all stop waits for
    /// them together.
    fn begin_stop(&mut self, index: usize);

    /// Waits until nothing of the queue is in flight, and gives it back; nothing if it is lost.
    fn stop(&mut self, index: usize) -> Option<Q>;
}
