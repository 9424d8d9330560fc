//! One queue's way into a file of a device that disks may contend for.
//!
//! While they do not, requests pass: a flag is read for each, and a clock for each batch. While
//! they do, requests wait here until the scheduler lets them go. A sync never waits: it makes
//! durable what has completed, and whole queues wait for it.

use std::collections::VecDeque;
use std::sync::Arc;

use flowstone_block::{NextLook, Waker};
use flowstone_fileio::{FileChannel, FileCompletion, FileOp, FileRequest};

use super::gate::DeviceGate;
use super::member::Member;
use crate::QueueKey;

/// A queue at work says so once in this time.
const TOUCH_NS: u64 = 10_000_000;

/// See the module.
pub struct SharedChannel {
    base: Box<dyn FileChannel>,
    member: Arc<Member>,
    gate: Arc<DeviceGate>,
    queue: QueueKey,
    waiting: VecDeque<Waiting>,
    /// How many of the last ones the scheduler does not know yet.
    new: usize,
    /// Requests below, and how many of them the scheduler knows.
    on_their_way: usize,
    counted: usize,
    /// Tags of syncs below, which are not counted: they may take long, and nothing waits for a slot
    /// of theirs.
    syncs: Vec<usize>,
    touched_at: Option<u64>,
    /// When to look although nothing has come back, on the scheduler's clock.
    look_at: Option<u64>,
}

struct Waiting {
    request: FileRequest,
    /// The first look at the scheduler, on its clock.
    since: u64,
}

/// The bytes that a request moves. Changes of a file's map move none.
const fn bytes(op: FileOp) -> u64 {
    match op {
        FileOp::Read { bytes, .. } | FileOp::Write { bytes, .. } => bytes,
        FileOp::Datasync
        | FileOp::Punch { .. }
        | FileOp::Discard { .. }
        | FileOp::Clear { .. }
        | FileOp::Zero { .. }
        | FileOp::Allocate { .. } => 0,
    }
}

impl SharedChannel {
    pub fn new(base: Box<dyn FileChannel>, member: Arc<Member>, waker: Arc<Waker>) -> Self {
        let gate = DeviceGate::new(waker);
        let queue = member.device.lock().add_queue(member.key, Arc::clone(&gate));
        Self {
            base,
            member,
            gate,
            queue,
            waiting: VecDeque::new(),
            new: 0,
            on_their_way: 0,
            counted: 0,
            syncs: Vec::new(),
            touched_at: None,
            look_at: None,
        }
    }

    fn send(&mut self, request: FileRequest) {
        self.on_their_way += 1;
        self.base.submit(request);
    }

    /// Whether the scheduler has to hear of this queue, or this queue of it.
    fn has_news(&self) -> bool {
        self.new > 0 || self.gate.is_granted() || self.uncounted()
    }

    /// Whether what is on its way is not what the scheduler counts.
    fn uncounted(&self) -> bool {
        self.counted != self.to_count()
    }

    /// While disks do not contend, nothing is counted.
    fn to_count(&self) -> usize {
        if self.member.device.is_contended() { self.on_their_way } else { 0 }
    }

    /// Tells the scheduler what has happened, and hands down what may go. Returns whether anything
    /// has.
    fn look(&mut self, now: u64, asks: bool) -> bool {
        let Member { device, key, .. } = &*self.member;
        self.gate.clear();
        let mut state = device.lock();
        if asks {
            device.set_contended(state.scheduler.touch(*key, now));
        }
        let known = self.waiting.len() - self.new;
        for waiting in self.waiting.range_mut(known..) {
            waiting.since = now;
            state.scheduler.push(self.queue, bytes(waiting.request.op));
        }
        let has_new = std::mem::take(&mut self.new) > 0;
        let to_count = self.to_count();
        if let Some(more) = to_count.checked_sub(self.counted) {
            state.scheduler.sent(*key, more, now);
        } else {
            state.scheduler.came_back(*key, self.counted - to_count, now);
        }
        if has_new {
            state.scheduler.pushed(*key, now);
        }
        let others = state.advance(now, self.queue);
        let granted = state.scheduler.take_granted(self.queue);
        self.counted = to_count + granted;
        self.look_at = state.scheduler.next_look(self.queue, now);
        drop(state);
        others.iter().for_each(|gate| gate.wake());
        self.hand_down(granted, now);
        granted > 0
    }

    fn hand_down(&mut self, granted: usize, now: u64) {
        let (mut late, mut late_ns) = (0, 0);
        for _ in 0..granted {
            let Some(Waiting { request, since }) = self.waiting.pop_front() else { return };
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

    /// Before a batch goes down.
    fn announce(&mut self) {
        let now = self.member.device.time.now();
        let has_some = self.new > 0 || self.on_their_way > 0;
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
        if request.op == FileOp::Datasync {
            self.syncs.push(request.tag);
            return self.base.submit(request);
        }
        if self.waiting.is_empty() && !self.member.device.is_contended() {
            return self.send(request);
        }
        self.waiting.push_back(Waiting { request, since: 0 });
        self.new += 1;
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
        if self.new > 0 {
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
        self.waiting.is_empty() && self.base.is_idle()
    }
}

impl Drop for SharedChannel {
    /// Everything that waits goes down, where the drop of the channel below waits for it.
    fn drop(&mut self) {
        for Waiting { request, .. } in std::mem::take(&mut self.waiting) {
            self.base.submit(request);
        }
        self.base.kick();
        let Member { device, key, .. } = &*self.member;
        let now = device.time.now();
        let mut state = device.lock();
        let granted = state.scheduler.take_granted(self.queue);
        state.scheduler.came_back(*key, self.counted + granted, now);
        // Its turns are those of others.
        state.remove_queue(self.queue);
        let others = state.advance(now, self.queue);
        drop(state);
        others.iter().for_each(|gate| gate.wake());
    }
}

#[cfg(test)]
mod tests;
