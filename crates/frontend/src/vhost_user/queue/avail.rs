//! The half of a queue that takes requests from the driver: polls the ring, reads chains, marks
//! requests in the in-flight log. Taken chains go to the [`UsedHalf`](super::UsedHalf) and come
//! back when they are done.

use std::fs::File;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flowstone_block::{FrontHalf, Geometry, Op, Request, is_any_broken, mutated};
use tracing::warn;

use super::super::chain::BadChain;
use super::super::inflight::{AvailLog, Undone};
use super::super::memory::GuestMemory;
use super::super::protocol::{ID_BYTES, Status};
use super::super::request::{Parsed, Verdict, parse};
use super::super::ring::SplitRing;
use super::super::shared::DeviceShared;
use super::start::{Start, StatusPlace, Work, give_back_room, ranges, weight, weight_of_ranges};

/// Limit of the weight in flight of a queue, above which it takes no more requests; the last one
/// taken may exceed it. See [`weight`].
const WEIGHT_MAX: u32 = 1 << 17;
/// Lives of the daemon that may die with a request in hand. The next one answers it with an error,
/// and if that one dies too, the one after it breaks the queue.
const DEATHS_IN_HAND_MAX: u8 = 2;
/// Lives that may die with a request in flight in any state: so a request that crashes the daemon
/// through another thread is limited, too. A daemon killed from outside hardly ever reaches this
/// before one request is done.
pub(super) const DEATHS_MAX: u8 = 8;

/// Reasons why a queue has stopped permanently. The driver has to reset the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueFault {
    /// The avail index advanced by more than the ring size.
    AvailIndex,
    /// The avail ring names a descriptor index past the table.
    Head,
    /// The avail ring names a chain that is already in flight.
    HeadInUse,
    /// A malformed chain without a place for the status.
    Chain(BadChain),
    /// Three lives of the daemon died with the same request in hand.
    Deadly,
    /// The monitor's memory is lost: reads there may return zeroes.
    MemoryLost,
}

/// The parts of a queue.
pub struct QueueParts {
    /// The ring.
    pub ring: SplitRing,
    /// Index of the next avail entry, as the monitor knows it.
    pub next_avail: u16,
    /// Descriptor of the driver's notifications.
    pub kick: Arc<File>,
    /// Descriptor by which the monitor is told that the queue is broken.
    pub error: Option<Arc<File>>,
    /// Set when the driver breaks the queue.
    pub broken: Arc<AtomicBool>,
    /// State shared with the control plane.
    pub shared: Arc<DeviceShared>,
    /// The disk. Its capacity may change; `shared` has the current one.
    pub geometry: Geometry,
    /// The disk's identity string.
    pub id: [u8; ID_BYTES],
}

/// The taking half; see the module.
pub struct AvailHalf {
    pub(super) parts: QueueParts,
    log: Option<AvailLog>,
    /// Requests that a dead daemon left undone, newest first.
    pub(super) replay: Vec<Undone>,
    pub(super) slots: Box<[Slot]>,
    in_flight: usize,
    /// Weight of the requests in flight.
    pub(super) weight: u32,
    fault: Option<QueueFault>,
}

/// The slot of one chain head.
#[derive(Default)]
pub(super) struct Slot {
    /// The request, except while it is in flight or was never needed.
    pub request: Option<Box<Request>>,
    /// The chain has been taken and not taken back.
    busy: bool,
    /// Its weight while it is in flight.
    weight: u32,
}

impl AvailHalf {
    pub(super) fn new(parts: QueueParts, log: Option<AvailLog>, replay: Vec<Undone>) -> Self {
        let slots = (0..parts.ring.size()).map(|_| Slot::default()).collect();
        Self { parts, log, replay, slots, in_flight: 0, weight: 0, fault: None }
    }

    /// Returns the index of the next avail entry, for the monitor to keep.
    pub fn next_avail(&self) -> u16 {
        self.parts.next_avail
    }

    /// Returns the guest's memory.
    pub fn memory(&self) -> &GuestMemory {
        self.parts.ring.memory()
    }

    /// Returns why the queue has stopped permanently, if it has.
    pub fn fault(&self) -> Option<QueueFault> {
        self.fault
    }

    #[inline]
    fn may_take(&self) -> bool {
        self.fault.is_none() && !self.is_full()
    }

    /// Returns whether memory has been lost and the queue has not failed yet.
    #[inline]
    fn is_to_fail(&self) -> bool {
        is_any_broken() && self.fault.is_none() && self.is_memory_lost()
    }

