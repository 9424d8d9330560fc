//! A running virtqueue: takes batches of requests from the driver and publishes completions.
//!
//! It has two halves, each with one owner. One thread owns both, as a [`VirtQueue`]; or two threads
//! own one each, and pass requests to and fro ([`GuestQueue::split`]).
//!
//! It has one slot per possible chain head, allocated once, and takes no more requests while the
//! weight of those in flight is at its limit, so a guest cannot make it grow. Completions are
//! published in batches: used entries are written as requests complete, and published with one
//! index update and at most one interrupt per batch.
//!
//! The guest memory it works on stays mapped until the queue is dropped; the code that drops a
//! queue with requests in flight must have stopped them first.

mod avail;
mod call;
mod start;
mod used;

use std::sync::Arc;

use flowstone_block::{
    BackHalf, Completion, Finished, FrontHalf, GuestQueue, Outcome, Request, Signal, Taken, mutated,
};

pub use self::avail::{AvailHalf, QueueFault, QueueParts};
pub use self::call::CallSlot;
pub use self::start::Start;
pub use self::used::UsedHalf;
use super::inflight::InflightLog;

/// A running virtqueue whose halves are on one thread.
pub struct VirtQueue {
    avail: AvailHalf,
    used: UsedHalf,
}

impl VirtQueue {
    /// Starts a queue; it first takes the requests that a dead daemon left undone. It interrupts
    /// the driver once unconditionally: an earlier life may have published completions and died
    /// before its interrupt arrived, and with an event index no second one is sent. `inflight` is
    /// its log, if the monitor keeps one.
    pub fn new(
        mut parts: QueueParts,
        call: Arc<CallSlot>,
        mut inflight: Option<InflightLog>,
    ) -> Self {
        let used = parts.ring.used_index();
        let mut replay = Vec::new();
        if let Some(log) = &mut inflight {
            replay = log.recover(used);
            // All requests before the oldest undone one are used, so the undone and the used ones
            // are all that were ever taken.
            parts.next_avail = used.wrapping_add(replay.len() as u16);
        }
        let replays = mutated("frontend.queue.skips-replay", true, false);
        if !replays {
            replay.clear();
        }
        replay.reverse();
        let calls = mutated("frontend.queue.sends-no-call-at-start", true, false);
        if calls {
            call.signal();
        }
        let (log, used_log) = inflight.map(|log| (log.avail, log.used)).unzip();
        let used = UsedHalf::new(parts.ring.clone(), call, used_log, used);
        Self { avail: AvailHalf::new(parts, log, replay), used }
    }

    /// Returns the index of the next avail entry, for the monitor to keep.
    pub fn next_avail(&self) -> u16 {
        self.avail.next_avail()
    }

    /// Passes a chain to the completing half.
    fn begin(&mut self, start: Start, submit: impl FnMut(Box<Request>), taken: &mut Taken) {
        taken.chains += 1;
        if let Some(head) = self.used.begin(start, submit) {
            self.avail.take_back(head, None);
            taken.answered += 1;
        }
    }
}

impl GuestQueue for VirtQueue {
    type Front = AvailHalf;
    type Back = UsedHalf;

    fn front(&self) -> &AvailHalf {
        &self.avail
    }

    fn front_mut(&mut self) -> &mut AvailHalf {
        &mut self.avail
    }

    fn take(
        &mut self,
        batch_max: usize,
        go_on: impl Fn() -> bool,
        mut submit: impl FnMut(Box<Request>),
    ) -> Taken {
        let mut taken = self.take_undone(&mut submit);
        if self.avail.is_broken() || self.avail.has_undone() {
            return taken;
        }
        taken.left = usize::from(self.avail.available());
        for _ in 0..taken.left.min(batch_max) {
            if !go_on() {
                break;
            }
            taken.left -= 1;
            let Some(start) = self.avail.take() else { break };
            let head = start.head;
            self.begin(start, &mut submit, &mut taken);
            let is_marked = mutated("frontend.queue.marks-after-submission", true, false);
            if !is_marked {
                self.avail.with_log(|log| log.begin(head));
            }
        }
        taken
    }

    fn take_undone(&mut self, submit: impl FnMut(Box<Request>)) -> Taken {
        let (mut taken, undone) = (Taken::default(), self.avail.replay.last().copied());
        if let Some(start) = self.avail.take_undone() {
            self.begin(start, submit, &mut taken);
            let is_counted = mutated("frontend.queue.counts-a-life-after-submission", true, false);
            if !is_counted {
                undone.inspect(|undone| self.avail.with_log(|log| log.begin_again(*undone)));
            }
        }
        taken
    }

    fn handed_over(&mut self) {
        self.used.handed_over();
    }

    fn complete(&mut self, completion: Completion) -> Option<Outcome> {
        let Finished { head, request, outcome } = self.used.complete(completion)?;
        self.avail.take_back(head, Some(request));
        Some(outcome)
    }

    fn publish(&mut self) -> Signal {
        self.used.publish()
    }

    fn home(&self) -> Option<u32> {
        self.avail.memory().nodes().home()
    }

    fn split(self) -> (AvailHalf, UsedHalf) {
        assert!(self.avail.in_flight() == 0, "a queue is split with requests in flight");
        (self.avail, self.used)
    }

    fn join(avail: AvailHalf, used: UsedHalf) -> Self {
        assert!(avail.in_flight() == 0, "a queue is joined with requests in flight");
        Self { avail, used }
    }
}

#[cfg(test)]
mod tests;
