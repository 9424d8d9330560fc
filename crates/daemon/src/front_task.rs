//! The thread that takes requests: polls the avail ring, reads chains, and hands them over.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flowstone_block::sync::atomic::{AtomicBool, Ordering};
use flowstone_block::{NextLook, Op, Reactor, mutant};
use flowstone_frontend::vhost_user::{Start, Work as Asked};

use crate::PollMode;
use crate::batch::CHAIN_BYTES;
use crate::counters::QueueCounters;
use crate::halves::{Front, Return};
use crate::histogram::add;
use crate::intake::Intake;
use crate::kicks::Kicks;
use crate::queue_run::{QueuePart, QueueRun, Work, nanos};
use crate::spin::SpinBudget;

/// Chains that are handed over at once, at most: the other thread gets something to do early.
const HAND_OVER_MAX: u16 = 16;

/// See the module. Stays on the thread that makes it.
pub struct FrontTask {
    kicks: Kicks,
    intake: Intake,
    half: Front,
    /// Done, and not to be taken again before their marks are cleared.
    returned: VecDeque<Return>,
    leave: Arc<AtomicBool>,
    counters: Arc<QueueCounters>,
    spin: SpinBudget,
    /// Since its thread had nothing to do, if this task has not had anything since.
    idle: Option<Instant>,
}

impl FrontTask {
    /// On the thread of this reactor.
    pub fn new(
        half: Front,
        reactor: &Reactor,
        leave: Arc<AtomicBool>,
        counters: Arc<QueueCounters>,
        poll: PollMode,
        patience: Duration,
    ) -> Self {
        half.avail.refuse_kicks();
        let _ = half.link.front.set(reactor.waker());
        let _ = half.link.front_leave.set(Arc::clone(&leave));
        Self {
            kicks: Kicks::new(reactor, &half.avail, Arc::clone(&counters)),
            intake: Intake::default(),
            half,
            returned: VecDeque::new(),
            leave,
            counters,
            spin: SpinBudget::new(poll, patience),
            idle: None,
        }
    }

    /// The same, of a disk that may have a limit.
    pub fn limited(self, intake: Intake) -> Self {
        Self { intake, ..self }
    }

    fn take_returns(&mut self) {
        let Self { half, returned, .. } = self;
        while let Ok(done) = half.returns.pop() {
            returned.push_back(done);
        }
        while let Some(done) = returned.pop_front_if(|done| half.link.is_cleared(done.used)) {
            half.avail.take_back(done.head, done.request);
        }
    }

    /// Whether there is something to take. What an earlier life left undone goes first, also if the
    /// task is to leave, and one by one: if it is what the daemon dies of, no other one is in hand.
    fn has_available(&self) -> bool {
        let avail = &self.half.avail;
        if avail.has_undone() {
            return avail.in_flight() == 0;
        }
        !self.is_leaving() && avail.has_available()
    }

    /// Whether what has come back can be made use of.
    fn has_returns(&self) -> bool {
        let first = self.returned.front();
        self.half.returns.slots() > 0 || first.is_some_and(|it| self.half.link.is_cleared(it.used))
    }

    /// Takes what there is, of about so many bytes, and hands it over. Returns how many chains that
    /// was.
    fn hand_over(&mut self, mut bytes_max: u64) -> usize {
        if let Some((_, start)) = self.half.avail.take_undone() {
            self.push(start);
            self.intake.close(false);
            return 1;
        }
        let available = self.half.avail.available();
        if !self.intake.open(available.into(), self.half.avail.fault().is_some()) {
            return 0;
        }
        let mut taken = 0;
        for _ in 0..available.min(HAND_OVER_MAX) {
            let is_spent = bytes_max == 0 && !mutant("daemon.front.takes-more-than-its-bytes");
            if is_spent || self.is_on_its_way(self.half.avail.next_head()) || !self.intake.goes_on()
            {
                break;
            }
            let Some(start) = self.half.avail.take() else { break };
            bytes_max = bytes_max.saturating_sub(CHAIN_BYTES + self.push(start));
            taken += 1;
        }
        self.intake.close(self.half.avail.fault().is_some());
        taken
    }

