//! What a poller runs: a queue, or a half of one.

use std::time::{Duration, Instant};

use flowstone_block::NextLook;
use flowstone_frontend::vhost_user::VirtQueue;

use crate::halves::{Back, Front};

/// What a turn has done.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// When it found the first of it.
    pub found: Instant,
    /// How long it took.
    pub time: Duration,
}

impl Work {
    /// Of two pieces of work, one after the other.
    pub fn sum(first: Option<Self>, second: Option<Self>) -> Option<Self> {
        match (first, second) {
            (Some(one), Some(other)) => Some(Self { time: one.time + other.time, ..one }),
            (one, other) => one.or(other),
        }
    }
}

/// A queue, or a half of one, as it goes from thread to thread.
pub enum QueuePart {
    /// All of it.
    Whole(Box<VirtQueue>),
    /// What takes requests.
    Front(Box<Front>),
    /// What completes them.
    Back(Box<Back>),
}

impl QueuePart {
    /// How deep the queue is.
    pub fn size(&self) -> u16 {
        match self {
            Self::Whole(queue) => queue.size(),
            Self::Front(front) => front.size(),
            Self::Back(back) => back.size(),
        }
    }
}

/// A queue, or a half of one, on its thread. It never waits.
pub trait QueueRun {
    /// One pass: does what there is to do. Takes no more than requests of about so many bytes at
    /// once, nothing if that is none: where a submission is a copy, others of the thread wait for
    /// it. What completes is shown in any case. Returns what it has done, if there was anything.
    fn turn(&mut self, bytes_max: u64) -> Option<Work>;

    /// Whether it is to take nothing more.
    fn is_leaving(&self) -> bool;

    /// Whether it may get no turns while its disk has used its CPU budget: not if a monitor, or its
    /// other half, waits for it to end.
    fn may_rest(&self) -> bool {
        !self.is_leaving()
    }

    /// Whether it is to leave and has nothing left to do, so that what it ends with waits for
    /// nothing.
    fn is_over(&mut self) -> bool;

    /// It has panicked. Takes back what its disk has of it, and does nothing else; returns whether
    /// all is back, so that a drop waits for nothing.
    fn retire(&mut self) -> bool {
        true
    }

    /// Its thread has nothing to do: says how long it is worth looking for work.
    fn begin_idle(&mut self, now: Instant) -> Duration;

    /// Its thread has looked for work that long.
    fn count_looking(&self, time: Duration);

    /// Its thread is about to sleep: who brings work is to wake it. Returns whether there is
    /// something to do already; in any case, [`unpark`](Self::unpark) is to follow.
    fn park(&mut self) -> bool;

    /// When it has to be looked at again, as the last look before a sleep.
    fn next_look(&mut self) -> NextLook;

    /// The same, of what its disk completes alone.
    fn next_completion(&mut self) -> NextLook {
        NextLook::OnWake
    }

    /// Its thread is awake. Returns whether it has been notified.
    fn unpark(&mut self) -> bool;

    /// Its thread has slept for that long.
    fn count_sleep(&self, time: Duration);

    /// What is left of a task that is over.
    fn finish(self: Box<Self>) -> QueuePart;
}

/// A time as counters keep it.
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
