//! The front half of a split queue: polls the avail ring, reads chains, and hands them over.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flowstone_block::{FrontHalf, GuestQueue, Intake, NextLook, Op, Throttle, mutated};

use super::{Back, Front, Return, join};
use crate::counters::QueueCounters;
use crate::histogram::{add, nanos};
use crate::spin::SpinBudget;
use crate::task::{CHAIN_BYTES, Entrance, NotRun, Part, Task, TaskContext, Work};

/// Chains handed over at once: small, so that the back thread gets work early.
const HAND_OVER_MAX: u16 = 16;

/// The task of a [`Front`] half. Stays on the thread that makes it.
pub struct FrontTask<Q: GuestQueue, T: Throttle> {
    entrance: Entrance<T::Intake>,
    half: Front<Q, T>,
    /// Returned chains whose in-flight marks may not be cleared yet; they cannot be taken again
    /// before.
    returned: VecDeque<Return>,
    counters: Arc<QueueCounters>,
    spin: SpinBudget,
    /// Start of the current idle period of its thread, unless this task has had work since.
    idle: Option<Instant>,
}

impl<Q: GuestQueue, T: Throttle> Part for Front<Q, T> {
    fn work_ns(&self) -> fn(&QueueCounters) -> u64 {
        QueueCounters::front_ns
    }

    fn run(self: Box<Self>, context: &TaskContext<'_>) -> Result<Box<dyn Task>, NotRun> {
        Ok(Box::new(self.task(context)))
    }

    fn join(self: Box<Self>, back: Box<dyn Part>) -> Option<Box<dyn Part>> {
        let back = (back as Box<dyn Any>).downcast::<Back<Q>>().ok()?;
        Some(Box::new(join(*self, *back)?))
    }
}

impl<Q: GuestQueue, T: Throttle> Front<Q, T> {
    /// Makes its task on the thread of `context`.
    pub fn task(self, context: &TaskContext<'_>) -> FrontTask<Q, T> {
        let _ = self.link.front.set(context.reactor.waker());
        let _ = self.link.front_leave.set(Arc::clone(&context.leave));
        FrontTask {
            entrance: Entrance::new(&self.front, &self.throttle, context),
            half: self,
            returned: VecDeque::new(),
            counters: Arc::clone(&context.spec.counters),
            spin: SpinBudget::new(context.spec.poll, context.patience),
            idle: None,
        }
    }
}

impl<Q: GuestQueue, T: Throttle> FrontTask<Q, T> {
    fn take_returns(&mut self) {
        let Self { half, returned, .. } = self;
        while let Ok(done) = half.returns.pop() {
            returned.push_back(done);
        }
        while let Some(done) = returned.pop_front_if(|done| half.link.is_cleared(done.done)) {
            half.front.take_back(done.head, done.request);
        }
    }

    /// Returns whether there are chains to take. Chains that an earlier daemon left undone go
    /// first, even if the task is to leave, and one at a time: if one of them kills the daemon, no
    /// other is in hand.
    fn has_available(&self) -> bool {
        let front = &self.half.front;
        if front.has_undone() {
            return front.in_flight() == 0;
        }
        !self.is_leaving() && front.has_available()
    }

    /// Returns whether a returned chain can be taken back.
    fn has_returns(&self) -> bool {
        let first = self.returned.front();
        self.half.returns.slots() > 0 || first.is_some_and(|it| self.half.link.is_cleared(it.done))
    }

    /// Takes available chains of about `bytes_max` bytes and hands them over. Returns how many.
    fn hand_over(&mut self, mut bytes_max: u64) -> usize {
        if let Some(start) = self.half.front.take_undone() {
            self.push(start);
            self.entrance.close(&self.half.front);
            return 1;
        }
        let Some(available) = self.entrance.open(&mut self.half.front) else { return 0 };
        let mut taken = 0;
        for _ in 0..available.min(HAND_OVER_MAX) {
            let is_spent = bytes_max == 0;
            let is_spent = mutated("runner.front.takes-more-than-its-bytes", is_spent, false);
            if is_spent
                || self.is_on_its_way(self.half.front.next_head())
                || !self.entrance.intake.goes_on()
            {
                break;
            }
            let Some(start) = self.half.front.take() else { break };
            bytes_max = bytes_max.saturating_sub(CHAIN_BYTES + self.push(start));
            taken += 1;
        }
        self.entrance.close(&self.half.front);
        taken
    }

