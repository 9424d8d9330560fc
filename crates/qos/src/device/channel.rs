//! The channel of one queue to a file on a device that disks may contend for.
//!
//! While they do not contend, requests pass: a flag is read for each, and a clock for each batch.
//! While they do, requests wait here for a grant of the scheduler, in two lanes: requests that
//! others in the VM wait for (journal commits and all syncs), and the rest. Requests in flight
//! together are unordered, so one lane may overtake the other; a sync makes durable what has
//! completed before.

use std::collections::VecDeque;
use std::sync::Arc;

use flowstone_block::{NextLook, Waker, mutated};
use flowstone_fileio::{FileChannel, FileCompletion, FileOp, FileRequest};

use super::gate::DeviceGate;
use super::member::Member;
use super::scheduler::{Pending, Scheduler};
use crate::QueueKey;
use crate::fair_queue::Rank;

/// Interval at which an active queue reports its activity.
const TOUCH_NS: u64 = 10_000_000;

/// A file channel whose requests pass through the device's scheduler.
pub struct SharedChannel {
    base: Box<dyn FileChannel>,
    member: Arc<Member>,
    gate: Arc<DeviceGate>,
    lanes: [Lane; 2],
    /// Requests in flight below, and how many of them the scheduler counts.
    on_their_way: usize,
    counted: usize,
    /// Tags of syncs in flight, which have no slots: they may take long.
    syncs: Vec<usize>,
    touched_at: Option<u64>,
    /// Time at which to look although nothing has completed, on the scheduler's clock.
    look_at: Option<u64>,
}

/// The waiting requests of one rank.
struct Lane {
    queue: QueueKey,
    waiting: VecDeque<Waiting>,
    /// Number of the last ones that the scheduler does not know yet.
    new: usize,
}

struct Waiting {
    request: FileRequest,
    /// Time of the first look at the scheduler, on its clock.
    since: u64,
}

impl Lane {
    const fn new(queue: QueueKey) -> Self {
        Self { queue, waiting: VecDeque::new(), new: 0 }
    }

    fn push(&mut self, request: FileRequest) {
        self.waiting.push_back(Waiting { request, since: 0 });
        self.new += 1;
    }

    /// Reports new requests to the scheduler. Returns whether there are any.
    fn announce(&mut self, scheduler: &mut Scheduler, now: u64) -> bool {
        let known = self.waiting.len() - self.new;
        for waiting in self.waiting.range_mut(known..) {
            waiting.since = now;
            scheduler.push(self.queue, pending(waiting.request.op));
        }
        std::mem::take(&mut self.new) > 0
    }
}

/// Returns a request's entry for the scheduler.
const fn pending(op: FileOp) -> Pending {
    match op {
        FileOp::Datasync => Pending::SYNC,
        op => Pending::of_bytes(op.moved_bytes()),
    }
}

/// Returns the lane of a request.
fn rank(request: &FileRequest) -> Rank {
    let is_first = request.is_first || request.op == FileOp::Datasync;
    let is_first = mutated("qos.channel.commits-wait-with-the-rest", is_first, false);
    if is_first { Rank::First } else { Rank::Usual }
}

impl SharedChannel {
    pub fn new(base: Box<dyn FileChannel>, member: Arc<Member>, waker: Arc<Waker>) -> Self {
        let gate = DeviceGate::new(waker);
        let ranks = [Rank::First, Rank::Usual];
        let add = |rank| member.device.lock().add_queue(member.key, rank, Arc::clone(&gate));
        let lanes = ranks.map(|rank| Lane::new(add(rank)));
        Self {
            base,
            member,
            gate,
            lanes,
            on_their_way: 0,
            counted: 0,
            syncs: Vec::new(),
            touched_at: None,
            look_at: None,
        }
    }

    fn send(&mut self, request: FileRequest) {
        if request.op == FileOp::Datasync {
            self.syncs.push(request.tag);
            self.member.held_back.count_sync();
        } else {
            self.on_their_way += 1;
        }
        self.base.submit(request);
    }

    fn has_new(&self) -> bool {
        self.lanes.iter().any(|lane| lane.new > 0)
    }

