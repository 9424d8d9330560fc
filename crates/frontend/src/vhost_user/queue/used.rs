//! The half of a queue that gives completions to the driver: keeps what is with the disk, writes
//! used entries, clears marks in the in-flight log, and interrupts.

use std::sync::Arc;

use flowstone_block::{Completion, Errno, Outcome, Request, is_any_broken, mutant};

use super::super::inflight::UsedLog;
use super::super::protocol::Status;
use super::super::request::written_bytes;
use super::super::ring::SplitRing;
use super::call::CallSlot;
use super::start::StatusPlace;

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

/// A request of the guest that is done.
pub struct Finished {
    /// Its chain.
    pub head: u16,
    /// To be used again.
    pub request: Box<Request>,
    /// How it went.
    pub outcome: Outcome,
}

/// See the module.
pub struct UsedHalf {
    ring: SplitRing,
    call: Arc<CallSlot>,
    log: Option<UsedLog>,
    /// By head.
    pending: Box<[Pending]>,
    next_used: u16,
    published: u16,
}

/// A chain that is here.
#[derive(Clone, Copy)]
struct Pending {
    status: StatusPlace,
    /// How many of its parts are not back yet; none if it is not here.
    parts: usize,
    /// How those went that are back.
    outcome: Outcome,
}

impl UsedHalf {
    /// Of a ring that has been filled up to `used`.
    pub(super) fn new(
        ring: SplitRing,
        call: Arc<CallSlot>,
        log: Option<UsedLog>,
        used: u16,
    ) -> Self {
        let none = Pending { status: StatusPlace(std::ptr::null_mut()), parts: 0, outcome: Ok(()) };
        let pending = vec![none; usize::from(ring.size())].into_boxed_slice();
        Self { ring, call, log, pending, next_used: used, published: used }
    }

    /// A chain has come from the avail half; so many completions of the disk are to follow, or an
    /// answer.
    #[inline]
    pub fn begin(&mut self, head: u16, status: StatusPlace, parts: usize) {
        self.pending[usize::from(head)] = Pending { status, parts, outcome: Ok(()) };
        if let Some(log) = &mut self.log {
            log.take_over(head);
        }
    }

    /// The disk has all requests that were begun.
    #[inline]
    pub fn handed_over(&mut self) {
        if let Some(log) = &mut self.log {
            log.handed_over();
        }
    }

    /// Takes a completion back. Returns the guest's request, if that was all of it.
    #[inline]
    pub fn complete(&mut self, completion: Completion) -> Option<Finished> {
        let Completion { request, outcome } = completion;
        let head = request.tag as u16;
        let pending = &mut self.pending[usize::from(head)];
        assert!(pending.parts > 0, "a request was completed twice");
        pending.outcome = pending.outcome.and(outcome);
        if pending.parts > 1 {
            pending.parts -= 1;
            return None;
        }
        let outcome = pending.outcome;
        let status = status_of(outcome);
        self.answer(head, status, written_bytes(request.op, status));
        Some(Finished { head, request, outcome })
    }

    /// Writes status and used entry; the driver does not see them before `publish`.
    #[inline]
    pub fn answer(&mut self, head: u16, status: Status, bytes: u32) {
        if mutant("frontend.queue.used-index-before-status") {
            self.ring.publish_used(self.next_used.wrapping_add(1));
        }
        let pending = &mut self.pending[usize::from(head)];
        pending.parts = 0;
        // SAFETY: the pointer is into guest memory that the ring keeps mapped.
        unsafe { pending.status.0.write_volatile(status as u8) };
        self.ring.set_used(self.next_used, head, bytes);
        self.next_used = self.next_used.wrapping_add(1);
        if let Some(log) = &mut self.log {
            log.complete(head);
        }
    }

    /// The used index, what is not published yet included.
    pub fn next_used(&self) -> u16 {
        self.next_used
    }

    /// Shows all new completions to the driver, and interrupts it if it asks for that.
    pub fn publish(&mut self) -> Signal {
        if self.next_used == self.published {
            return Signal::Nothing;
        }
        if self.is_memory_lost() {
            // The driver is not told that something is done whose data went nowhere. The marks
            // stay.
            return Signal::Nothing;
        }
        let old = self.published;
        if mutant("frontend.queue.clears-marks-before-used-index") {
            self.clear_marks();
        }
        self.ring.publish_used(self.next_used);
        if self.is_memory_lost() {
            return Signal::Nothing;
        }
        self.clear_marks();
        self.published = self.next_used;
        if self.ring.wants_interrupt(self.next_used, old) {
            self.call.signal();
            return Signal::Sent;
        }
        Signal::Suppressed
    }

    #[inline]
    fn is_memory_lost(&self) -> bool {
        let is_lost =
            || self.ring.memory().is_broken() || self.log.as_ref().is_some_and(UsedLog::is_broken);
        is_any_broken() && is_lost() && !mutant("frontend.queue.publishes-what-went-nowhere")
    }

    fn clear_marks(&mut self) {
        if let Some(log) = &mut self.log {
            log.published(self.next_used);
        }
    }
}

fn status_of(outcome: Result<(), Errno>) -> Status {
    match outcome {
        Ok(()) => Status::Ok,
        Err(Errno::OPNOTSUPP) => Status::Unsupported,
        Err(_) => Status::IoError,
    }
}