    /// Returns how many bytes it moves.
    fn push(&mut self, start: Start) -> u64 {
        let spend = |op: Op| {
            self.intake.spend(op);
            op.bytes()
        };
        let bytes = match &start.work {
            Asked::Submit(request) => spend(request.op),
            Asked::Ranges(parts) => parts.iter().map(|part| spend(part.op)).sum(),
            Asked::Answer(..) => {
                self.intake.spend_answered(1);
                0
            }
        };
        assert!(self.half.starts.push(start).is_ok(), "there is room for every head");
        bytes
    }

    /// Whether a chain is done and offered again, while its marks are still being cleared. It can
    /// be taken in a moment; one that is not done is a mistake of the driver.
    fn is_on_its_way(&mut self, head: u16) -> bool {
        if self.half.avail.is_busy(head) {
            // It came back before the driver could see it.
            self.take_returns();
        }
        self.half.avail.is_busy(head) && self.returned.iter().any(|done| done.head == head)
    }

    /// Whether chains wait that are not left to wait for others.
    fn has_new(&self) -> bool {
        let avail = &self.half.avail;
        !self.is_leaving() && !avail.has_undone() && avail.has_available()
    }

    /// Whether all that it could take waits for the limit of its disk.
    fn is_held(&self) -> bool {
        self.has_new() && self.intake.is_closed()
    }

    /// Says that it waits for chains to come back, if it does. Returns whether there is something
    /// to do already.
    fn wait_for_returns(&mut self) -> bool {
        if !self.needs_returns() {
            return false;
        }
        self.half.link.begin_wait();
        self.has_returns() || self.is_over()
    }

    /// Whether it can go on only when chains come back.
    fn needs_returns(&self) -> bool {
        let avail = &self.half.avail;
        self.is_leaving() || avail.is_full() || avail.has_undone() || !self.returned.is_empty()
    }
}

impl QueueRun for FrontTask {
    fn turn(&mut self, bytes_max: u64) -> Option<Work> {
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
        Some(Work { found, time })
    }

    fn is_leaving(&self) -> bool {
        self.leave.load(Ordering::Acquire)
    }

    fn is_over(&mut self) -> bool {
        let avail = &self.half.avail;
        let drained = avail.in_flight() == 0 && !avail.has_undone();
        self.is_leaving() && (drained || self.half.starts.is_abandoned())
    }

    fn begin_idle(&mut self, now: Instant) -> Duration {
        self.idle.get_or_insert(now);
        self.spin.budget()
    }

    fn count_looking(&self, time: Duration) {
        add(&self.counters.front_spin_ns, nanos(time));
        self.kicks.looked(time, &self.half.avail);
    }

    fn park(&mut self) -> bool {
        if self.is_held() {
            return self.wait_for_returns();
        }
        // A notification from before would keep the next one from being noticed.
        self.kicks.take(&self.half.avail);
        if self.wait_for_returns() {
            return true;
        }
        if self.is_leaving() {
            // It may rest.
            self.half.link.wake_back();
        }
        if self.is_leaving() || self.half.avail.has_undone() {
            return self.has_available();
        }
        self.half.avail.ask_for_kicks() && !self.is_on_its_way(self.half.avail.next_head())
    }

    /// Who wakes a thread that is not asleep yet is not heard: what has come back since the task
    /// was parked has to be seen here, and an order to leave, after which it waits for what comes
    /// back.
    fn next_look(&mut self) -> NextLook {
        let missed = (!self.half.link.front_waits() || self.has_returns())
            && !mutant("daemon.front.last-look-sees-no-returns");
        let admitted = if self.has_new() { self.intake.next_look() } else { NextLook::OnWake };
        NextLook::now_if(self.is_over() || self.needs_returns() && missed).min(admitted)
    }

    fn unpark(&mut self) -> bool {
        self.half.link.end_wait();
        self.half.avail.refuse_kicks();
        // As of a queue on one thread.
        !self.is_held() && self.kicks.take(&self.half.avail)
    }

    fn count_sleep(&self, _time: Duration) {
        add(&self.counters.front_sleeps, 1);
    }

    fn finish(self: Box<Self>) -> QueuePart {
        QueuePart::Front(Box::new(self.half))
    }
}

#[cfg(test)]
mod tests;
