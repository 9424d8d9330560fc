//! A queue on the thread of its poller: whether it gets a turn, and what becomes of a panic in one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flowstone_block::sync::mpsc::SyncSender;
use flowstone_block::{NextLook, Origin, mutant};
use tracing::error;

use super::handover::Orders;
use crate::queue_run::{Part, QueueRun, QueueSpec, Work};

/// Turns for nothing after which a queue is cold: others come first. On a thread with many idle
/// queues, looking at all of them takes longer than a busy one's work.
const COLD_AFTER: u32 = 256;

/// For so long after a rest nothing looks for work: the budget is needed for work itself.
pub(super) const THRIFT: Duration = Duration::from_millis(50);

/// What a wake-up costs, and the sleep after it. It is in no turn, so it is charged where there is
/// nothing to do.
const WAKE: Duration = Duration::from_micros(10);
/// Wake-ups for nothing, one after the other, that a queue may cause. An honest driver's
/// notification may come when its request has been taken already; then the next one brings
/// something.
const FOR_NOTHING_MAX: u32 = 16;
/// After the first one more it takes nothing and is not heard for so long, then for twice as long,
/// and so on. What its disk completes is shown meanwhile.
const DEAF_MIN: Duration = Duration::from_millis(1);
const DEAF_DOUBLINGS_MAX: u32 = 6;
/// Time between two looks at what the disk still has of a queue that has panicked. Its own word on
/// when to look may be what has panicked.
const DEAD_LOOK: Duration = Duration::from_millis(10);

/// A queue on the thread of its poller.
pub(super) struct Task {
    pub queue: Box<dyn QueueRun>,
    pub spec: QueueSpec,
    pub orders: Arc<Orders>,
    pub ended: SyncSender<Part>,
    /// Turns in which it found nothing since it last found something.
    empty_turns: u32,
    /// Until when it gets no turns: its disk has used its CPU budget.
    pub rests: Option<Instant>,
    /// Until when it takes nothing: it has been woken for nothing too often.
    pub deaf: Option<Instant>,
    /// Until when nothing is looked for on its behalf.
    thrift: Instant,
    /// Whether a notification has ended a sleep, and nothing has been found since.
    is_notified: bool,
    /// How often that was so since something was found.
    for_nothing: u32,
    /// Whether it has panicked. It gets no more turns.
    pub dead: bool,
    /// Where its disk's share of a pass is counted.
    pub share: usize,
    /// Whether it has panicked while it was to give back what its disk has of it.
    pub lost: bool,
}

impl Task {
    /// Has done nothing yet.
    pub fn new(
        queue: Box<dyn QueueRun>,
        spec: QueueSpec,
        orders: Arc<Orders>,
        ended: SyncSender<Part>,
    ) -> Self {
        let (empty_turns, rests, thrift, share) = (0, None, Instant::now(), 0);
        let (is_notified, for_nothing, dead, lost) = (false, 0, false, false);
        Self {
            queue,
            spec,
            orders,
            ended,
            empty_turns,
            rests,
            deaf: None,
            thrift,
            is_notified,
            for_nothing,
            dead,
            share,
            lost,
        }
    }

    /// The number of its disk.
    pub fn disk(&self) -> u32 {
        match self.spec.origin {
            Origin::Queue { disk, .. } => disk,
            Origin::Own => u32::MAX,
        }
    }

    /// Calls its queue. A panic there ends this queue and no other.
    fn guard<T>(&mut self, call: impl FnOnce(&mut dyn QueueRun) -> T) -> Option<T> {
        let called = catch_unwind(AssertUnwindSafe(|| call(&mut *self.queue)));
        if called.is_err() && !std::mem::replace(&mut self.dead, true) {
            error!(queue = ?self.spec.origin, "a queue has panicked; it takes no more requests");
        }
        called.ok()
    }

