//! One queue at work: take a batch, submit it, reap, publish, and signal at most once.
//!
//! A task never waits. Its [`Poller`](crate::poller::Poller) gives it turns and sleeps for it. A
//! task that is to leave takes nothing more; when nothing is in flight it is over, and its queue
//! goes to another thread, or back to the monitor.

use std::sync::Arc;
use std::time::{Duration, Instant};

use flowstone_block::sync::atomic::{AtomicBool, Ordering};
use flowstone_block::{Channel, Completion, NextLook, Origin, QueueContext, Request, mutant};
use flowstone_frontend::vhost_user::{Signal, VirtQueue};

use crate::PollMode;
use crate::batch::{BATCH_FIRST, Batch};
use crate::counters::QueueCounters;
use crate::histogram::add;
use crate::intake::Intake;
use crate::kicks::Kicks;
use crate::queue_run::{QueuePart, QueueRun, Work, nanos};
use crate::spin::{FOR_DISK, SpinBudget};

/// A queue and what it needs to run. Stays on the thread that makes it.
pub struct QueueTask {
    // Before the queue: dropping the channel waits for requests that use the queue's memory.
    channel: Box<dyn Channel>,
    kicks: Kicks,
    intake: Intake,
    queue: VirtQueue,
    origin: Origin,
    /// Raised from another thread: it is to take nothing more, and to stop or to move when nothing
    /// is in flight.
    leave: Arc<AtomicBool>,
    counters: Arc<QueueCounters>,
    /// How long to look for work when only the driver can bring it.
    spin_for_driver: SpinBudget,
    /// How long to look for work when the disk is busy for us.
    spin_for_disk: SpinBudget,
    /// The most requests that the next turn takes.
    batch_max: usize,
    /// When the request with a certain tag was submitted; as long as the greatest tag demands.
    submitted: Vec<Instant>,
    done: Vec<Completion>,
    /// Since its thread had nothing to do, if this task has not had anything since.
    idle: Option<Idle>,
}

#[derive(Clone, Copy)]
struct Idle {
    since: Instant,
    disk_is_busy: bool,
}

impl QueueTask {
    /// Brings a queue and a channel together, on the thread of the context's reactor. Longer gaps
    /// than `patience` are slept through while only the driver can bring work.
    pub fn new(
        queue: VirtQueue,
        channel: Box<dyn Channel>,
        context: &QueueContext,
        leave: Arc<AtomicBool>,
        counters: Arc<QueueCounters>,
        poll: PollMode,
        patience: Duration,
    ) -> Self {
        queue.refuse_kicks();
        Self {
            channel,
            kicks: Kicks::new(&context.reactor, queue.avail(), Arc::clone(&counters)),
            intake: Intake::default(),
            queue,
            origin: context.origin,
            leave,
            counters,
            spin_for_driver: SpinBudget::new(poll, patience),
            spin_for_disk: SpinBudget::new(poll, FOR_DISK),
            batch_max: BATCH_FIRST,
            submitted: Vec::new(),
            done: Vec::new(),
            idle: None,
        }
    }

    /// The same, of a disk that may have a limit.
    pub fn limited(self, intake: Intake) -> Self {
        Self { intake, ..self }
    }

    /// Whether there is something to submit. A task that is to leave takes nothing but what an
    /// earlier life left undone: the monitor may not keep the log of that any longer. (It is no
    /// more than a queue holds in flight.)
    fn has_available(&self) -> bool {
        let wanted = !self.is_leaving() || self.queue.has_undone();
        wanted && self.queue.has_available()
    }

    /// Whether it takes what an earlier life left undone, and nothing else. That does not wait for
    /// a limit: it has been taken before, and a stop waits for it.
    fn takes_undone(&self) -> bool {
        self.is_leaving() || self.queue.has_undone()
    }

    /// Whether all that it could take waits for the limit of its disk.
    fn is_held(&self) -> bool {
        !self.takes_undone() && self.queue.has_available() && self.intake.is_closed()
    }

