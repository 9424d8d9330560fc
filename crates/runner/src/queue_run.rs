//! What a poller runs: a queue, or a half of one.

use std::any::Any;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flowstone_block::sync::atomic::AtomicBool;
use flowstone_block::{Channel, Layer, NextLook, Origin, QueueContext, QueueDepth, Reactor};

use crate::PollMode;
use crate::counters::QueueCounters;
use crate::cpu_budget::CpuBudget;

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

/// What a queue needs wherever it runs.
#[derive(Clone)]
pub struct QueueSpec {
    /// The top of its disk's stack.
    pub layer: Arc<dyn Layer>,
    /// Which queue of which disk it is.
    pub origin: Origin,
    /// Where it counts.
    pub counters: Arc<QueueCounters>,
    /// How it looks for work.
    pub poll: PollMode,
    /// What the queues of its disk may use of the CPUs, if that is limited.
    pub budget: Option<Arc<CpuBudget>>,
}

/// What a task is told about the thread that it is made on.
pub struct TaskContext<'a> {
    pub spec: &'a QueueSpec,
    pub reactor: &'a Reactor,
    /// Raised when the task is to take nothing more.
    pub leave: Arc<AtomicBool>,
    /// Longer gaps are slept through while only the driver can bring work.
    pub patience: Duration,
}

impl TaskContext<'_> {
    /// A way into its disk for a queue of this depth.
    pub fn channel(&self, depth: u16) -> io::Result<Box<dyn Channel>> {
        let (depth, reactor) = (QueueDepth(depth), self.reactor.clone());
        self.spec.layer.channel(&QueueContext { depth, origin: self.spec.origin, reactor })
    }
}

/// A queue, or a half of one, as it goes from thread to thread: of which kind it is matters to its
/// task alone.
pub type Part = Box<dyn QueuePart>;

/// The task of a part, or the part and why it has none.
pub type Made = Result<Box<dyn QueueRun>, (Part, io::Error)>;

/// See [`Part`].
pub trait QueuePart: Any + Send {
    /// Whether it may be told to go to another thread. A half stays where it is.
    fn is_movable(&self) -> bool {
        false
    }

    /// The NUMA node of its guest's memory, if it is known.
    fn home(&self) -> Option<u32> {
        None
    }

    /// How the time is counted that its task works, in nanoseconds.
    fn work_ns(&self) -> fn(&QueueCounters) -> u64 {
        QueueCounters::work_ns
    }

    /// Makes its task, on the thread that is to run it. It comes back if that fails.
    fn run(self: Box<Self>, context: &TaskContext<'_>) -> Made;

    /// The halves of a queue, first the one that takes.
    fn split(self: Box<Self>) -> Option<[Part; 2]> {
        None
    }

    /// The queue of these halves, of which this is the one that takes; nothing if they have not
    /// come to rest.
    fn join(self: Box<Self>, _back: Part) -> Option<Part> {
        None
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
    fn finish(self: Box<Self>) -> Part;
}
