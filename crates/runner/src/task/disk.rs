//! The part of a queue that runs on the thread with the disk's channel, for fused and split queues:
//! takes a batch, submits it, reaps, publishes, and signals at most once.
//!
//! A task never blocks. Its [`Poller`](crate::poller::Poller) gives it turns and sleeps for it. A
//! task that is to leave takes nothing more; once nothing is in flight it is over, and its queue
//! goes to another thread, or back to the monitor.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use flowstone_block::{
    Channel, Completion, NextLook, Origin, Outcome, Reactor, Request, Signal, Taken, mutated,
};

use super::batch::{BATCH_FIRST, Batch, CHAIN_BYTES};
use super::{Part, Task, TaskContext, Work};
use crate::counters::QueueCounters;
use crate::histogram::{add, nanos};
use crate::spin::{FOR_DISK, SpinBudget};

/// Source of the requests and sink of the completions of a [`DiskTask`]: a whole queue, or a back
/// half.
pub trait Chains {
    /// Returns whether nothing more is to be taken.
    fn is_leaving(&self) -> bool;

    /// See [`Task::may_rest`].
    fn may_rest(&self) -> bool {
        !self.is_leaving()
    }

    /// Returns whether there are chains to submit.
    fn has_available(&self) -> bool;

    /// Returns whether chains that an earlier daemon left undone, or that were handed over, must be
    /// submitted before the task leaves.
    fn has_undone(&self) -> bool;

    /// Number of chains in flight.
    fn in_flight(&self) -> usize;

    /// Returns whether all available chains wait for the limit of their disk.
    fn is_held(&self) -> bool {
        false
    }

    /// Begins a batch, unless the limits forbid it for now. [`close`](Self::close) ends it.
    fn open(&mut self) -> bool {
        true
    }

    /// Ends a batch.
    fn close(&mut self) {}

    /// Takes the next stretch of a batch and submits its requests.
    fn take(&mut self, disk: &mut Disk, batch: &Batch) -> Taken;

    /// Called when the disk has everything that was submitted.
    fn handed_over(&mut self);

    /// Records a completed request. Returns the outcome of its chain if that is complete.
    fn complete(&mut self, done: Completion) -> Option<Outcome>;

    /// Publishes completions to the driver.
    fn publish(&mut self) -> Signal;

    /// Accounts `_time` spent polling for work.
    fn looked(&self, _time: Duration) {}

    /// See [`Task::park`].
    fn park(&mut self) -> bool;

    /// See [`Task::next_look`].
    fn next_look(&mut self) -> NextLook;

    /// See [`Task::unpark`].
    fn unpark(&mut self) -> bool;

    /// Turns this into a part for another thread.
    fn into_part(self) -> Box<dyn Part>;
}

/// The disk's channel, with the submission times of what is in flight.
pub struct Disk {
    channel: Box<dyn Channel>,
    origin: Origin,
    /// Submission time by tag; grows to the greatest tag seen.
    submitted: Vec<Instant>,
    reactor: Reactor,
}

impl Disk {
    /// Submits a request of a batch and charges the batch.
    #[inline]
    pub fn submit(&mut self, mut request: Box<Request>, batch: &Batch) {
        let (tag, now) = (request.tag as usize, batch.begun());
        if tag >= self.submitted.len() {
            self.submitted.resize(tag + 1, now);
        }
        self.submitted[tag] = now;
        request.origin = self.origin;
        batch.count(request.op.bytes());
        self.channel.submit(request);
    }
}

/// A queue or back half with its channel. Stays on the thread that makes it.
pub struct DiskTask<C> {
    // Before the queue: dropping the channel waits for requests that use the queue's memory.
    disk: Disk,
    pub chains: C,
    counters: Arc<QueueCounters>,
    /// Time to poll when only the driver, or the other half, can bring work.
    spin_for_driver: SpinBudget,
    /// Time to poll while requests are in flight at the disk.
    spin_for_disk: SpinBudget,
    /// Chains that the next turn may take.
    batch_max: usize,
    done: Vec<Completion>,
    /// Time in both halves of this turn, until that in the kernel is known.
    submitting: Duration,
    publishing: Duration,
    /// The current idle period of its thread, unless this task has had work since it began.
    idle: Option<Idle>,
}

#[derive(Clone, Copy)]
struct Idle {
    since: Instant,
    disk_is_busy: bool,
}

impl<C: Chains> DiskTask<C> {
    /// Joins chains and a channel to a task, on the thread of `context`.
    pub fn new(chains: C, channel: Box<dyn Channel>, context: &TaskContext<'_>) -> Self {
        let spec = context.spec;
        Self {
            disk: Disk {
                channel,
                origin: spec.origin,
                submitted: Vec::new(),
                reactor: context.reactor.clone(),
            },
            chains,
            counters: Arc::clone(&spec.counters),
            spin_for_driver: SpinBudget::new(spec.poll, context.patience),
            spin_for_disk: SpinBudget::new(spec.poll, FOR_DISK),
            batch_max: BATCH_FIRST,
            done: Vec::new(),
            submitting: Duration::ZERO,
            publishing: Duration::ZERO,
            idle: None,
        }
    }

    /// Submits a batch, and publishes completions between its stretches.
    fn submit_batch(&mut self, bytes_max: u64) -> Option<Work> {
        if !self.chains.has_available() || bytes_max == 0 || !self.chains.open() {
            return None;
        }
        let mut batch = Batch::new(self.batch_max, bytes_max);
        self.batch_max = self.batch_max.saturating_mul(2);
        let mut work = Some(self.submit(&mut batch));
        while !batch.is_over() {
            // The disk works meanwhile, and other queues wait long enough for this one.
            self.disk.reactor.enter();
            work = Work::sum(work, self.collect_completed());
            batch.begin_stretch();
            work = Work::sum(work, Some(self.submit(&mut batch)));
        }
        self.chains.close();
        work
    }