    /// Submits what there is, and shows what completes meanwhile.
    fn issue(&mut self, bytes_max: u64) -> Option<Work> {
        if !self.has_available() || bytes_max == 0 {
            return None;
        }
        if !self.takes_undone() && !self.intake.open(self.queue.available()) {
            self.forget_if_broken();
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
        self.intake.close();
        self.forget_if_broken();
        work
    }

    /// Nothing waits in a ring that is broken.
    fn forget_if_broken(&mut self) {
        if self.queue.fault().is_some() {
            self.intake.forget();
        }
    }

    /// Submits the next stretch of a batch.
    fn submit(&mut self, batch: &mut Batch) -> Work {
        let takes_undone = self.takes_undone();
        let Self { channel, queue, intake, origin, leave, submitted, .. } = self;
        let start = batch.begun();
        let submit = |mut request: Box<Request>| {
            let tag = request.tag as usize;
            if tag >= submitted.len() {
                submitted.resize(tag + 1, start);
            }
            submitted[tag] = start;
            request.origin = *origin;
            batch.count(request.op.bytes());
            intake.spend(request.op);
            channel.submit(request);
        };
        let taken = if takes_undone {
            // New ones are left alone.
            queue.take_undone(submit)
        } else {
            let goes_on = || !leave.load(Ordering::Acquire) && batch.goes_on() && intake.goes_on();
            queue.take(batch.chains(), goes_on, submit)
        };
        intake.spend_answered(taken.answered);
        batch.end_stretch(taken.chains, taken.left);
        if mutant("daemon.queue.hands-over-before-the-kick") {
            queue.handed_over();
        }
        if batch.is_over() {
            channel.kick();
            // No sooner: the disk may have put off what it was given. A death in the kick is the
            // doing of one of them.
            queue.handed_over();
        }
        let time = start.elapsed();
        self.counters.submit.record(time);
        add(&self.counters.answered, taken.answered as u64);
        if taken.answered > 0 {
            self.publish();
        }
        Work { found: start, time }
    }

    fn collect_completed(&mut self) -> Option<Work> {
        let mut done = std::mem::take(&mut self.done);
        self.channel.reap(&mut done);
        let found = (!done.is_empty()).then(Instant::now);
        let work = found.map(|found| {
            self.finish(&mut done, found);
            self.publish();
            let time = found.elapsed();
            self.counters.publish.record(time);
            Work { found, time }
        });
        self.done = done;
        work
    }

    fn finish(&mut self, done: &mut Vec<Completion>, now: Instant) {
        for completion in done.drain(..) {
            let tag = completion.request.tag as usize;
            let op = completion.request.op;
            self.counters.came_back(op, now - self.submitted[tag]);
            if let Some(outcome) = self.queue.complete(completion) {
                self.counters.completed(op.kind(), outcome);
            }
        }
    }

    fn publish(&mut self) {
        if self.queue.publish() == Signal::Sent {
            add(&self.counters.calls, 1);
        }
    }

    fn spin(&mut self, idle: Idle) -> &mut SpinBudget {
        if idle.disk_is_busy { &mut self.spin_for_disk } else { &mut self.spin_for_driver }
    }
}

impl QueueRun for QueueTask {
    fn turn(&mut self, bytes_max: u64) -> Option<Work> {
        let submitted = self.issue(bytes_max);
        let completed = self.collect_completed();
        let work = Work::sum(submitted, completed)?;
        if let Some(idle) = self.idle.take() {
            self.spin(idle).learn(work.found - idle.since);
        }
        Some(work)
    }

    fn is_leaving(&self) -> bool {
        self.leave.load(Ordering::Acquire)
    }

    fn is_over(&mut self) -> bool {
        let is_drained =
            self.is_leaving() && self.queue.in_flight() == 0 && !self.queue.has_undone();
        is_drained && (self.retire() || mutant("daemon.queue.leaves-before-its-channel-retires"))
    }

    fn retire(&mut self) -> bool {
        self.channel.retire()
    }

    /// Gaps in which only the driver can bring work and gaps in which the disk is busy are learnt
    /// apart: a driver that answers at once must not be slept through because the disk takes its
    /// time, nor the other way round.
    fn begin_idle(&mut self, now: Instant) -> Duration {
        self.batch_max = BATCH_FIRST;
        let disk_is_busy = self.queue.in_flight() > 0 || self.is_held();
        let idle = *self.idle.get_or_insert(Idle { since: now, disk_is_busy });
        self.spin(idle).budget()
    }

    fn count_looking(&self, time: Duration) {
        add(&self.counters.spin_ns, nanos(time));
        self.kicks.looked(time, self.queue.avail());
    }

    fn park(&mut self) -> bool {
        if self.is_held() {
            // Notifications bring nothing more.
            return false;
        }
        // A notification from before would keep the next one from being noticed.
        self.kicks.take(self.queue.avail());
        if self.is_leaving() {
            return self.is_over() || self.has_available();
        }
        self.queue.ask_for_kicks()
    }

    fn next_look(&mut self) -> NextLook {
        let held = !self.takes_undone() && self.queue.has_available();
        let admitted = if held { self.intake.next_look() } else { NextLook::OnWake };
        NextLook::now_if(self.is_over()).min(admitted).min(self.channel.next_look())
    }

    fn unpark(&mut self) -> bool {
        self.queue.refuse_kicks();
        // One that is held was not parked: notifications bring it nothing, and one that is not
        // taken is the last.
        !self.is_held() && self.kicks.take(self.queue.avail())
    }

    fn count_sleep(&self, time: Duration) {
        add(&self.counters.sleeps, 1);
        add(&self.counters.sleep_ns, nanos(time));
    }

    fn finish(self: Box<Self>) -> QueuePart {
        assert!(self.queue.in_flight() == 0, "a queue leaves its thread with requests in flight");
        let Self { channel, queue, .. } = *self;
        drop(channel);
        QueuePart::Whole(Box::new(queue))
    }
}
