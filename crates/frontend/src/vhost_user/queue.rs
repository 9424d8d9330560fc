//! A running virtqueue: takes batches of requests from the driver, gives completions back.
//!
//! Owned by one thread. It has one slot per possible chain head, made once, and takes nothing more
//! while its requests in flight hold much, so a guest cannot make it grow. Nothing is published one
//! by one: used entries are written as requests complete and shown to the driver with one index
//! update and at most one signal per batch.
//!
//! The guest memory it works on stays mapped until the queue is dropped; the code that drops a
//! queue with requests in flight must have stopped them first.

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flowstone_block::{Completion, Errno, IoVec, Op, Outcome, Request, mutant};
use tracing::warn;

use super::chain::BadChain;
use super::inflight::{InflightLog, Undone};
use super::memory::GuestMemory;
use super::protocol::{ID_BYTES, SEGMENTS_MAX, Status};
use super::request::{Limits, Parsed, Verdict, parse, written_bytes};
use super::ring::SplitRing;
use super::shared::DeviceShared;

/// Pieces of memory that a slot keeps room for between requests: those of a request of a driver
/// that keeps to the limits.
const PIECES_KEPT: usize = SEGMENTS_MAX as usize + 2;

/// What the requests in flight of a queue may weigh before it takes no more of them; the last one
/// taken may exceed it. See [`weight`].
const WEIGHT_MAX: u32 = 1 << 17;
/// What one range of a list weighs: its request here, and what becomes of it further down.
const PART_WEIGHT: u32 = 8;
/// Sectors that weigh as much as one piece of memory.
const SECTORS_PER_WEIGHT_LOG2: u32 = 3;

