//! Admission of a task to its queue's ring: the driver's notifications, the limit of its disk, and
//! the order to leave. Used by whole queues and by front halves.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use flowstone_block::sync::atomic::{AtomicBool, Ordering};
use flowstone_block::{FrontHalf, Intake, NextLook, Throttle};
use flowstone_reactor::Watch;

use super::TaskContext;
use crate::counters::QueueCounters;
use crate::histogram::add;

/// Polling time after which a task that does not sleep counts notifications: counting costs a
/// system call.
const COUNTED_AFTER: Duration = Duration::from_millis(100);

/// Decides when a task takes from its ring.
pub struct Entrance<I> {
    notified: Watch,
    counters: Arc<QueueCounters>,
    /// Time spent polling since notifications were last counted.
    looked: Cell<Duration>,
    pub intake: I,
    /// Set by another thread: the task takes nothing more, and stops or moves once nothing is in
    /// flight.
    leave: Arc<AtomicBool>,
}

impl<I: Intake> Entrance<I> {
    /// Makes the entrance of a queue on the thread of `context`, and suppresses its driver's
    /// notifications.
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

    /// Returns whether the task is to take nothing more.
    pub fn is_leaving(&self) -> bool {
        self.leave.load(Ordering::Acquire)
    }

    /// Returns whether new chains are available that this task should take. Chains that an earlier
    /// daemon left undone do not count: they were admitted before and so do not wait for a limit,
    /// and a stop waits for them.
    fn has_new(&self, front: &impl FrontHalf) -> bool {
        !self.is_leaving() && !front.has_undone() && front.has_available()
    }

    /// Returns whether all available chains wait for the limit of the disk.
    pub fn is_held(&self, front: &impl FrontHalf) -> bool {
        self.has_new(front) && self.intake.is_closed()
    }

    /// Returns when chains held by the limit may be taken; part of the last look before a sleep.
    pub fn next_look(&self, front: &impl FrontHalf) -> NextLook {
        if self.has_new(front) { self.intake.next_look() } else { NextLook::OnWake }
    }

    /// Begins a batch of new chains, if any may be taken. Returns how many are available; the
    /// caller ends the batch with [`close`](Self::close).
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

    /// Withdraws the demand of a broken ring from the limit.
    fn forget_if_broken(&mut self, front: &impl FrontHalf) {
        if front.is_broken() {
            self.intake.forget();
        }
    }

    /// Called when the task's thread is awake. Returns whether the driver has notified it. A held
    /// task was not parked: notifications bring it nothing, and the one it does not consume stays
    /// the last.
    pub fn unpark(&self, front: &impl FrontHalf) -> bool {
        front.refuse_kicks();
        !self.is_held(front) && self.take_kicks(front)
    }

    /// Consumes notifications that ended a sleep or came before one. Returns whether there were
    /// any.
    pub fn take_kicks(&self, front: &impl FrontHalf) -> bool {
        let rung = self.notified.take_ready();
        if rung {
            self.count_kicks(front);
        }
        rung
    }

    /// Adds `time` spent polling; counts notifications when due.
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
