//! When a task takes from its queue: the driver's notifications, the limit of its disk, and the
//! order to leave. Of a queue on one thread, and of the half that takes.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use flowstone_block::sync::atomic::{AtomicBool, Ordering};
use flowstone_block::{FrontHalf, Intake, NextLook, Throttle};
use flowstone_reactor::Watch;

use crate::counters::QueueCounters;
use crate::histogram::add;
use crate::queue_run::TaskContext;

/// A task that does not sleep counts notifications after so much time of looking for work: they
/// cost a system call.
const COUNTED_AFTER: Duration = Duration::from_millis(100);

/// See the module.
pub struct Entrance<I> {
    notified: Watch,
    counters: Arc<QueueCounters>,
    /// For how long the thread has looked for work since notifications were counted.
    looked: Cell<Duration>,
    pub intake: I,
    /// Raised from another thread: the task is to take nothing more, and to stop or to move when
    /// nothing is in flight.
    leave: Arc<AtomicBool>,
}

impl<I: Intake> Entrance<I> {
    /// Of a queue on the thread of this context, whose driver is not to notify it.
    pub fn new(
        front: &impl FrontHalf,
        throttle: &Arc<impl Throttle<Intake = I>>,
        context: &TaskContext<'_>,
    ) -> Self {
        front.refuse_kicks();
        let TaskContext { spec, reactor, leave, .. } = context;
        Self {
            notified: Watch::new(reactor, Arc::clone(front.kick())),
            counters: Arc::clone(&spec.counters),
            looked: Cell::default(),
            intake: Arc::clone(throttle).intake(&spec.layer.geometry(), reactor),
            leave: Arc::clone(leave),
        }
    }

    /// Whether the task is to take nothing more.
    pub fn is_leaving(&self) -> bool {
        self.leave.load(Ordering::Acquire)
    }

    /// Whether chains wait that are not left to wait for others. What an earlier life left undone
    /// is none of them: it does not wait for a limit, since it has been taken before, and a stop
    /// waits for it.
    fn has_new(&self, front: &impl FrontHalf) -> bool {
        !self.is_leaving() && !front.has_undone() && front.has_available()
    }

    /// Whether all that the task could take waits for the limit of its disk.
    pub fn is_held(&self, front: &impl FrontHalf) -> bool {
        self.has_new(front) && self.intake.is_closed()
    }

    /// When what waits for the limit may be taken, as the last look before a sleep.
    pub fn next_look(&self, front: &impl FrontHalf) -> NextLook {
        if self.has_new(front) { self.intake.next_look() } else { NextLook::OnWake }
    }

    /// Begins a batch of new chains, if any may be taken. Returns how many there are; each batch
    /// ends with [`close`](Self::close).
    pub fn open(&mut self, front: &mut impl FrontHalf) -> Option<u16> {
        let available = front.available();
        if self.intake.open(available.into()) {
            return Some(available);
        }
        self.forget_if_broken(front);
        None
    }

    /// Ends a batch.
    pub fn close(&mut self, front: &impl FrontHalf) {
        self.intake.close();
        self.forget_if_broken(front);
    }

    /// What waits in a broken ring does not wait any more.
    fn forget_if_broken(&mut self, front: &impl FrontHalf) {
        if front.is_broken() {
            self.intake.forget();
        }
    }

    /// The thread of the task is awake. Returns whether it has been notified. A task that is held
    /// was not parked: notifications bring it nothing, and one that is not taken is the last.
    pub fn unpark(&self, front: &impl FrontHalf) -> bool {
        front.refuse_kicks();
        !self.is_held(front) && self.take_kicks(front)
    }

    /// Forgets the notifications that ended a sleep, or came before one. Returns whether there were
    /// any.
    pub fn take_kicks(&self, front: &impl FrontHalf) -> bool {
        let rung = self.notified.take_ready();
        if rung {
            self.count_kicks(front);
        }
        rung
    }

    /// The thread of the task has looked for work that long.
    pub fn looked(&self, time: Duration, front: &impl FrontHalf) {
        self.looked.set(self.looked.get() + time);
        if self.looked.get() >= COUNTED_AFTER {
            self.looked.set(Duration::ZERO);
            self.count_kicks(front);
        }
    }

    fn count_kicks(&self, front: &impl FrontHalf) {
        add(&self.counters.kicks, front.clear_kicks());
    }
}

#[cfg(test)]
mod tests;
