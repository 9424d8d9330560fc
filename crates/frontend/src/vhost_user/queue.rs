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

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use flowstone_block::{
    BackHalf, Completion, Finished, FrontHalf, GuestQueue, Outcome, Request, Signal, Taken, mutant,
};

use self::avail::AvailParts;
pub use self::avail::{AvailHalf, QueueFault};
pub use self::call::CallSlot;
pub use self::start::Start;
pub use self::used::UsedHalf;
use super::inflight::InflightLog;
use super::protocol::ID_BYTES;
use super::ring::SplitRing;
use super::shared::DeviceShared;

/// The parts of a queue.
pub struct QueueParts {
    /// The ring.
    pub ring: SplitRing,
    /// Index of the next avail entry, as the monitor knows it.
    pub next_avail: u16,
    /// Descriptor of the driver's notifications.
    pub kick: Arc<File>,
    /// Descriptor of our interrupts.
    pub call: Arc<CallSlot>,
    /// Descriptor by which the monitor is told that the queue is broken.
    pub error: Option<Arc<File>>,
    /// The in-flight log, if the monitor keeps one.
    pub inflight: Option<InflightLog>,
    /// Set when the driver breaks the queue.
    pub broken: Arc<AtomicBool>,
    /// State shared with the control plane.
    pub shared: Arc<DeviceShared>,
    /// Writes are refused.
    pub readonly: bool,
    /// Discards are supported.
    pub discards: bool,
    /// Zeroing costs as much as writing.
    pub zeroes_are_written: bool,
    /// The disk's identity string.
    pub id: [u8; ID_BYTES],
}

/// A running virtqueue whose halves are on one thread.
pub struct VirtQueue {
    avail: AvailHalf,
    used: UsedHalf,
}

impl VirtQueue {
    /// Starts a queue; it first takes the requests that a dead daemon left undone. It interrupts
    /// the driver once unconditionally: an earlier life may have published completions and died
    /// before its interrupt arrived, and with an event index no second one is sent.
    pub fn new(parts: QueueParts) -> Self {
        let QueueParts {
            ring, mut next_avail, kick, call, error, inflight, broken, shared, ..
        } = parts;
        let QueueParts { readonly, discards, zeroes_are_written, id, .. } = parts;
        let used = ring.used_index();
        let (mut log, mut replay) = (inflight, Vec::new());
        if let Some(log) = &mut log {
            replay = log.recover(used);
            // All requests before the oldest undone one are used, so the undone and the used ones
            // are all that were ever taken.
            next_avail = used.wrapping_add(replay.len() as u16);
        }
        if mutant("frontend.queue.skips-replay") {
            replay.clear();
        }
        replay.reverse();
        if !mutant("frontend.queue.sends-no-call-at-start") {
            call.signal();
        }
        let (log, used_log) = log.map(|log| (log.avail, log.used)).unzip();
        let used = UsedHalf::new(ring.clone(), call, used_log, used);
        let avail = AvailParts {
            ring,
            next_avail,
            kick,
            error,
            log,
            broken,
            shared,
            readonly,
            discards,
            zeroes_are_written,
            id,
            replay,
        };
        Self { avail: AvailHalf::new(avail), used }
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
            if mutant("frontend.queue.marks-after-submission") {
                self.avail.with_log(|log| log.begin(head));
            }
        }
        taken
    }

    fn take_undone(&mut self, submit: impl FnMut(Box<Request>)) -> Taken {
        let (mut taken, undone) = (Taken::default(), self.avail.parts.replay.last().copied());
        if let Some(start) = self.avail.take_undone() {
            self.begin(start, submit, &mut taken);
            if mutant("frontend.queue.counts-a-life-after-submission") {
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