    fn is_waiting(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.waiting.is_empty())
    }

    fn queues(&self) -> [QueueKey; 2] {
        self.lanes.each_ref().map(|lane| lane.queue)
    }

    /// Returns whether this queue has news for the scheduler, or the other way round.
    fn has_news(&self) -> bool {
        self.has_new() || self.gate.is_granted() || self.uncounted()
    }

    /// Returns whether the scheduler's count of requests in flight is outdated.
    fn uncounted(&self) -> bool {
        self.counted != self.to_count()
    }

    /// Returns the number to count; 0 while disks do not contend.
    fn to_count(&self) -> usize {
        if self.member.device.is_contended() { self.on_their_way } else { 0 }
    }

    /// Updates the scheduler and sends granted requests below. Returns whether there are any.
    fn look(&mut self, now: u64, asks: bool) -> bool {
        let Member { device, key, .. } = &*self.member;
        let queues = self.queues();
        self.gate.clear();
        let mut state = device.lock();
        if asks {
            device.set_contended(state.scheduler.touch(*key, now));
        }
        let mut has_new = false;
        for lane in &mut self.lanes {
            has_new |= lane.announce(&mut state.scheduler, now);
        }
        let to_count = self.to_count();
        if let Some(more) = to_count.checked_sub(self.counted) {
            state.scheduler.sent(*key, more, now);
        } else {
            state.scheduler.came_back(*key, self.counted - to_count, now);
        }
        if has_new {
            state.scheduler.pushed(*key, now);
        }
        let others = state.advance(now, queues);
        let granted = queues.map(|queue| state.scheduler.take_granted(queue));
        self.look_at = queues.iter().filter_map(|it| state.scheduler.next_look(*it, now)).min();
        drop(state);
        others.iter().for_each(|gate| gate.wake());
        let before = self.on_their_way;
        (0..self.lanes.len()).for_each(|lane| self.hand_down(lane, granted[lane], now));
        self.counted = to_count + (self.on_their_way - before);
        granted.iter().any(|granted| *granted > 0)
    }

    fn hand_down(&mut self, lane: usize, granted: usize, now: u64) {
        let (mut late, mut late_ns) = (0, 0);
        for _ in 0..granted {
            let Some(Waiting { request, since }) = self.lanes[lane].waiting.pop_front() else {
                break;
            };
            if since < now {
                late += 1;
                late_ns += now - since;
            }
            self.send(request);
        }
        if late > 0 {
            self.member.held_back.count(late, late_ns);
        }
    }

    fn count_back(&mut self, done: &[FileCompletion]) {
        let mut counted = done.len();
        for completion in done {
            if self.syncs.is_empty() {
                break;
            }
            if let Some(at) = self.syncs.iter().position(|tag| *tag == completion.tag) {
                self.syncs.swap_remove(at);
                counted -= 1;
            }
        }
        self.on_their_way -= counted;
    }

    /// Called before a batch is sent below.
    fn announce(&mut self) {
        let now = self.member.device.time.now();
        let is_at_work = self.on_their_way > 0 || !self.syncs.is_empty();
        let has_some = self.has_new() || is_at_work;
        let asks = has_some && self.touched_at.is_none_or(|at| now.saturating_sub(at) >= TOUCH_NS);
        if asks {
            self.touched_at = Some(now);
        }
        if asks || self.has_news() {
            self.look(now, asks);
        }
    }
}

impl FileChannel for SharedChannel {
    fn submit(&mut self, request: FileRequest) {
        if !self.is_waiting() && !self.member.device.is_contended() {
            return self.send(request);
        }
        self.lanes[rank(&request) as usize].push(request);
    }

    fn kick(&mut self) {
        self.announce();
        self.base.kick();
    }

    fn reap(&mut self, done: &mut Vec<FileCompletion>) {
        let before = done.len();
        self.base.reap(done);
        self.count_back(&done[before..]);
        let time = &self.member.device.time;
        let is_due = || self.look_at.is_some_and(|at| at <= time.now());
        if (self.has_news() || is_due()) && self.look(self.member.device.time.now(), false) {
            self.base.kick();
        }
    }

    fn next_look(&mut self) -> NextLook {
        if self.has_new() {
            self.announce();
        }
        let own = match self.look_at {
            _ if self.gate.is_granted() => NextLook::Now,
            Some(at) => NextLook::At(self.member.device.time.instant(at)),
            None => NextLook::OnWake,
        };
        own.min(self.base.next_look())
    }

    fn is_idle(&self) -> bool {
        !self.is_waiting() && self.base.is_idle()
    }
}

impl Drop for SharedChannel {
    /// Sends all waiting requests below, where dropping the channel waits for them.
    fn drop(&mut self) {
        for lane in &self.lanes {
            lane.waiting.iter().for_each(|waiting| self.base.submit(waiting.request));
        }
        self.base.kick();
        let Member { device, key, .. } = &*self.member;
        let (now, queues) = (device.time.now(), self.queues());
        let mut state = device.lock();
        // Requests granted meanwhile have slots, except syncs.
        let slots = |lane: &Lane| {
            let granted = state.scheduler.take_granted(lane.queue);
            let has_slot = |it: &&Waiting| it.request.op != FileOp::Datasync;
            lane.waiting.iter().take(granted).filter(has_slot).count()
        };
        let granted: usize = self.lanes.iter().map(slots).sum();
        state.scheduler.came_back(*key, self.counted + granted, now);
        // Its turns go to others.
        queues.iter().for_each(|queue| state.remove_queue(*queue));
        let others = state.advance(now, queues);
        drop(state);
        others.iter().for_each(|gate| gate.wake());
    }
}

#[cfg(test)]
mod tests;
