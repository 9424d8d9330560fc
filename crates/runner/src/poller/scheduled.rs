//! A task in the schedule of its poller: when it gets a turn, and how a panic in it is contained.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flowstone_block::sync::mpsc::SyncSender;
use flowstone_block::{NextLook, Origin, mutated};
use tracing::error;

use super::handover::Orders;
use crate::task::{Part, QueueSpec, Task, Work};

/// Turns without work after which a queue is cold and gets fewer turns. On a thread with many idle
/// queues, visiting all of them takes longer than a busy queue's work.
const COLD_AFTER: u32 = 256;

/// Time after a rest in which nothing polls: the budget is needed for work itself.
pub(super) const THRIFT: Duration = Duration::from_millis(50);

/// CPU time charged for a spurious wake-up and the sleep after it, which are part of no turn.
const WAKE: Duration = Duration::from_micros(10);
/// Consecutive spurious wake-ups that a queue may cause. An honest driver's notification may come
/// after its request was taken; its next one brings work.
const FOR_NOTHING_MAX: u32 = 16;
/// Time for which a queue is deaf after one spurious wake-up more: it takes nothing, and its
/// notifications are ignored; doubled with each further one. Its completions are published
/// meanwhile.
const DEAF_MIN: Duration = Duration::from_millis(1);
const DEAF_DOUBLINGS_MAX: u32 = 6;
/// Time between two checks for requests in flight of a queue that has panicked. Its own next-look
/// time is not used: computing it may be what panicked.
const DEAD_LOOK: Duration = Duration::from_millis(10);

/// A task, and what its poller has to know of it.
pub(super) struct Scheduled {
    pub task: Box<dyn Task>,
    pub spec: QueueSpec,
    pub orders: Arc<Orders>,
    pub ended: SyncSender<Box<dyn Part>>,
    /// Consecutive turns without work.
    empty_turns: u32,
    /// End of its rest: its disk has used its CPU budget.
    pub rests: Option<Instant>,
    /// End of its deafness: it has caused too many spurious wake-ups.
    pub deaf: Option<Instant>,
    /// Time until which the thread does not poll on its behalf.
    thrift: Instant,
    /// How long the thread polls on its behalf after its last work.
    pub looks_for: Duration,
    /// How long the thread has polled since then.
    pub looked: Duration,
    /// Whether a notification has ended a sleep and no work was found since.
    is_notified: bool,
    /// Consecutive spurious wake-ups.
    for_nothing: u32,
    /// Whether it has panicked. A dead task gets no more turns.
    pub dead: bool,
    /// Whether it has a turn in this pass.
    pub has_turn: bool,
    /// Whether it has had work since [`entered`](Self::entered), and the bytes of that which was in
    /// the thread's ring.
    pub has_worked: bool,
    pub bytes: u64,
    /// Index of its disk in [`Shares`](super::shares::Shares).
    pub share: usize,
    /// Whether it has panicked while retiring its channel.
    pub lost: bool,
}

impl Scheduled {
    /// Takes over a task that has done nothing yet.
    pub fn new(
        task: Box<dyn Task>,
        spec: QueueSpec,
        orders: Arc<Orders>,
        ended: SyncSender<Box<dyn Part>>,
    ) -> Self {
        let (empty_turns, rests, thrift, share) = (0, None, Instant::now(), 0);
        let (is_notified, for_nothing, dead, lost) = (false, 0, false, false);
        let (has_turn, has_worked, bytes) = (false, false, 0);
        Self {
            task,
            spec,
            orders,
            ended,
            empty_turns,
            rests,
            deaf: None,
            thrift,
            looks_for: Duration::ZERO,
            looked: Duration::ZERO,
            is_notified,
            for_nothing,
            dead,
            has_turn,
            has_worked,
            bytes,
            share,
            lost,
        }
    }

    /// Returns the number of its disk.
    pub fn disk(&self) -> u32 {
        match self.spec.origin {
            Origin::Queue { disk, .. } => disk,
            Origin::Own => u32::MAX,
        }
    }