    /// Whether nothing is left to do for it here: its end waits for nothing, so that others of the
    /// thread need not.
    pub fn is_over(&mut self) -> bool {
        if !self.dead {
            return self.guard(|queue| queue.is_over()).unwrap_or(false);
        }
        if mutant("runner.poller.drops-what-is-on-its-way") {
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

    /// Whether it gets turns at all.
    pub fn has_turns(&mut self) -> bool {
        (!self.dead || mutant("runner.poller.panicked-queue-gets-turns"))
            && (self.rests.is_none() || !self.is_resting())
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

    /// Whether it has been woken for nothing too often. A queue that is to leave is heard.
    fn is_deaf(&mut self) -> bool {
        let is_deaf = |until| Instant::now() < until && self.queue.may_rest();
        if !self.deaf.is_some_and(is_deaf) {
            self.deaf = None;
        }
        self.deaf.is_some()
    }

    /// A turn; see [`QueueRun::turn`].
    pub fn turn(&mut self, bytes_max: u64) -> Option<Work> {
        let is_deaf = self.deaf.is_some() && self.is_deaf();
        if is_deaf && mutant("runner.task.completes-nothing-while-deaf") {
            return None;
        }
        let bytes_max = if is_deaf { 0 } else { bytes_max };
        let work = self.guard(|queue| queue.turn(bytes_max)).flatten();
        match work {
            Some(Work { found, time }) => {
                (self.empty_turns, self.is_notified, self.for_nothing) = (0, false, 0);
                self.charge(time, found + time);
            }
            // It was not asked, so it is not known to be cold: it comes in each pass, and is first
            // in one of them.
            None if bytes_max == 0 && !mutant("runner.task.grows-cold-unasked") => {
                self.empty_turns = 0;
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
    pub fn park(&mut self, now: Instant) -> bool {
        if std::mem::take(&mut self.is_notified) {
            self.woken_for_nothing(now);
        }
        // Nothing is taken from a ring while its disk rests.
        let is_heard = !self.dead && !self.is_resting() && !self.is_deaf();
        is_heard && self.guard(|queue| queue.park()).unwrap_or(true)
    }

    /// A guest may notify as often as it likes, and a descriptor may be readable for ever.
    fn woken_for_nothing(&mut self, now: Instant) {
        if mutant("runner.task.wakes-for-nothing-are-free") {
            return;
        }
        self.for_nothing = self.for_nothing.saturating_add(1);
        self.charge(WAKE, now);
        if let Some(doublings) = self.for_nothing.checked_sub(FOR_NOTHING_MAX + 1) {
            self.deaf = Some(now + DEAF_MIN * (1 << doublings.min(DEAF_DOUBLINGS_MAX)));
        }
    }

    /// When it has to be looked at again, as the last look before a sleep.
    pub fn next_look(&mut self) -> NextLook {
        if self.dead {
            return NextLook::At(Instant::now() + DEAD_LOOK);
        }
        let look = self.guard(|queue| queue.next_look()).unwrap_or(NextLook::Now);
        // If a rest has ended meanwhile: it was not parked.
        match (self.rests, self.deaf) {
            (None, None) => look,
            (Some(until), _) if self.is_resting() => NextLook::At(until),
            (_, Some(until)) if self.is_deaf() => {
                let completion = self.guard(|queue| queue.next_completion());
                NextLook::At(until).min(completion.unwrap_or(NextLook::Now))
            }
            _ => NextLook::Now,
        }
    }

    /// Its thread is awake. A notification that comes while it rests is not taken: no other one
    /// ends a sleep before.
    pub fn unpark(&mut self) {
        if !self.dead && self.rests.is_none() && self.deaf.is_none() && self.queue.unpark() {
            (self.empty_turns, self.is_notified) = (0, true);
        }
    }
}

#[cfg(test)]
impl Task {
    /// As if it had found nothing in so many turns.
    pub fn empty_turns_for_test(&mut self, turns: u32) {
        self.empty_turns = turns;
    }
}