    fn is_memory_lost(&self) -> bool {
        self.memory().is_broken() || self.log.as_ref().is_some_and(AvailLog::is_broken)
    }

    /// Changes the in-flight log, if there is one.
    #[inline]
    pub(super) fn with_log(&mut self, change: impl FnOnce(&mut AvailLog)) {
        self.log.as_mut().map(change);
    }

    /// Checks a head from the avail ring and records it as taken.
    #[inline]
    fn admit(&mut self, head: u16) -> bool {
        match self.slots.get(usize::from(head)) {
            None => self.fail(QueueFault::Head),
            Some(slot) if slot.busy => self.fail(QueueFault::HeadInUse),
            Some(_) => {
                let marks = mutated("frontend.queue.marks-after-submission", true, false);
                if marks {
                    self.with_log(|log| log.begin(head));
                }
                self.parts.next_avail = self.parts.next_avail.wrapping_add(1);
                return true;
            }
        }
        false
    }

    /// Returns the disk as it is now, to whose limits requests must keep.
    fn disk(&self) -> Geometry {
        Geometry { capacity: self.parts.shared.capacity(), ..self.parts.geometry }
    }

    /// Reads a chain. A `deadly` one is to be answered with an error.
    #[inline]
    fn start(&mut self, head: u16, deadly: bool) -> Option<Start> {
        let disk = self.disk();
        let at = usize::from(head);
        let mut request = self.slots[at]
            .request
            .take()
            .unwrap_or_else(|| Request::new(Op::Flush, u32::from(head)));
        request.reset();
        let parsed = parse(&self.parts.ring, head, &mut request, &disk, &self.parts.id);
        let Parsed { status, verdict } = match parsed {
            Ok(parsed) => parsed,
            Err(why) => {
                self.slots[at].put_back(request);
                // Chains read in lost memory may have been valid.
                if !self.is_to_fail() {
                    self.with_log(|log| log.abandon(head));
                }
                self.fail(QueueFault::Chain(why));
                return None;
            }
        };
        // A chain read while memory is lost may be any other one. Its answer is not published.
        let refused = deadly || self.is_to_fail();
        let refused =
            mutated("frontend.queue.submits-what-was-read-in-lost-memory", refused, deadly);
        self.in_flight += 1;
        self.slots[at].busy = true;
        self.slots[at].weight = 0;
        let work = match verdict {
            Verdict::Submit if !refused => {
                self.prepare(&mut request);
                self.weigh(head, weight(&request));
                Work::Submit(request)
            }
            Verdict::Ranges(first, others) if !refused => {
                self.prepare(&mut request);
                let filled = disk.zeroes_are_written;
                self.weigh(head, weight_of_ranges(&first, others.len(), filled));
                Work::Ranges(ranges(request, first, others))
            }
            other => {
                self.slots[at].put_back(request);
                match other {
                    Verdict::Answer(status, bytes) if !refused => Work::Answer(status, bytes + 1),
                    _ => Work::Answer(Status::IoError, 1),
                }
            }
        };
        Some(Start { head, status: StatusPlace(status), work })
    }

    /// Prepares a request for the disk.
    #[inline]
    fn prepare(&self, request: &mut Request) {
        // A chain may have many pieces that its request does not use. They have no weight, so room
        // for them must not be held while it is in flight.
        give_back_room(&mut request.memory);
        let durable = self.parts.shared.write_through();
        let durable = mutated("frontend.queue.write-through-is-not-durable", durable, false);
        request.durable = durable;
    }

    #[inline]
    fn weigh(&mut self, head: u16, weight: u32) {
        self.slots[usize::from(head)].weight = weight;
        self.weight += weight;
    }

    fn fail(&mut self, found: QueueFault) {
        // An apparent fault of the driver may come from reading lost memory.
        let fault = if self.is_memory_lost() { QueueFault::MemoryLost } else { found };
        self.fault = Some(fault);
        self.parts.broken.store(true, Ordering::Relaxed);
        if let Some(unsaid) = self.parts.shared.may_log() {
            let id = String::from_utf8_lossy(&self.parts.id);
            let disk = id.trim_end_matches('\0');
            let what = match fault {
                // A reset keeps the mapping, and with it the zero pages that replace the lost ones.
                QueueFault::MemoryLost => {
                    "a guest's memory is lost (truncated, out of space, or bad); its queue is left alone until the monitor hands over memory anew"
                }
                _ => "a guest broke its queue; it is left alone until a reset",
            };
            warn!(disk, ?fault, unsaid, "{what}");
        }
        if let Some(file) = &self.parts.error {
            let _ = rustix::io::write(&**file, &1u64.to_ne_bytes());
        }
    }
}