    /// Hands a chain over. Returns the bytes that it moves.
    fn push(&mut self, start: <Q::Front as FrontHalf>::Start) -> u64 {
        let (requests, intake) = (Q::Front::requests(&start), &self.entrance.intake);
        if requests.is_empty() {
            intake.spend_answered(1);
        }
        let spend = |op: Op| {
            intake.spend(op);
            op.bytes()
        };
        let bytes = requests.iter().map(|request| spend(request.op)).sum();
        self.half.front.set_aside(&start);
        assert!(self.half.starts.push(start).is_ok(), "there is room for every head");
        bytes
    }

    /// Returns whether a chain is offered again while its in-flight mark is still being cleared.
    /// Such a chain can be taken soon; one offered again before completion is a driver error.
    fn is_on_its_way(&mut self, head: u16) -> bool {
        if self.half.front.is_busy(head) {
            // It was returned before the driver could see it.
            self.take_returns();
        }
        self.half.front.is_busy(head) && self.returned.iter().any(|done| done.head == head)
    }

    /// Announces to the back half that this task waits for returned chains, if it does. Returns
    /// whether there is already something to do.
    fn wait_for_returns(&mut self) -> bool {
        if !self.needs_returns() {
            return false;
        }
        self.half.link.begin_wait();
        self.has_returns() || self.is_over()
    }

    /// Returns whether it can continue only when chains are returned.
    fn needs_returns(&self) -> bool {
        let front = &self.half.front;
        self.is_leaving() || front.is_full() || front.has_undone() || !self.returned.is_empty()
    }
}

impl<Q: GuestQueue, T: Throttle> Task for FrontTask<Q, T> {
    fn issue(&mut self, bytes_max: u64) -> Option<Work> {
        if self.half.returns.slots() > 0 || !self.returned.is_empty() {
            self.take_returns();
        }
        if !self.has_available() || bytes_max == 0 {
            return None;
        }
        let found = Instant::now();
        if self.hand_over(bytes_max) == 0 {
            return None;
        }
        self.half.link.wake_back();
        if let Some(since) = self.idle.take() {
            self.spin.learn(found - since);
        }
        let time = found.elapsed();
        self.counters.front.record(time);
        // The other half enters the kernel.
        Some(Work { found, time, bytes: 0 })
    }

    fn is_leaving(&self) -> bool {
        self.entrance.is_leaving()
    }

    fn is_over(&mut self) -> bool {
        let front = &self.half.front;
        let drained = front.in_flight() == 0 && !front.has_undone();
        self.is_leaving() && (drained || self.half.starts.is_abandoned())
    }

    fn begin_idle(&mut self, now: Instant) -> Duration {
        self.idle.get_or_insert(now);
        self.spin.budget()
    }

    fn count_looking(&self, time: Duration) {
        add(&self.counters.front_spin_ns, nanos(time));
        self.entrance.looked(time, &self.half.front);
    }

    fn park(&mut self) -> bool {
        if self.entrance.is_held(&self.half.front) {
            return self.wait_for_returns();
        }
        // A notification from before would mask the next one.
        self.entrance.take_kicks(&self.half.front);
        if self.wait_for_returns() {
            return true;
        }
        if self.is_leaving() {
            // The back may rest: it has to see the order to leave.
            self.half.link.wake_back();
        }
        if self.is_leaving() || self.half.front.has_undone() {
            return self.has_available();
        }
        self.half.front.ask_for_kicks() && !self.is_on_its_way(self.half.front.next_head())
    }

    /// A wake-up of a thread that is not asleep yet is lost, so this look must see what happened
    /// since the task was parked: chains returned, and an order to leave, after which it waits for
    /// returned chains.
    fn next_look(&mut self) -> NextLook {
        let missed = !self.half.link.front_waits() || self.has_returns();
        let missed = mutated("runner.front.last-look-sees-no-returns", missed, false);
        let admitted = self.entrance.next_look(&self.half.front);
        NextLook::now_if(self.is_over() || self.needs_returns() && missed).min(admitted)
    }

    fn unpark(&mut self) -> bool {
        self.half.link.end_wait();
        self.entrance.unpark(&self.half.front)
    }

    fn count_sleep(&self, _time: Duration) {
        add(&self.counters.front_sleeps, 1);
    }

    fn finish(self: Box<Self>) -> Box<dyn Part> {
        Box::new(self.half)
    }
}

#[cfg(test)]
mod tests;
