//! The half of a queue that completes requests: tracks those that are with the disk, writes used
//! entries, clears marks in the in-flight log, and interrupts the driver.

use std::sync::Arc;

use flowstone_block::{
    BackHalf, Completion, Errno, Finished, Outcome, Request, Signal, is_any_broken, mutated,
};

use super::super::inflight::UsedLog;
use super::super::protocol::Status;
use super::super::request::written_bytes;
use super::super::ring::SplitRing;
use super::call::CallSlot;
use super::start::{Start, StatusPlace, Work};

/// The completing half; see the module.
pub struct UsedHalf {
    ring: SplitRing,
    call: Arc<CallSlot>,
    log: Option<UsedLog>,
    /// Indexed by head.
    pending: Box<[Pending]>,
    next_used: u16,
    published: u16,
}

/// A chain in this half.
#[derive(Clone, Copy)]
struct Pending {
    status: StatusPlace,
    /// Number of its parts not yet completed; 0 if the chain is not here.
    parts: usize,
    /// The combined outcome of its completed parts.
    outcome: Outcome,
}

impl UsedHalf {
    /// Makes the half of a ring whose used index is `used`.
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

    #[inline]
    fn with_log(&mut self, change: impl FnOnce(&mut UsedLog)) {
        self.log.as_mut().map(change);
    }

    /// Writes status and used entry; the driver does not see them before `publish`.
    #[inline]
    fn answer(&mut self, head: u16, status: Status, bytes: u32) {
        let publishes = mutated("frontend.queue.used-index-before-status", false, true);
        if publishes {
            self.ring.publish_used(self.next_used.wrapping_add(1));
        }
        let pending = &mut self.pending[usize::from(head)];
        pending.parts = 0;
        // SAFETY: the pointer is into guest memory that the ring keeps mapped.
        unsafe { pending.status.0.write_volatile(status as u8) };
        self.ring.set_used(self.next_used, head, bytes);
        self.next_used = self.next_used.wrapping_add(1);
        self.with_log(|log| log.complete(head));
    }

    #[inline]
    fn is_memory_lost(&self) -> bool {
        let is_lost =
            || self.ring.memory().is_broken() || self.log.as_ref().is_some_and(UsedLog::is_broken);
        let is_lost = is_any_broken() && is_lost();
        mutated("frontend.queue.publishes-what-went-nowhere", is_lost, false)
    }

    fn clear_marks(&mut self) {
        let next_used = self.next_used;
        self.with_log(|log| log.published(next_used));
    }
}

impl BackHalf for UsedHalf {
    type Start = Start;

    #[inline]
    fn take_up(&mut self, start: &Start) {
        self.with_log(|log| log.take_up(start.head));
    }

    #[inline]
    fn begin(&mut self, start: Start, mut submit: impl FnMut(Box<Request>)) -> Option<u16> {
        let Start { head, status, work } = start;
        let pending = Pending { status, parts: work.parts(), outcome: Ok(()) };
        self.pending[usize::from(head)] = pending;
        self.with_log(|log| log.take_over(head));
        match work {
            Work::Submit(request) => submit(request),
            Work::Ranges(parts) => parts.into_iter().for_each(submit),
            Work::Answer(status, bytes) => {
                self.answer(head, status, bytes);
                return Some(head);
            }
        }
        None
    }

    #[inline]
    fn handed_over(&mut self) {
        self.with_log(UsedLog::handed_over);
    }

    #[inline]
    fn complete(&mut self, completion: Completion) -> Option<Finished> {
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

    fn done(&self) -> u16 {
        self.next_used
    }

    fn publish(&mut self) -> Signal {
        if self.next_used == self.published {
            return Signal::Nothing;
        }
        if self.is_memory_lost() {
            // Completions whose data was lost are not shown to the driver. The marks stay.
            return Signal::Nothing;
        }
        let old = self.published;
        let clears = mutated("frontend.queue.clears-marks-before-used-index", false, true);
        if clears {
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
}

fn status_of(outcome: Result<(), Errno>) -> Status {
    match outcome {
        Ok(()) => Status::Ok,
        Err(Errno::OPNOTSUPP) => Status::Unsupported,
        Err(_) => Status::IoError,
    }
}
