//! A running virtqueue: takes batches of requests from the driver, gives completions back.
//!
//! Owned by one thread. It has one slot per possible chain head, made once, so a guest cannot
//! make it grow. Nothing is published one by one: used entries are written as requests complete
//! and shown to the driver with one index update and at most one signal per batch.
//!
//! The guest memory it works on stays mapped until the queue is dropped; whoever drops a queue
//! with requests in flight must have stopped them first.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flowstone_block::{Completion, Errno, Op, Outcome, Request};
use tracing::warn;

use super::chain::BadChain;
use super::inflight::InflightLog;
use super::protocol::{ID_BYTES, SEGMENTS_MAX, Status};
use super::request::{Limits, Parsed, Verdict, parse, written_bytes};
use super::ring::SplitRing;
use super::shared::DeviceShared;

/// Why a queue has stopped for good. The driver has to reset the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueFault {
    /// The avail index jumped further than the ring is long.
    AvailIndex,
    /// The avail ring names a descriptor that does not exist.
    Head,
    /// The avail ring names a chain that is in flight already.
    HeadInUse,
    /// A chain is broken so that there is no place for a status.
    Chain(BadChain),
}

/// What was taken from the ring.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taken {
    /// Chains.
    pub chains: usize,
    /// Those of them that needed no disk.
    pub answered: usize,
}

impl Taken {
    fn count(&mut self, passed_on: bool) {
        self.chains += 1;
        self.answered += usize::from(!passed_on);
    }
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

/// Where interrupts go: an eventfd that the control plane may replace while the queue runs.
#[derive(Default)]
pub struct CallSlot(Mutex<Option<File>>);

impl CallSlot {
    fn lock(&self) -> MutexGuard<'_, Option<File>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Interrupts go here from now on. One is sent at once: the last may have gone to an event
    /// that nobody listens to any more, and a driver that waits for it waits for ever.
    pub fn replace(&self, event: Option<File>) {
        *self.lock() = event;
        self.signal();
    }

    fn signal(&self) {
        if let Some(event) = &*self.lock() {
            // A full counter means that the monitor has interrupts enough.
            let _ = rustix::io::write(event, &1u64.to_ne_bytes());
        }
    }
}

/// What a queue is made of.
pub struct QueueParts {
    /// The ring.
    pub ring: SplitRing,
    /// Position of the next avail entry, as the monitor knows it.
    pub next_avail: u16,
    /// The driver's notifications.
    pub kick: File,
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
    /// The disk's identity string.
    pub id: [u8; ID_BYTES],
}

/// A running virtqueue.
pub struct VirtQueue {
    parts: QueueParts,
    slots: Box<[Slot]>,
    next_used: u16,
    published: u16,
    in_flight: usize,
    /// Heads left undone by an earlier life, newest first.
    replay: Vec<u16>,
    fault: Option<QueueFault>,
}

/// A place for the chain with a certain head.
struct Slot {
    /// The request, except while it is in flight or was never needed.
    request: Option<Box<Request>>,
    busy: bool,
    status: *mut u8,
    /// How many parts of the request are not back yet: one, or one for each range of a list.
    parts: usize,
    /// How those went that are back.
    outcome: Outcome,
}

// SAFETY: the status pointers lie in the ring's guest memory, which the queue carries along; one
// thread at a time uses a queue.
unsafe impl Send for VirtQueue {}

impl VirtQueue {
    /// Starts a queue; first of all it will take what an earlier life left undone. It interrupts
    /// the driver once, wanted or not: an earlier life may have shown completions and died before
    /// its interrupt arrived, and with an event index there is no second one.
    pub fn new(mut parts: QueueParts) -> Self {
        let used = parts.ring.used_index();
        let mut replay = match &mut parts.inflight {
            Some(log) => log.recover(used),
            None => Vec::new(),
        };
        if parts.inflight.is_some() {
            // Everything before the oldest undone request is used, so the undone ones and the
            // used ones are all that was ever taken.
            parts.next_avail = used.wrapping_add(replay.len() as u16);
        }
        replay.reverse();
        parts.call.signal();
        let slots = (0..parts.ring.size()).map(|_| Slot::empty()).collect();
        Self { parts, slots, next_used: used, published: used, in_flight: 0, replay, fault: None }
    }

    /// Position of the next avail entry, for the monitor to keep.
    pub fn next_avail(&self) -> u16 {
        self.parts.next_avail
    }

    /// Requests taken and not completed yet.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// How deep the queue is.
    pub fn size(&self) -> u16 {
        self.parts.ring.size()
    }

    /// Why the queue has stopped for good, if it has.
    pub fn fault(&self) -> Option<QueueFault> {
        self.fault
    }

    /// Readable when the driver has notified us.
    pub fn kick_event(&self) -> BorrowedFd<'_> {
        self.parts.kick.as_fd()
    }

