//! A task, the unit that a poller runs: a queue, or a half of one, on a thread. A part is the same
//! on its way to a thread.

mod batch;
mod disk;
mod entrance;

use std::any::Any;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flowstone_block::sync::atomic::AtomicBool;
use flowstone_block::{Channel, Layer, NextLook, Origin, QueueContext, QueueDepth, Reactor};

use crate::PollMode;
use crate::counters::QueueCounters;
use crate::cpu_budget::CpuBudget;

pub use self::batch::{Batch, CHAIN_BYTES, TURN};
pub use self::disk::{Chains, Disk, DiskTask};
pub use self::entrance::Entrance;

/// The work of one turn.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Time at which the first of it was found.
    pub found: Instant,
    /// Time it took.
    pub time: Duration,
    /// Bytes submitted, and [`CHAIN_BYTES`](crate::task::CHAIN_BYTES) for each chain taken or
    /// completed.
    pub bytes: u64,
}

impl Work {
    /// Combines two consecutive pieces of work.
    pub fn sum(first: Option<Self>, second: Option<Self>) -> Option<Self> {
        match (first, second) {
            (Some(one), Some(other)) => {
                let (time, bytes) = (one.time + other.time, one.bytes + other.bytes);
                Some(Self { time, bytes, ..one })
            }
            (one, other) => one.or(other),
        }
    }
}

/// Settings of a queue that are independent of its thread.
#[derive(Clone)]
pub struct QueueSpec {
    /// Top of its disk's stack.
    pub layer: Arc<dyn Layer>,
    /// Its disk and queue number.
    pub origin: Origin,
    /// Its counters.
    pub counters: Arc<QueueCounters>,
    /// Its polling mode.
    pub poll: PollMode,
    /// CPU budget of its disk's queues, if limited.
    pub budget: Option<Arc<CpuBudget>>,
    /// Name of its first thread, if it has threads of its own.
    pub name: String,
    /// CPUs that its threads are pinned to, if configured: then it runs on no shared poller.
    /// Otherwise those near the guest's memory.
    pub cpus: [Option<usize>; 2],
    /// NUMA node of its guest's memory, if that matters.
    pub home: Option<u32>,
}

/// The thread that a task is made on.
pub struct TaskContext<'a> {
    pub spec: &'a QueueSpec,
    pub reactor: &'a Reactor,
    /// Set when the task is to take nothing more.
    pub leave: Arc<AtomicBool>,
    /// Gap longer than which the task sleeps when only the driver can bring work.
    pub patience: Duration,
}

impl TaskContext<'_> {
    /// Opens a channel to its disk for a queue of this depth.
    pub fn channel(&self, depth: u16) -> io::Result<Box<dyn Channel>> {
        let (depth, reactor) = (QueueDepth(depth), self.reactor.clone());
        self.spec.layer.channel(&QueueContext { depth, origin: self.spec.origin, reactor })
    }
}

/// A part that could not be run.
pub struct NotRun {
    /// The reason.
    pub error: io::Error,
    /// The part, unless it was lost when the thread that was to run it died.
    pub part: Option<Box<dyn Part>>,
}

#[cfg(test)]
impl std::fmt::Debug for NotRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

/// A queue, or a half of one, as it passes between threads; only its task knows its kind.
pub trait Part: Any + Send {
    /// Returns whether it may be moved to another thread. A half is not movable.
    fn is_movable(&self) -> bool {
        false
    }

    /// Returns the NUMA node of its guest's memory, if known.
    fn home(&self) -> Option<u32> {
        None
    }

    /// Returns the function that reads its task's time in turns with work, in nanoseconds.
    fn work_ns(&self) -> fn(&QueueCounters) -> u64 {
        QueueCounters::work_ns
    }

    /// Makes its task, on the thread that is to run it. Returns the part on failure.
    fn run(self: Box<Self>, context: &TaskContext<'_>) -> Result<Box<dyn Task>, NotRun>;

    /// Splits a whole queue into its halves, the front first.
    fn split(self: Box<Self>) -> Option<[Box<dyn Part>; 2]> {
        None
    }

    /// Joins this front half with its back half; `None` if chains are still in flight between them.
    fn join(self: Box<Self>, _back: Box<dyn Part>) -> Option<Box<dyn Part>> {
        None
    }
}

/// A part at work on its thread. It never blocks.
pub trait Task {
    /// First half of a turn: submits requests of about `bytes_max` bytes at most, none if that is
    /// 0: where a submission is a copy, other queues of the thread wait for it. Returns the work
    /// done, if any.
    fn issue(&mut self, bytes_max: u64) -> Option<Work>;

    /// Second half: publishes completions. Returns the work done, if any.
    fn complete(&mut self) -> Option<Work> {
        None
    }

    /// A turn: both halves.
    fn turn(&mut self, bytes_max: u64) -> Option<Work> {
        let issued = self.issue(bytes_max);
        Work::sum(issued, self.complete())
    }

    /// Accounts the time that its thread was in the kernel for the work since the last call.
    fn entered(&mut self, _time: Duration) {}

    /// Returns whether it is to take nothing more.
    fn is_leaving(&self) -> bool;

    /// Returns whether it may rest while its disk has used its CPU budget: not if a monitor, or its
    /// other half, waits for it to end.
    fn may_rest(&self) -> bool {
        !self.is_leaving()
    }

    /// Returns whether it is to leave and has nothing left to do, so that ending it does not block.
    fn is_over(&mut self) -> bool;

    /// Retires the channel of a task that has panicked, and does nothing else. Returns whether
    /// nothing is in flight at the disk any more, so that a drop does not block.
    fn retire(&mut self) -> bool {
        true
    }

    /// Called when its thread has nothing to do: returns how long polling is worth it.
    fn begin_idle(&mut self, now: Instant) -> Duration;

    /// Accounts `time` that its thread has spent polling.
    fn count_looking(&self, time: Duration);

    /// Called before its thread sleeps: arranges to be woken for new work. Returns whether there is
    /// already something to do; in any case, [`unpark`](Self::unpark) follows.
    fn park(&mut self) -> bool;

    /// Returns when it has to be visited again; part of the last look before a sleep.
    fn next_look(&mut self) -> NextLook;

    /// As [`next_look`](Self::next_look), for the completions of its disk only.
    fn next_completion(&mut self) -> NextLook {
        NextLook::OnWake
    }

    /// Called when its thread is awake. Returns whether the driver has notified it.
    fn unpark(&mut self) -> bool;

    /// Accounts `time` that its thread has slept.
    fn count_sleep(&self, time: Duration);

    /// Ends a task that is over. Returns its part.
    fn finish(self: Box<Self>) -> Box<dyn Part>;
}
