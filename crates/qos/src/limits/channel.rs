//! One queue of a limited disk: requests wait here, in the order in which they came.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use flowstone_block::{Channel, Completion, NextLook, Op, Request};

use super::budget::Cost;
use super::disk::DiskLimits;
use super::gate::QueueGate;

/// See the module. While nothing is limited and nothing waits, a request costs one look at a flag.
pub struct LimitedChannel {
    base: Box<dyn Channel>,
    disk: Arc<DiskLimits>,
    gate: Arc<QueueGate>,
    /// A flush waits with what came before it, and costs nothing. So requests never overtake each other.
    waiting: VecDeque<Waiting>,
    /// How many of the last ones the line does not know yet.
    new: usize,
    /// When tokens are expected for what waits.
    look_at: Option<Instant>,
    /// The changes of limits that have been seen.
    seen: u64,
}

struct Waiting {
    request: Box<Request>,
    /// The first look at the line, on its clock.
    since: u64,
}

/// What a request takes of a limit; a flush takes nothing.
const fn cost(request: &Request) -> Option<Cost> {
    match request.op {
        Op::Read(extent) | Op::Write(extent) => Some(Cost { bytes: extent.bytes() }),
        Op::Discard(_) | Op::WriteZeroes { .. } => Some(Cost { bytes: 0 }),
        Op::Flush => None,
    }
}

impl LimitedChannel {
    pub fn new(base: Box<dyn Channel>, disk: Arc<DiskLimits>, gate: Arc<QueueGate>) -> Self {
        let seen = disk.group.changes();
        Self { base, disk, gate, waiting: VecDeque::new(), new: 0, look_at: None, seen }
    }

    /// Asks for tokens, and hands down what has them. Returns whether anything has gone down.
    fn look(&mut self) -> bool {
        let group = &self.disk.group;
        let now = group.now();
        // Before the line is asked: what changes later is looked at again.
        self.seen = group.changes();
        let mut state = group.lock();
        let line = &mut state.line;
        let known = self.waiting.len() - self.new;
        for waiting in self.waiting.range_mut(known..) {
            waiting.since = now;
            if let Some(cost) = cost(&waiting.request) {
                line.push(self.gate.queue, cost);
            }
        }
        self.new = 0;
        let at_once = if self.gate.is_stopping() { line.let_go(self.gate.queue, now) } else { 0 };
        line.advance(now);
        let granted = line.take_granted(self.gate.queue) + at_once;
        let look_at = line.next_look(self.gate.queue, now);
        drop(state);
        self.look_at = look_at.map(|at| group.instant(at));
        self.hand_down(granted, now)
    }

    /// Hands down so many requests that had to have tokens, and the flushes before the next such one.
    fn hand_down(&mut self, mut granted: usize, now: u64) -> bool {
        let (mut any, mut late, mut late_ns) = (false, 0, 0);
        while let Some(first) = self.waiting.front() {
            if cost(&first.request).is_some() {
                let Some(left) = granted.checked_sub(1) else { break };
                granted = left;
                if first.since < now {
                    late += 1;
                    late_ns += now - first.since;
                }
            }
            let Waiting { request, .. } = self.waiting.pop_front().expect("it has a first one");
            self.base.submit(request);
            any = true;
        }
        if late > 0 {
            self.disk.count_throttled(late, late_ns);
        }
        any
    }

    /// Whether it is time to ask for tokens again.
    fn is_due(&self) -> bool {
        self.new > 0
            || self.disk.group.changes() != self.seen
            || self.look_at.is_some_and(|at| at <= Instant::now())
    }

    fn own_next_look(&self) -> NextLook {
        if self.disk.group.changes() != self.seen {
            return NextLook::Now;
        }
        self.look_at.map_or(NextLook::OnWake, NextLook::At)
    }
}

impl Channel for LimitedChannel {
    fn submit(&mut self, request: Box<Request>) {
        if !self.gate.is_limited() && self.waiting.is_empty() {
            return self.base.submit(request);
        }
        self.waiting.push_back(Waiting { request, since: 0 });
        self.new += 1;
    }

    fn kick(&mut self) {
        if self.new > 0 {
            self.look();
        }
        self.base.kick();
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        if !self.waiting.is_empty() && self.is_due() && self.look() {
            self.base.kick();
        }
        self.base.reap(done);
    }

    fn next_look(&mut self) -> NextLook {
        if self.waiting.is_empty() {
            return self.base.next_look();
        }
        if self.new > 0 {
            self.look();
        }
        self.own_next_look().min(self.base.next_look())
    }

    fn retire(&mut self) -> bool {
        self.base.retire()
    }
}

impl Drop for LimitedChannel {
    fn drop(&mut self) {
        self.disk.close_gate(&self.gate);
    }
}

#[cfg(test)]
mod tests;