    /// Submits the next stretch of a batch.
    fn submit(&mut self, batch: &mut Batch) -> Work {
        let (found, before) = (batch.begun(), batch.bytes());
        let taken = self.chains.take(&mut self.disk, batch);
        batch.end_stretch(taken.chains, taken.left);
        let hands_over_first = mutated("runner.queue.hands-over-before-the-kick", false, true);
        if hands_over_first {
            self.chains.handed_over();
        }
        if batch.is_over() {
            self.disk.channel.kick();
            // No sooner: the disk may have deferred what it was given. If the daemon dies in the
            // kick, one of these requests is the cause. (The kernel may have them later, with those
            // of other queues; the daemon does not die of that.)
            self.chains.handed_over();
        }
        let time = found.elapsed();
        self.submitting += time;
        add(&self.counters.answered, taken.answered as u64);
        if taken.answered > 0 {
            self.publish();
        }
        Work { found, time, bytes: batch.bytes() - before }
    }

    fn collect_completed(&mut self) -> Option<Work> {
        let mut done = std::mem::take(&mut self.done);
        self.disk.channel.reap(&mut done);
        let found = (!done.is_empty()).then(Instant::now);
        let work = found.map(|found| {
            let bytes = done.len() as u64 * CHAIN_BYTES;
            done.drain(..).for_each(|completion| self.finish_one(completion, found));
            self.publish();
            let time = found.elapsed();
            self.publishing += time;
            Work { found, time, bytes }
        });
        self.done = done;
        work
    }

    fn finish_one(&mut self, completion: Completion, now: Instant) {
        let op = completion.request.op;
        let since = self.disk.submitted[completion.request.tag as usize];
        self.counters.came_back(op, now - since);
        if let Some(outcome) = self.chains.complete(completion) {
            self.counters.completed(op.kind(), outcome);
        }
    }

    fn publish(&mut self) {
        if self.chains.publish() == Signal::Sent {
            add(&self.counters.calls, 1);
        }
    }

    /// Accounts work that has ended an idle period.
    fn worked(&mut self, work: Work) {
        self.counters.in_flight.store(self.chains.in_flight() as u64, Ordering::Relaxed);
        if let Some(idle) = self.idle.take() {
            self.spin(idle).learn(work.found - idle.since);
        }
    }

    fn spin(&mut self, idle: Idle) -> &mut SpinBudget {
        if idle.disk_is_busy { &mut self.spin_for_disk } else { &mut self.spin_for_driver }
    }
}

impl<C: Chains> Task for DiskTask<C> {
    fn issue(&mut self, bytes_max: u64) -> Option<Work> {
        let work = self.submit_batch(bytes_max)?;
        self.worked(work);
        Some(work)
    }

    fn complete(&mut self) -> Option<Work> {
        let work = self.collect_completed()?;
        self.worked(work);
        Some(work)
    }

    fn entered(&mut self, time: Duration) {
        let submitting = std::mem::take(&mut self.submitting);
        let publishing = std::mem::take(&mut self.publishing);
        let has_submitted = !submitting.is_zero();
        if has_submitted {
            self.counters.submit.record(submitting + time);
        }
        if !publishing.is_zero() {
            let time = if has_submitted { Duration::ZERO } else { time };
            self.counters.publish.record(publishing + time);
        }
    }

    fn is_leaving(&self) -> bool {
        self.chains.is_leaving()
    }

    fn may_rest(&self) -> bool {
        self.chains.may_rest()
    }

    fn is_over(&mut self) -> bool {
        let chains = &self.chains;
        let is_drained = chains.is_leaving() && chains.in_flight() == 0 && !chains.has_undone();
        if !is_drained {
            return false;
        }
        let retired = self.retire();
        mutated("runner.queue.leaves-before-its-channel-retires", retired, true)
    }

    fn retire(&mut self) -> bool {
        self.disk.channel.retire()
    }

    /// Gaps in which only the driver can bring work and gaps in which the disk is busy are averaged
    /// separately: a slow disk must not make the thread sleep through a driver that answers at
    /// once, nor the other way round.
    fn begin_idle(&mut self, now: Instant) -> Duration {
        self.batch_max = BATCH_FIRST;
        let disk_is_busy = self.chains.in_flight() > 0 || self.chains.is_held();
        let idle = *self.idle.get_or_insert(Idle { since: now, disk_is_busy });
        self.spin(idle).budget()
    }

    fn count_looking(&self, time: Duration) {
        add(&self.counters.spin_ns, nanos(time));
        self.chains.looked(time);
    }

    fn park(&mut self) -> bool {
        self.is_over() || self.chains.park()
    }

    fn next_look(&mut self) -> NextLook {
        let over = NextLook::now_if(self.is_over());
        over.min(self.chains.next_look()).min(self.disk.channel.next_look())
    }

    fn next_completion(&mut self) -> NextLook {
        self.disk.channel.next_look()
    }

    fn unpark(&mut self) -> bool {
        self.chains.unpark()
    }

    fn count_sleep(&self, time: Duration) {
        add(&self.counters.sleeps, 1);
        add(&self.counters.sleep_ns, nanos(time));
    }

    fn finish(self: Box<Self>) -> Box<dyn Part> {
        assert!(self.chains.in_flight() == 0, "a queue leaves its thread with requests in flight");
        let Self { disk, chains, .. } = *self;
        drop(disk);
        chains.into_part()
    }
}