    /// Calls the task. A panic there ends this task and no other.
    fn guard<T>(&mut self, call: impl FnOnce(&mut dyn Task) -> T) -> Option<T> {
        let called = catch_unwind(AssertUnwindSafe(|| call(&mut *self.task)));
        if called.is_err() && !std::mem::replace(&mut self.dead, true) {
            error!(queue = ?self.spec.origin, "a queue has panicked; it takes no more requests");
        }
        called.ok()
    }

    /// Returns whether the task can be ended without waiting, so that other tasks of the thread are
    /// not held up.
    pub fn is_over(&mut self) -> bool {
        if !self.dead {
            return self.guard(|task| task.is_over()).unwrap_or(false);
        }
        let waits = mutated("runner.poller.drops-what-is-on-its-way", true, false);
        if !waits {
            return true;
        }
        let retired = self.guard(|task| task.retire());
        self.lost |= retired.is_none();
        retired.unwrap_or(true)
    }

    /// Returns whether it has been without work for so long that it gets fewer turns.
    pub fn is_cold(&self) -> bool {
        self.empty_turns > COLD_AFTER
    }

    /// Returns whether it gets turns now.
    pub fn has_turns(&mut self) -> bool {
        let has_rested = self.rests.is_none() || !self.is_resting();
        // The look may have found that it panics.
        let is_alive = mutated("runner.poller.panicked-queue-gets-turns", !self.dead, true);
        has_rested && is_alive
    }

    /// Returns whether its disk has used its CPU budget. A queue that is to leave does not rest.
    pub fn is_resting(&mut self) -> bool {
        let rests = self.rests.is_some_and(|until| self.waits(until));
        if !rests {
            self.rests = None;
        }
        rests
    }

    fn waits(&mut self, until: Instant) -> bool {
        Instant::now() < until && self.guard(|task| task.may_rest()).unwrap_or(false)
    }

    /// Returns whether it has caused too many spurious wake-ups. A queue that is to leave is never
    /// deaf.
    fn is_deaf(&mut self) -> bool {
        if !self.deaf.is_some_and(|until| self.waits(until)) {
            self.deaf = None;
        }
        self.deaf.is_some()
    }

    /// Gives the queue a turn; see [`Task::turn`]. [`entered`](Self::entered) follows.
    pub fn turn(&mut self, bytes_max: u64) -> Option<Work> {
        let was_dead = self.dead;
        let is_deaf = self.deaf.is_some() && self.is_deaf();
        let dies = self.dead && !was_dead;
        let goes_on = mutated("runner.task.completes-nothing-while-deaf", true, !is_deaf);
        if dies || !goes_on {
            return None;
        }
        let bytes_max = if is_deaf { 0 } else { bytes_max };
        let work = self.guard(|task| task.turn(bytes_max)).flatten();
        let may_take = mutated("runner.task.grows-cold-unasked", bytes_max > 0, true);
        match work {
            Some(work) => self.worked(work),
            // It could take nothing, so it is not known to be idle: it stays in every pass, and is
            // first in one of them.
            None if !may_take => self.empty_turns = 0,
            None => self.empty_turns = self.empty_turns.saturating_add(1),
        }
        work
    }

    /// Completes what the kernel has brought out since the turn; see [`Task::complete`].
    pub fn complete(&mut self) -> Option<Work> {
        let work = if self.dead { None } else { self.guard(|task| task.complete()).flatten() };
        work.into_iter().for_each(|work| self.worked(work));
        work
    }

    fn worked(&mut self, work: Work) {
        (self.empty_turns, self.is_notified, self.for_nothing) = (0, false, 0);
        self.looked = Duration::ZERO;
        self.has_worked = true;
        self.charge(work.time, work.found + work.time);
    }

