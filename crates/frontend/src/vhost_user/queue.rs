//! A running virtqueue: takes batches of requests from the driver, gives completions back.
//!
//! It has two halves, each with one owner. One thread may have both, as a [`VirtQueue`]; or two
//! threads have one each, and hand requests to and fro ([`VirtQueue::split`]).
//!
//! It has one slot per possible chain head, made once, and takes nothing more
//! while its requests in flight hold much, so a guest cannot make it grow. Nothing is published one
//! by one: used entries are written as requests complete and shown to the driver with one index
//! update and at most one signal per batch.
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

use flowstone_block::{Completion, Outcome, Request, mutant};

use self::avail::AvailParts;
pub use self::avail::{AvailHalf, QueueFault};
pub use self::call::CallSlot;
pub use self::start::{Start, StatusPlace, Work};
pub use self::used::{Finished, Signal, UsedHalf};
use super::inflight::InflightLog;
use super::memory::GuestMemory;
use super::protocol::ID_BYTES;
use super::ring::SplitRing;
use super::shared::DeviceShared;

/// What was taken from the ring.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taken {
    /// Chains.
    pub chains: usize,
    /// Those of them that needed no disk.
    pub answered: usize,
    /// Chains that were there, and were not taken.
    pub left: usize,
}

impl Taken {
    fn count(&mut self, passed_on: bool) {
        self.chains += 1;
        self.answered += usize::from(!passed_on);
    }
}

/// What a queue is made of.
pub struct QueueParts {
    /// The ring.
    pub ring: SplitRing,
    /// Position of the next avail entry, as the monitor knows it.
    pub next_avail: u16,
    /// The driver's notifications.
    pub kick: Arc<File>,
    /// Our interrupts.
    pub call: Arc<CallSlot>,
    /// Tells the monitor that the queue is broken.
    pub error: Option<Arc<File>>,
    /// The in-flight log, if the monitor keeps one.
    pub inflight: Option<InflightLog>,
    /// Raised when the driver breaks the queue.
    pub broken: Arc<AtomicBool>,
    /// State shared with the control plane.
    pub shared: Arc<DeviceShared>,
    /// Whether writes are refused.
    pub readonly: bool,
    /// Whether discards are understood.
    pub discards: bool,
    /// Whether zeroes cost what writes do.
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
    /// Starts a queue; first of all it will take what an earlier life left undone. It interrupts
    /// the driver once, wanted or not: an earlier life may have shown completions and died before
    /// its interrupt arrived, and with an event index there is no second one.
    pub fn new(parts: QueueParts) -> Self {
        let QueueParts {
            ring, mut next_avail, kick, call, error, inflight, broken, shared, ..
        } = parts;
        let QueueParts { readonly, discards, zeroes_are_written, id, .. } = parts;
        let used = ring.used_index();
        let (mut log, mut replay) = (inflight, Vec::new());
        if let Some(log) = &mut log {
            replay = log.recover(used);
            // Everything before the oldest undone request is used, so the undone ones and the
            // used ones are all that was ever taken.
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

    /// Its halves, to be used by one thread each. Nothing may be in flight.
    ///
    /// The half that takes requests must have back what is done before the driver can see that it
    /// is ([`AvailHalf::take_back`] before [`UsedHalf::publish`]), and must not take a head again
    /// before the marks of its last use are cleared (after [`UsedHalf::publish`]).
    pub fn split(self) -> (AvailHalf, UsedHalf) {
        assert!(self.avail.in_flight() == 0, "a queue is split with requests in flight");
        (self.avail, self.used)
    }

    /// The queue of these halves, which nothing is in flight between.
    pub fn join(avail: AvailHalf, used: UsedHalf) -> Self {
        assert!(avail.in_flight() == 0, "a queue is joined with requests in flight");
        Self { avail, used }
    }

    /// Position of the next avail entry, for the monitor to keep.
    pub fn next_avail(&self) -> u16 {
        self.avail.next_avail()
    }

    /// Requests taken and not completed yet.
    pub fn in_flight(&self) -> usize {
        self.avail.in_flight()
    }

    /// How deep the queue is.
    pub fn size(&self) -> u16 {
        self.avail.size()
    }

    /// The guest's memory.
    pub fn memory(&self) -> &GuestMemory {
        self.avail.memory()
    }

    /// Why the queue has stopped for good, if it has.
    pub fn fault(&self) -> Option<QueueFault> {
        self.avail.fault()
    }

    /// Its half that takes requests, to be looked at.
    pub fn avail(&self) -> &AvailHalf {
        &self.avail
    }

    /// Whether there is something left to take that an earlier life left undone.
    pub fn has_undone(&self) -> bool {
        self.avail.has_undone()
    }

    /// Asks the driver for a notification with its next request. Returns whether there is
    /// something to take already.
    pub fn ask_for_kicks(&self) -> bool {
        self.avail.ask_for_kicks()
    }

    /// Asks the driver to save its notifications: we look by ourselves.
    pub fn refuse_kicks(&self) {
        self.avail.refuse_kicks();
    }

    /// Whether there is something to take.
    pub fn has_available(&self) -> bool {
        self.avail.has_available()
    }

    /// How many new chains the driver has made available.
    pub fn available(&mut self) -> usize {
        self.avail.available().into()
    }

    /// Takes available requests, at most `batch_max` of them, and hands them to `submit`. Those
    /// that need no disk are answered; [`publish`](Self::publish) shows it. Asks `go_on` before
    /// each new one: a single request may keep `submit` busy for a tenth of a second.
    pub fn take(
        &mut self,
        batch_max: usize,
        go_on: impl Fn() -> bool,
        mut submit: impl FnMut(Box<Request>),
    ) -> Taken {
        let mut taken = self.take_undone(&mut submit);
        if self.avail.fault().is_some() || self.has_undone() {
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
            taken.count(self.start(start, &mut submit));
            if mutant("frontend.queue.marks-after-submission") {
                self.avail.mark(head);
            }
        }
        taken
    }

    /// Takes the oldest request that an earlier life left undone, as [`take`](Self::take) does.
    /// Only one: if it is what the daemon dies of, no other one is in hand.
    pub fn take_undone(&mut self, mut submit: impl FnMut(Box<Request>)) -> Taken {
        let mut taken = Taken::default();
        if let Some((undone, start)) = self.avail.take_undone() {
            taken.count(self.start(start, &mut submit));
            if mutant("frontend.queue.counts-a-life-after-submission") {
                self.avail.count_life(undone);
            }
        }
        taken
    }

    /// Returns whether the disk has something to do for it.
    fn start(&mut self, start: Start, submit: &mut impl FnMut(Box<Request>)) -> bool {
        let Start { head, status, work } = start;
        self.used.begin(head, status, work.parts());
        match work {
            Work::Submit(request) => submit(request),
            Work::Ranges(parts) => parts.into_iter().for_each(submit),
            Work::Answer(status, bytes) => {
                self.used.answer(head, status, bytes);
                self.avail.take_back(head, None);
                return false;
            }
        }
        true
    }

    /// The disk has all requests that were taken.
    pub fn handed_over(&mut self) {
        self.used.handed_over();
    }

    /// Takes a completion back. Returns how the guest's request went, if that was all of it.
    pub fn complete(&mut self, completion: Completion) -> Option<Outcome> {
        let Finished { head, request, outcome } = self.used.complete(completion)?;
        self.avail.take_back(head, Some(request));
        Some(outcome)
    }

    /// Shows all new completions to the driver, and interrupts it if it asks for that.
    pub fn publish(&mut self) -> Signal {
        self.used.publish()
    }
}

#[cfg(test)]
mod tests;