impl FrontHalf for AvailHalf {
    type Start = Start;

    fn size(&self) -> u16 {
        self.parts.ring.size()
    }

    #[inline]
    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn kick(&self) -> &Arc<File> {
        &self.parts.kick
    }

    fn clear_kicks(&self) -> u64 {
        let mut counter = [0; 8];
        match rustix::io::read(&*self.parts.kick, &mut counter) {
            Ok(8) => u64::from_ne_bytes(counter),
            _ => 0,
        }
    }

    fn ask_for_kicks(&self) -> bool {
        let ring = &self.parts.ring;
        self.may_take() && (ring.ask_for_kicks(self.parts.next_avail) || !self.replay.is_empty())
            || self.is_to_fail()
    }

    fn refuse_kicks(&self) {
        self.parts.ring.refuse_kicks(self.parts.next_avail);
    }

    #[inline]
    fn is_broken(&self) -> bool {
        self.fault.is_some()
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.weight >= WEIGHT_MAX
    }

    #[inline]
    fn has_undone(&self) -> bool {
        self.fault.is_none() && !self.replay.is_empty()
    }

    #[inline]
    fn has_available(&self) -> bool {
        let ring = &self.parts.ring;
        self.may_take() && (ring.avail_index() != self.parts.next_avail || !self.replay.is_empty())
            || self.is_to_fail()
    }

    #[inline]
    fn available(&mut self) -> u16 {
        let available = self.parts.ring.avail_index().wrapping_sub(self.parts.next_avail);
        if self.is_to_fail() {
            self.fail(QueueFault::MemoryLost);
        } else if available > self.parts.ring.size() {
            self.fail(QueueFault::AvailIndex);
        }
        if self.fault.is_some() { 0 } else { available }
    }

    fn next_head(&self) -> u16 {
        self.parts.ring.avail_head(self.parts.next_avail)
    }

    fn is_busy(&self, head: u16) -> bool {
        self.slots.get(usize::from(head)).is_some_and(|slot| slot.busy)
    }

    #[inline]
    fn take(&mut self) -> Option<Start> {
        if !self.may_take() {
            return None;
        }
        let head = self.parts.ring.avail_head(self.parts.next_avail);
        if self.is_to_fail() {
            self.fail(QueueFault::MemoryLost);
            return None;
        }
        self.admit(head).then(|| self.start(head, false))?
    }

    #[inline]
    fn take_undone(&mut self) -> Option<Start> {
        if self.is_to_fail() {
            self.fail(QueueFault::MemoryLost);
        }
        let undone = if self.may_take() { self.replay.pop() } else { None }?;
        let Undone { head, started, in_hand } = undone;
        let deadly = in_hand >= DEATHS_IN_HAND_MAX || started >= DEATHS_MAX;
        let deadly = mutated("frontend.queue.replays-for-ever", deadly, false);
        if deadly && in_hand > DEATHS_IN_HAND_MAX {
            // Answering requires reading its chain, which may be the cause of the crashes.
            self.fail(QueueFault::Deadly);
            return None;
        }
        let counts = mutated("frontend.queue.counts-a-life-after-submission", true, false);
        if counts {
            self.with_log(|log| log.begin_again(undone));
        }
        self.start(head, deadly)
    }

    #[inline]
    fn set_aside(&mut self, start: &Start) {
        let sets_aside = mutated("frontend.queue.suspects-what-waits", true, false);
        if sets_aside {
            self.with_log(|log| log.set_aside(start.head));
        }
    }

    #[inline]
    fn requests(start: &Start) -> &[Box<Request>] {
        match &start.work {
            Work::Submit(request) => slice::from_ref(request),
            Work::Ranges(parts) => parts,
            Work::Answer(..) => &[],
        }
    }

    #[inline]
    fn take_back(&mut self, head: u16, request: Option<Box<Request>>) {
        let slot = &mut self.slots[usize::from(head)];
        assert!(slot.busy, "a request came back twice");
        slot.busy = false;
        self.weight -= slot.weight;
        self.in_flight -= 1;
        if let Some(request) = request {
            slot.put_back(request);
        }
    }
}

impl Slot {
    /// Takes back a request that is not in flight (any more), on every path: one huge scatter list
    /// per slot must not be kept forever.
    #[inline]
    fn put_back(&mut self, mut request: Box<Request>) {
        request.memory.clear();
        give_back_room(&mut request.memory);
        self.request = Some(request);
    }
}
