//! A queue on the thread of its poller: whether it gets a turn, and what becomes of a panic in one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flowstone_block::sync::mpsc::SyncSender;
use flowstone_block::{NextLook, mutant};
use tracing::error;

use super::handover::{Orders, QueueSpec};
use crate::queue_run::{QueuePart, QueueRun, Work};

/// Turns for nothing after which a queue is cold: others come first. On a thread with many idle queues,
/// looking at all of them takes longer than a busy one's work.
const COLD_AFTER: u32 = 256;

/// For so long after a rest nothing looks for work: the budget is needed for work itself.
pub(super) const THRIFT: Duration = Duration::from_millis(50);

/// Time between two looks at what the disk still has of a queue that has panicked. Its own word on when to look
/// may be what has panicked.
const DEAD_LOOK: Duration = Duration::from_millis(10);

/// A queue on the thread of its poller.
pub(super) struct Task {
    pub queue: Box<dyn QueueRun>,
    pub spec: QueueSpec,
    pub orders: Arc<Orders>,
    pub ended: SyncSender<QueuePart>,
    /// Turns in which it found nothing since it last found something.
    empty_turns: u32,
    /// Until when it gets no turns: its disk has used its CPU budget.
    pub rests: Option<Instant>,
    /// Until when nothing is looked for on its behalf.
    thrift: Instant,
    /// Whether it has panicked. It gets no more turns.
    pub dead: bool,
    /// Whether it has panicked while it was to give back what its disk has of it.
    pub lost: bool,
}

impl Task {
    /// Has done nothing yet.
    pub fn new(
        queue: Box<dyn QueueRun>,
        spec: QueueSpec,
        orders: Arc<Orders>,
        ended: SyncSender<QueuePart>,
    ) -> Self {
        let (empty_turns, rests, thrift) = (0, None, Instant::now());
        let (dead, lost) = (false, false);
        Self { queue, spec, orders, ended, empty_turns, rests, thrift, dead, lost }
    }

    /// Calls its queue. A panic there ends this queue and no other.
    fn guard<T>(&mut self, call: impl FnOnce(&mut dyn QueueRun) -> T) -> Option<T> {
        let called = catch_unwind(AssertUnwindSafe(|| call(&mut *self.queue)));
        if called.is_err() && !std::mem::replace(&mut self.dead, true) {
            error!(queue = ?self.spec.origin, "a queue has panicked; it takes no more requests");
        }
        called.ok()
    }

    /// Whether nothing is left to do for it here: its end waits for nothing, so that others of the thread need not.
    pub fn is_over(&mut self) -> bool {
        if !self.dead {
            return self.guard(|queue| queue.is_over()).unwrap_or(false);
        }
        if mutant("daemon.poller.drops-what-is-on-its-way") {
            return true;
        }
        let retired = self.guard(|queue| queue.retire());
        self.lost |= retired.is_none();
        retired.unwrap_or(true)
    }

    /// Whether it has been without work for so long that others come first.
    pub fn is_cold(&self) -> bool {
        self.empty_turns > COLD_AFTER
    }

    /// Whether its disk has used its CPU budget. A queue that is to leave does not rest.
    pub fn is_resting(&mut self) -> bool {
        let waits = |until| Instant::now() < until && self.queue.may_rest();
        let rests = self.rests.is_some_and(waits);
        if !rests {
            self.rests = None;
        }
        rests
    }

    /// A turn; see [`QueueRun::turn`].
    pub fn turn(&mut self, bytes_max: u64) -> Option<Work> {
        let work = self.guard(|queue| queue.turn(bytes_max)).flatten();
        match work {
            Some(Work { found, time }) => {
                self.empty_turns = 0;
                self.charge(time, found + time);
            }
            None => self.empty_turns = self.empty_turns.saturating_add(1),
        }
        work
    }

    /// So much CPU time has been used for it.
    pub fn charge(&mut self, time: Duration, now: Instant) {
        let Some(budget) = &self.spec.budget else { return };
        if let Some(until) = budget.charge(time, now) {
            (self.rests, self.thrift) = (Some(until), until + THRIFT);
        }
    }

    /// How long it is worth looking for work on its behalf.
    pub fn begin_idle(&mut self, now: Instant) -> Duration {
        if self.dead {
            return Duration::ZERO;
        }
        let budget = self.queue.begin_idle(now);
        if now < self.thrift { Duration::ZERO } else { budget }
    }

    /// Asks the driver for notifications. Returns whether there is something to do already.
    pub fn park(&mut self) -> bool {
        // Nothing is taken from a ring while its disk rests.
        !self.dead && !self.is_resting() && self.guard(|queue| queue.park()).unwrap_or(true)
    }

    /// When it has to be looked at again, as the last look before a sleep.
    pub fn next_look(&mut self) -> NextLook {
        if self.dead {
            return NextLook::At(Instant::now() + DEAD_LOOK);
        }
        let look = self.guard(|queue| queue.next_look()).unwrap_or(NextLook::Now);
        let Some(until) = self.rests else { return look };
        // If the rest has ended meanwhile: it was not parked.
        if self.is_resting() { NextLook::At(until) } else { NextLook::Now }
    }

    /// Its thread is awake.
    pub fn unpark(&mut self) {
        if !self.dead && self.queue.unpark() {
            self.empty_turns = 0;
        }
    }
}
