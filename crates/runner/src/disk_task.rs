//! What a queue does on the thread that has its disk's channel, on one thread or on two: take a
//! batch, submit it, reap, publish, and signal at most once.
//!
//! A task never waits. Its [`Poller`](crate::poller::Poller) gives it turns and sleeps for it. A
//! task that is to leave takes nothing more; when nothing is in flight it is over, and its queue
//! goes to another thread, or back to the monitor.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use flowstone_block::{
    Channel, Completion, NextLook, Origin, Outcome, Request, Signal, Taken, mutant,
};

use crate::batch::{BATCH_FIRST, Batch};
use crate::counters::QueueCounters;
use crate::histogram::{add, nanos};
use crate::queue_run::{Part, QueueRun, TaskContext, Work};
use crate::spin::{FOR_DISK, SpinBudget};

/// Where the requests of a [`DiskTask`] come from and where their completions go: a queue, or the
/// half of one that completes.
pub trait Chains {
    /// Whether it is to take nothing more.
    fn is_leaving(&self) -> bool;

    /// See [`QueueRun::may_rest`].
    fn may_rest(&self) -> bool {
        !self.is_leaving()
    }

    /// Whether there is something to submit.
    fn has_available(&self) -> bool;

    /// Whether something is left that it has to submit before it leaves.
    fn has_undone(&self) -> bool;

    /// Chains with the disk.
    fn in_flight(&self) -> usize;

    /// Whether all that it could take waits for the limit of its disk.
    fn is_held(&self) -> bool {
        false
    }

    /// Begins a batch, if any of it may be taken now. [`close`](Self::close) ends it.
    fn open(&mut self) -> bool {
        true
    }

    /// Ends a batch.
    fn close(&mut self) {}

    /// Takes the next stretch of a batch, and submits its requests.
    fn take(&mut self, disk: &mut Disk, batch: &Batch) -> Taken;

    /// The disk has all that was submitted.
    fn handed_over(&mut self);

    /// A request is done. Returns what has become of its chain, if all of that is.
    fn complete(&mut self, done: Completion) -> Option<Outcome>;

    /// Shows the driver what is done.
    fn publish(&mut self) -> Signal;

    /// Its thread has looked for work that long.
    fn looked(&self, _time: Duration) {}

    /// See [`QueueRun::park`].
    fn park(&mut self) -> bool;

    /// See [`QueueRun::next_look`].
    fn next_look(&mut self) -> NextLook;

    /// See [`QueueRun::unpark`].
    fn unpark(&mut self) -> bool;

    /// As it goes to another thread.
    fn into_part(self) -> Part;
}

/// The disk's channel, and when what it has was submitted.
pub struct Disk {
    channel: Box<dyn Channel>,
    origin: Origin,
    /// When the request with a certain tag was submitted; as long as the greatest tag demands.
    submitted: Vec<Instant>,
}

impl Disk {
    /// Submits a request of a batch.
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

/// See the module. Stays on the thread that makes it.
pub struct DiskTask<C> {
    // Before the queue: dropping the channel waits for requests that use the queue's memory.
    disk: Disk,
    pub chains: C,
    counters: Arc<QueueCounters>,
    /// How long to look for work when only the driver, or the other half, can bring it.
    spin_for_driver: SpinBudget,
    /// How long to look for work when the disk is busy for us.
    spin_for_disk: SpinBudget,
    /// The most chains that the next turn takes.
    batch_max: usize,
    done: Vec<Completion>,
    /// Since its thread had nothing to do, if this task has not had anything since.
    idle: Option<Idle>,
}

#[derive(Clone, Copy)]
struct Idle {
    since: Instant,
    disk_is_busy: bool,
}

impl<C: Chains> DiskTask<C> {
    /// Brings chains and a channel together, on the thread of this context.
    pub fn with_chains(chains: C, channel: Box<dyn Channel>, context: &TaskContext<'_>) -> Self {
        let spec = context.spec;
        Self {
            disk: Disk { channel, origin: spec.origin, submitted: Vec::new() },
            chains,
            counters: Arc::clone(&spec.counters),
            spin_for_driver: SpinBudget::new(spec.poll, context.patience),
            spin_for_disk: SpinBudget::new(spec.poll, FOR_DISK),
            batch_max: BATCH_FIRST,
            done: Vec::new(),
            idle: None,
        }
    }

    /// Submits what there is, and shows what completes meanwhile.
    fn issue(&mut self, bytes_max: u64) -> Option<Work> {
        if !self.chains.has_available() || bytes_max == 0 || !self.chains.open() {
            return None;
        }
        let mut batch = Batch::new(self.batch_max, bytes_max);
        self.batch_max = self.batch_max.saturating_mul(2);
        let mut work = Some(self.submit(&mut batch));
        while !batch.is_over() {
            work = Work::sum(work, self.collect_completed());
            batch.begin_stretch();
            work = Work::sum(work, Some(self.submit(&mut batch)));
        }
        self.chains.close();
        work
    }

    /// Submits the next stretch of a batch.
    fn submit(&mut self, batch: &mut Batch) -> Work {
        let found = batch.begun();
        let taken = self.chains.take(&mut self.disk, batch);
        batch.end_stretch(taken.chains, taken.left);
        if mutant("runner.queue.hands-over-before-the-kick") {
            self.chains.handed_over();
        }
        if batch.is_over() {
            self.disk.channel.kick();
            // No sooner: the disk may have put off what it was given. A death in the kick is the
            // doing of one of them.
            self.chains.handed_over();
        }
        let time = found.elapsed();
        self.counters.submit.record(time);
        add(&self.counters.answered, taken.answered as u64);
        if taken.answered > 0 {
            self.publish();
        }
        Work { found, time }
    }

    fn collect_completed(&mut self) -> Option<Work> {
        let mut done = std::mem::take(&mut self.done);
        self.disk.channel.reap(&mut done);
        let found = (!done.is_empty()).then(Instant::now);
        let work = found.map(|found| {
            done.drain(..).for_each(|completion| self.finish_one(completion, found));
            self.publish();
            let time = found.elapsed();
            self.counters.publish.record(time);
            Work { found, time }
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

    fn spin(&mut self, idle: Idle) -> &mut SpinBudget {
        if idle.disk_is_busy { &mut self.spin_for_disk } else { &mut self.spin_for_driver }
    }
}

impl<C: Chains> QueueRun for DiskTask<C> {
    fn turn(&mut self, bytes_max: u64) -> Option<Work> {
        let submitted = self.issue(bytes_max);
        let completed = self.collect_completed();
        let work = Work::sum(submitted, completed)?;
        self.counters.in_flight.store(self.chains.in_flight() as u64, Ordering::Relaxed);
        if let Some(idle) = self.idle.take() {
            self.spin(idle).learn(work.found - idle.since);
        }
        Some(work)
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
        is_drained && (self.retire() || mutant("runner.queue.leaves-before-its-channel-retires"))
    }

    fn retire(&mut self) -> bool {
        self.disk.channel.retire()
    }

    /// Gaps in which only the driver can bring work and gaps in which the disk is busy are learnt
    /// apart: a driver that answers at once must not be slept through because the disk takes its
    /// time, nor the other way round.
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

    fn finish(self: Box<Self>) -> Part {
        assert!(self.chains.in_flight() == 0, "a queue leaves its thread with requests in flight");
        let Self { disk, chains, .. } = *self;
        drop(disk);
        chains.into_part()
    }
}