    /// Forgets the driver's notifications and says how many there were.
    pub fn clear_kicks(&self) -> u64 {
        let mut counter = [0; 8];
        match rustix::io::read(&self.parts.kick, &mut counter) {
            Ok(8) => u64::from_ne_bytes(counter),
            _ => 0,
        }
    }

    /// Asks the driver for a notification with its next request. Returns whether there is
    /// something to take already.
    pub fn ask_for_kicks(&self) -> bool {
        self.fault.is_none()
            && (self.parts.ring.ask_for_kicks(self.parts.next_avail) || !self.replay.is_empty())
    }

    /// Asks the driver to save its notifications: we look by ourselves.
    pub fn refuse_kicks(&self) {
        self.parts.ring.refuse_kicks(self.parts.next_avail);
    }

    /// Whether there is something to take.
    pub fn has_available(&self) -> bool {
        self.fault.is_none()
            && (self.parts.ring.avail_index() != self.parts.next_avail || !self.replay.is_empty())
    }

    /// Takes available requests, at most `batch_max` of them, and hands them to `submit`. Those that
    /// need no disk are answered; [`publish`](Self::publish) shows it.
    pub fn take(&mut self, batch_max: u16, mut submit: impl FnMut(Box<Request>)) -> Taken {
        let mut taken = Taken::default();
        if self.fault.is_some() {
            return taken;
        }
        while let Some(head) = self.replay.pop() {
            taken.count(self.start(head, &mut submit));
        }
        let available = self.parts.ring.avail_index().wrapping_sub(self.parts.next_avail);
        if available > self.parts.ring.size() {
            self.fail(QueueFault::AvailIndex);
            return taken;
        }
        for _ in 0..available.min(batch_max) {
            if self.fault.is_some() {
                break;
            }
            let head = self.parts.ring.avail_head(self.parts.next_avail);
            if !self.admit(head) {
                break;
            }
            taken.count(self.start(head, &mut submit));
        }
        taken
    }

    /// Checks a head from the avail ring and records it as taken.
    fn admit(&mut self, head: u16) -> bool {
        match self.slots.get(usize::from(head)) {
            None => self.fail(QueueFault::Head),
            Some(slot) if slot.busy => self.fail(QueueFault::HeadInUse),
            Some(_) => {
                if let Some(log) = &mut self.parts.inflight {
                    log.begin(head);
                }
                self.parts.next_avail = self.parts.next_avail.wrapping_add(1);
                return true;
            }
        }
        false
    }

    /// Returns whether the disk has something to do for it.
    fn start(&mut self, head: u16, submit: &mut impl FnMut(Box<Request>)) -> bool {
        let slot = &mut self.slots[usize::from(head)];
        let mut request =
            slot.request.take().unwrap_or_else(|| Request::new(Op::Flush, u32::from(head)));
        let limits = Limits {
            capacity: self.parts.shared.capacity(),
            readonly: self.parts.readonly,
            discards: self.parts.discards,
        };
        let parsed = parse(&self.parts.ring, head, &mut request, limits, &self.parts.id);
        let Parsed { status, verdict } = match parsed {
            Ok(parsed) => parsed,
            Err(why) => {
                slot.request = Some(request);
                if let Some(log) = &mut self.parts.inflight {
                    log.abandon(head);
                }
                self.fail(QueueFault::Chain(why));
                return false;
            }
        };
        slot.busy = true;
        slot.status = status;
        (slot.parts, slot.outcome) = (1, Ok(()));
        self.in_flight += 1;
        request.durable = self.parts.shared.write_through();
        match verdict {
            Verdict::Submit => submit(request),
            Verdict::Ranges(first, others) => {
                slot.parts += others.len();
                for op in others {
                    let mut part = Request::new(op, request.tag);
                    (part.durable, part.priority) = (request.durable, request.priority);
                    submit(part);
                }
                request.op = first;
                submit(request);
            }
            Verdict::Answer(status, bytes) => {
                slot.request = Some(request);
                self.answer(head, status, bytes + 1);
                return false;
            }
        }
        true
    }

    /// Takes a completion back. Returns how the guest's request went, if that was all of it.
    pub fn complete(&mut self, completion: Completion) -> Option<Outcome> {
        let Completion { mut request, outcome } = completion;
        let head = request.tag as u16;
        let slot = &mut self.slots[usize::from(head)];
        assert!(slot.busy && slot.request.is_none(), "a request was completed twice");
        slot.outcome = slot.outcome.and(outcome);
        slot.parts -= 1;
        if slot.parts > 0 {
            return None;
        }
        let outcome = slot.outcome;
        let status = status_of(outcome);
        let bytes = written_bytes(request.op, status);
        // One huge scatter list must not be kept for ever in every slot.
        request.memory.clear();
        request.memory.shrink_to(SEGMENTS_MAX as usize + 2);
        slot.request = Some(request);
        self.answer(head, status, bytes);
        Some(outcome)
    }