    /// Charges time that its thread was in the kernel for it; see [`Task::entered`].
    pub fn entered(&mut self, time: Duration, now: Instant) {
        (self.has_worked, self.bytes) = (false, 0);
        let charges = mutated("runner.pass.time-in-the-kernel-is-free", !time.is_zero(), false);
        if charges {
            self.charge(time, now);
        }
        if !self.dead {
            self.guard(|task| task.entered(time));
        }
    }

    /// Charges CPU time to its disk's budget.
    pub fn charge(&mut self, time: Duration, now: Instant) {
        let Some(budget) = &self.spec.budget else { return };
        if let Some(until) = budget.charge(time, now) {
            (self.rests, self.thrift) = (Some(until), until + THRIFT);
        }
    }

    /// Returns how much of `time`, for which its thread has polled, was on its behalf.
    pub fn own_part_of(&self, time: Duration) -> Duration {
        self.looks_for.saturating_sub(self.looked).min(time)
    }

    /// Returns how long to poll on its behalf.
    pub fn begin_idle(&mut self, now: Instant) -> Duration {
        self.looks_for = Duration::ZERO;
        if !self.dead {
            let budget = self.guard(|task| task.begin_idle(now)).unwrap_or_default();
            self.looks_for = if now < self.thrift { Duration::ZERO } else { budget };
        }
        self.looks_for
    }

    /// Asks the driver for notifications. Returns whether there is already something to do.
    pub fn park(&mut self, now: Instant) -> bool {
        if std::mem::take(&mut self.is_notified) {
            self.woken_for_nothing(now);
        }
        // Nothing is taken from a ring while its disk rests.
        let is_heard = !self.is_resting() && !self.is_deaf() && !self.dead;
        is_heard && self.guard(|task| task.park()).unwrap_or(true)
    }

    /// A guest may notify as often as it likes, and a descriptor may stay readable for ever.
    fn woken_for_nothing(&mut self, now: Instant) {
        let charges = mutated("runner.task.wakes-for-nothing-are-free", true, false);
        if !charges {
            return;
        }
        self.for_nothing = self.for_nothing.saturating_add(1);
        self.charge(WAKE, now);
        if let Some(doublings) = self.for_nothing.checked_sub(FOR_NOTHING_MAX + 1) {
            self.deaf = Some(now + DEAF_MIN * (1 << doublings.min(DEAF_DOUBLINGS_MAX)));
        }
    }

    /// Returns when it has to be visited again; part of the last look before a sleep.
    pub fn next_look(&mut self) -> NextLook {
        if self.dead {
            return NextLook::At(Instant::now() + DEAD_LOOK);
        }
        let look = self.guard(|task| task.next_look()).unwrap_or(NextLook::Now);
        // Now if a rest has ended meanwhile: the task was not parked.
        match (self.rests, self.deaf) {
            (None, None) => look,
            (Some(until), _) if self.is_resting() => NextLook::At(until),
            (_, Some(until)) if self.is_deaf() => {
                let completion = self.guard(|task| task.next_completion());
                NextLook::At(until).min(completion.unwrap_or(NextLook::Now))
            }
            _ => NextLook::Now,
        }
    }

    /// Called when its thread is awake. The notification of a task that rests is not consumed: no
    /// other one ends a sleep before.
    pub fn unpark(&mut self) {
        let hears = !self.dead && self.rests.is_none() && self.deaf.is_none();
        if hears && self.guard(|task| task.unpark()) == Some(true) {
            (self.empty_turns, self.is_notified) = (0, true);
        }
    }

    /// Counts time for which its thread has polled.
    pub fn count_looking(&mut self, time: Duration) {
        self.looked = self.looked.saturating_add(time);
        if !self.dead {
            self.guard(|task| task.count_looking(time));
        }
    }

    /// Counts time for which its thread has slept.
    pub fn count_sleep(&mut self, time: Duration) {
        if !self.dead {
            self.guard(|task| task.count_sleep(time));
        }
    }
}

#[cfg(test)]
impl Scheduled {
    /// Sets the number of consecutive turns without work.
    pub fn empty_turns_for_test(&mut self, turns: u32) {
        self.empty_turns = turns;
    }
}