/// Lives of the daemon that may die with a request in hand. The next one answers it with an error,
/// and if it dies of that too, the one after it leaves the queue alone.
const DEATHS_IN_HAND_MAX: u8 = 2;
/// Lives that may die with a request in flight, wherever it was: so even what kills the daemon
/// through another thread does so a limited number of times. A daemon that is killed from outside
/// hardly ever is so often before one request is done.
const DEATHS_MAX: u8 = 8;

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
    /// Three lives of the daemon died with the same request in hand.
    Deadly,
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
    /// that has no reader any more, and a driver that waits for it waits for ever.
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
    /// What the requests in flight weigh.
    weight: u32,
    /// What an earlier life left undone, newest first.
    replay: Vec<Undone>,
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
    /// What it weighs while it is in flight.
    weight: u32,
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
        if mutant("frontend.queue.skips-replay") {
            replay.clear();
        }
        replay.reverse();
        if !mutant("frontend.queue.sends-no-call-at-start") {
            parts.call.signal();
        }
        let slots = (0..parts.ring.size()).map(|_| Slot::empty()).collect();
        Self {
            parts,
            slots,
            next_used: used,
            published: used,
            in_flight: 0,
            weight: 0,
            replay,
            fault: None,
        }
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

    /// The guest's memory.
    pub fn memory(&self) -> &GuestMemory {
        self.parts.ring.memory()
    }

    /// Why the queue has stopped for good, if it has.
    pub fn fault(&self) -> Option<QueueFault> {
        self.fault
    }

    /// Readable when the driver has notified us.
    pub fn kick(&self) -> &Arc<File> {
        &self.parts.kick
    }

    /// Forgets the driver's notifications and says how many there were.
    pub fn clear_kicks(&self) -> u64 {
        let mut counter = [0; 8];
        match rustix::io::read(&*self.parts.kick, &mut counter) {
            Ok(8) => u64::from_ne_bytes(counter),
            _ => 0,
        }
    }

    /// Whether what is in flight weighs so much that nothing more is taken: a completion has to
    /// come first.
    fn is_full(&self) -> bool {
        self.weight >= WEIGHT_MAX
    }

    /// Whether there is something left to take that an earlier life left undone.
    pub fn has_undone(&self) -> bool {
        self.fault.is_none() && !self.replay.is_empty()
    }

    /// Asks the driver for a notification with its next request. Returns whether there is
    /// something to take already.
    pub fn ask_for_kicks(&self) -> bool {
        self.fault.is_none()
            && !self.is_full()
            && (self.parts.ring.ask_for_kicks(self.parts.next_avail) || !self.replay.is_empty())
    }

    /// Asks the driver to save its notifications: we look by ourselves.
    pub fn refuse_kicks(&self) {
        self.parts.ring.refuse_kicks(self.parts.next_avail);
    }

    /// Whether there is something to take.
    pub fn has_available(&self) -> bool {
        self.fault.is_none()
            && !self.is_full()
            && (self.parts.ring.avail_index() != self.parts.next_avail || !self.replay.is_empty())
    }

    /// Takes available requests, at most `batch_max` of them, and hands them to `submit`. Those
    /// that need no disk are answered; [`publish`](Self::publish) shows it. Asks `go_on` before
    /// each new one: a single request may keep `submit` busy for a tenth of a second.
    pub fn take(
        &mut self,
        batch_max: u16,
        go_on: impl Fn() -> bool,
        mut submit: impl FnMut(Box<Request>),
    ) -> Taken {
        let mut taken = self.take_undone(&mut submit);
        if self.fault.is_some() || !self.replay.is_empty() {
            return taken;
        }
        let available = self.parts.ring.avail_index().wrapping_sub(self.parts.next_avail);
        if available > self.parts.ring.size() {
            self.fail(QueueFault::AvailIndex);
            return taken;
        }
        for _ in 0..available.min(batch_max) {
            if self.fault.is_some() || self.is_full() || !go_on() {
                break;
            }
            let head = self.parts.ring.avail_head(self.parts.next_avail);
            if !self.admit(head) {
                break;
            }
            taken.count(self.start(head, false, &mut submit));
            if mutant("frontend.queue.marks-after-submission") {
                self.mark(head);
            }
        }
        taken
    }

    /// Takes the oldest request that an earlier life left undone, as [`take`](Self::take) does. Only
    /// one: if it is what the daemon dies of, no other one is in hand.
    pub fn take_undone(&mut self, mut submit: impl FnMut(Box<Request>)) -> Taken {
        let mut taken = Taken::default();
        if self.fault.is_none()
            && !self.is_full()
            && let Some(undone) = self.replay.pop()
        {
            taken.count(self.start_again(undone, &mut submit));
        }
        taken
    }

    /// The disk has all requests that were taken.
    pub fn handed_over(&mut self) {
        if let Some(log) = &mut self.parts.inflight {
            log.handed_over();
        }
    }

    /// Starts a request once more, unless the lives that have died with it are too many.
    fn start_again(&mut self, undone: Undone, submit: &mut impl FnMut(Box<Request>)) -> bool {
        let Undone { started, in_hand, .. } = undone;
        let deadly = (in_hand >= DEATHS_IN_HAND_MAX || started >= DEATHS_MAX)
            && !mutant("frontend.queue.replays-for-ever");
        if deadly && in_hand > DEATHS_IN_HAND_MAX {
            // To answer it, its chain has to be read, and that may be what is deadly.
            self.fail(QueueFault::Deadly);
            return false;
        }
        let late = mutant("frontend.queue.counts-a-life-after-submission");
        if !late {
            self.count_life(undone);
        }
        let passed_on = self.start(undone.head, deadly, submit);
        if late {
            self.count_life(undone);
        }
        passed_on
    }

    fn count_life(&mut self, undone: Undone) {
        if let Some(log) = &mut self.parts.inflight {
            log.begin_again(undone);
        }
    }

    fn mark(&mut self, head: u16) {
        if let Some(log) = &mut self.parts.inflight {
            log.begin(head);
        }
    }

    /// Checks a head from the avail ring and records it as taken.
    fn admit(&mut self, head: u16) -> bool {
        match self.slots.get(usize::from(head)) {
            None => self.fail(QueueFault::Head),
            Some(slot) if slot.busy => self.fail(QueueFault::HeadInUse),
            Some(_) => {
                if !mutant("frontend.queue.marks-after-submission") {
                    self.mark(head);
                }
                self.parts.next_avail = self.parts.next_avail.wrapping_add(1);
                return true;
            }
        }
        false
    }

    /// What a request must keep to.
    fn limits(&self) -> Limits {
        Limits {
            capacity: self.parts.shared.capacity(),
            readonly: self.parts.readonly,
            discards: self.parts.discards,
        }
    }

    /// Returns whether the disk has something to do for it. If it is `deadly` it is answered with
    /// an error.
    fn start(&mut self, head: u16, deadly: bool, submit: &mut impl FnMut(Box<Request>)) -> bool {
        let limits = self.limits();
        let slot = &mut self.slots[usize::from(head)];
        let mut request =
            slot.request.take().unwrap_or_else(|| Request::new(Op::Flush, u32::from(head)));
        request.reset();
        let parsed = parse(&self.parts.ring, head, &mut request, limits, &self.parts.id);
        let Parsed { status, verdict } = match parsed {
            Ok(parsed) => parsed,
            Err(why) => {
                slot.put_back(request);
                if let Some(log) = &mut self.parts.inflight {
                    log.abandon(head);
                }
                self.fail(QueueFault::Chain(why));
                return false;
            }
        };
        slot.busy = true;
        slot.status = status;
        (slot.parts, slot.weight, slot.outcome) = (1, 0, Ok(()));
        self.in_flight += 1;
        if deadly {
            slot.put_back(request);
            self.answer(head, Status::IoError, 1);
            return false;
        }
        // A chain may have many pieces that its request does not use. They weigh nothing, so the room
        // for them must not be held while it is in flight.
        give_back_room(&mut request.memory);
        request.durable = self.parts.shared.write_through()
            && !mutant("frontend.queue.write-through-is-not-durable");
        match verdict {
            Verdict::Submit => {
                slot.weight = weight(&request);
                self.weight += slot.weight;
                submit(request);
            }
            Verdict::Ranges(first, others) => {
                slot.parts += others.len();
                slot.weight = slot.parts as u32 * PART_WEIGHT;
                self.weight += slot.weight;
                for op in others {
                    let mut part = request.part(op);
                    part.durable &= !mutant("frontend.queue.parts-are-not-durable");
                    submit(part);
                }
                request.op = first;
                submit(request);
            }
            Verdict::Answer(status, bytes) => {
                slot.put_back(request);
                self.answer(head, status, bytes + 1);
                return false;
            }
        }
        true
    }

    /// Takes a completion back. Returns how the guest's request went, if that was all of it.
    pub fn complete(&mut self, completion: Completion) -> Option<Outcome> {
        let Completion { request, outcome } = completion;
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
        slot.put_back(request);
        self.answer(head, status, bytes);
        Some(outcome)
    }

    /// Writes status and used entry; the driver does not see them before `publish`.
    fn answer(&mut self, head: u16, status: Status, bytes: u32) {
        if mutant("frontend.queue.used-index-before-status") {
            self.parts.ring.publish_used(self.next_used.wrapping_add(1));
        }
        let slot = &mut self.slots[usize::from(head)];
        // SAFETY: the pointer is into guest memory that the ring keeps mapped.
        unsafe { slot.status.write_volatile(status as u8) };
        slot.busy = false;
        self.weight -= slot.weight;
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
        if mutant("frontend.queue.clears-marks-before-used-index") {
            self.clear_marks();
        }
        self.parts.ring.publish_used(self.next_used);
        self.clear_marks();
        self.published = self.next_used;
        if self.parts.ring.wants_interrupt(self.next_used, old) {
            self.parts.call.signal();
            return Signal::Sent;
        }
        Signal::Suppressed
    }

    fn clear_marks(&mut self) {
        if let Some(log) = &mut self.parts.inflight {
            log.published(self.next_used);
        }
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
        Self { request: None, busy: false, status, parts: 0, weight: 0, outcome: Ok(()) }
    }

    /// Takes a request back that is not in flight (any more), whichever way it went: one huge
    /// scatter list must not be kept for ever in every slot.
    fn put_back(&mut self, mut request: Box<Request>) {
        request.memory.clear();
        give_back_room(&mut request.memory);
        self.request = Some(request);
    }
}

/// Lets go of a large list that holds few pieces. Not by shrinking it where it lies: what the allocator
/// cuts off is too small for the next large list, so it would take new memory for each.
fn give_back_room(memory: &mut Vec<IoVec>) {
    if memory.capacity() > PIECES_KEPT && memory.len() <= PIECES_KEPT {
        *memory = memory.as_slice().to_vec();
    }
}

/// What a request makes the daemon hold while it is in flight, in units of a piece of memory (16
/// bytes here): its scatter list, and its size, since a disk whose data is scattered cuts it up. A
/// list of ranges weighs [`PART_WEIGHT`] for each.
fn weight(request: &Request) -> u32 {
    // No more than REQUEST_BYTES_MAX, checked when the chain was read.
    let sectors = request.op.extent().map_or(0, |extent| extent.count().get() as u32);
    request.memory.len() as u32 + (sectors >> SECTORS_PER_WEIGHT_LOG2)
}

fn status_of(outcome: Result<(), Errno>) -> Status {
    match outcome {
        Ok(()) => Status::Ok,
        Err(Errno::OPNOTSUPP) => Status::Unsupported,
        Err(_) => Status::IoError,
    }
}

#[cfg(test)]
mod tests;