    /// Writes status and used entry; the driver does not see them before `publish`.
    fn answer(&mut self, head: u16, status: Status, bytes: u32) {
        let slot = &mut self.slots[usize::from(head)];
        // SAFETY: the pointer is into guest memory that the ring keeps mapped.
        unsafe { slot.status.write_volatile(status as u8) };
        slot.busy = false;
        self.in_flight -= 1;
        self.parts.ring.set_used(self.next_used, head, bytes);
        self.next_used = self.next_used.wrapping_add(1);
        if let Some(log) = &mut self.parts.inflight {
            log.complete(head);
        }
    }

    /// Shows all new completions to the driver, and interrupts it if it asks for that.
    pub fn publish(&mut self) -> Signal {
        if self.next_used == self.published {
            return Signal::Nothing;
        }
        let old = self.published;
        self.parts.ring.publish_used(self.next_used);
        if let Some(log) = &mut self.parts.inflight {
            log.published(self.next_used);
        }
        self.published = self.next_used;
        if self.parts.ring.wants_interrupt(self.next_used, old) {
            self.parts.call.signal();
            return Signal::Sent;
        }
        Signal::Suppressed
    }

    fn fail(&mut self, fault: QueueFault) {
        self.fault = Some(fault);
        self.parts.broken.store(true, Ordering::Relaxed);
        if let Some(unsaid) = self.parts.shared.may_log() {
            let id = String::from_utf8_lossy(&self.parts.id);
            let disk = id.trim_end_matches('\0');
            warn!(disk, ?fault, unsaid, "a guest broke its queue; it is left alone until a reset");
        }
        if let Some(file) = &self.parts.error {
            let _ = rustix::io::write(&**file, &1u64.to_ne_bytes());
        }
    }
}

impl Slot {
    fn empty() -> Self {
        let status = std::ptr::null_mut();
        Self { request: None, busy: false, status, parts: 0, outcome: Ok(()) }
    }
}

fn status_of(outcome: Result<(), Errno>) -> Status {
    match outcome {
        Ok(()) => Status::Ok,
        Err(Errno::OPNOTSUPP) => Status::Unsupported,
        Err(_) => Status::IoError,
    }
}

#[cfg(test)]
mod tests {
    use super::super::fuzzing::queue_over;
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::os::unix::fs::FileExt;

    const SIZE: u16 = 4;
    const HEADER_AT: u64 = 0x1000;
    const STATUS_AT: u64 = 0x1800;

    /// Guest memory with one chain: a discard of these ranges.
    fn discard_of(ranges: &[(u64, u32)]) -> File {
        let memory = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
        memory.set_len(0x2000).unwrap();
        let put = |at: u64, bytes: &[u8]| memory.write_all_at(bytes, at).unwrap();
        let descriptor = |index: u64, address: u64, bytes: u32, flags: u16, next: u16| {
            put(16 * index, &address.to_le_bytes());
            put(16 * index + 8, &bytes.to_le_bytes());
            put(16 * index + 12, &flags.to_le_bytes());
            put(16 * index + 14, &next.to_le_bytes());
        };
        descriptor(0, HEADER_AT, 16 + 16 * ranges.len() as u32, 1, 1);
        descriptor(1, STATUS_AT, 1, 2, 0);
        put(HEADER_AT, &11u32.to_le_bytes());
        for (index, (sector, count)) in ranges.iter().enumerate() {
            let at = HEADER_AT + 16 + 16 * index as u64;
            put(at, &sector.to_le_bytes());
            put(at + 8, &count.to_le_bytes());
        }
        put(STATUS_AT, &[0xff]);
        // The avail ring has one entry, chain 0.
        put(16 * u64::from(SIZE) + 2, &1u16.to_le_bytes());
        memory
    }

    #[test]
    fn ranges_are_given_out_together_and_answered_once_with_any_failure() {
        let memory = discard_of(&[(0, 8), (8, 8), (64, 8), (32, 8)]);
        let kick = File::from(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        let mut queue = queue_over(memory.try_clone().unwrap(), 0x2000, SIZE, false, kick).unwrap();
        let status = || {
            let mut status = [0];
            memory.read_exact_at(&mut status, STATUS_AT).unwrap();
            status[0]
        };
        let mut parts = Vec::new();
        let taken = queue.take(u16::MAX, |request| parts.push(request));
        assert_eq!((taken.chains, taken.answered), (1, 0));
        let mut starts: Vec<u64> =
            parts.iter().map(|it| it.op.extent().unwrap().start().get()).collect();
        starts.sort_unstable();
        assert_eq!(starts, [0, 32, 64], "the first two touch");
        for (request, outcome) in parts.drain(..2).zip([Ok(()), Err(Errno::IO)]) {
            assert_eq!(queue.complete(Completion { request, outcome }), None);
            assert_eq!((status(), queue.in_flight()), (0xff, 1));
        }
        let request = parts.pop().unwrap();
        let whole = queue.complete(Completion { request, outcome: Ok(()) });
        assert_eq!(whole, Some(Err(Errno::IO)));
        assert_eq!((status(), queue.in_flight()), (Status::IoError as u8, 0));
    }
}
