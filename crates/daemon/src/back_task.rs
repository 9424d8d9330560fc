//! The thread that has the disk's channel: submits what is handed over, waits for completions,
//! publishes them, and interrupts the driver.

use std::sync::Arc;
use std::time::{Duration, Instant};

use flowstone_block::sync::atomic::{AtomicBool, Ordering};
use flowstone_block::{Channel, Completion, NextLook, Origin, QueueContext, Request, mutant};
use flowstone_frontend::vhost_user::{Finished, Signal, Start, Work as Asked};

use crate::PollMode;
use crate::batch::{BATCH_FIRST, Batch};
use crate::counters::QueueCounters;
use crate::halves::{Back, Return};
use crate::histogram::add;
use crate::queue_run::{QueuePart, QueueRun, Work, nanos};
use crate::spin::{FOR_DISK, SpinBudget};

/// See the module. Stays on the thread that makes it.
pub struct BackTask {
    // Before the queue: dropping the channel waits for requests that use the queue's memory.
    channel: Box<dyn Channel>,
    half: Back,
    origin: Origin,
    leave: Arc<AtomicBool>,
    counters: Arc<QueueCounters>,
    /// How long to look for work when only the other thread can bring it.
    spin_for_front: SpinBudget,
    /// How long to look for work when the disk is busy for us.
    spin_for_disk: SpinBudget,
    /// The most chains that the next turn takes.
    batch_max: usize,
    /// Chains with the disk.
    in_flight: usize,
    /// When the request with a certain tag was submitted.
    submitted: Box<[Instant]>,
    done: Vec<Completion>,
    /// Since its thread had nothing to do, if this task has not had anything since; and whether the
    /// disk was busy.
    idle: Option<(Instant, bool)>,
}

impl BackTask {
    /// Brings a half and a channel together, on the thread of the context's reactor.
    pub fn new(
        half: Back,
        channel: Box<dyn Channel>,
        context: &QueueContext,
        leave: Arc<AtomicBool>,
        counters: Arc<QueueCounters>,
        poll: PollMode,
        patience: Duration,
    ) -> Self {
        let size = usize::from(half.size);
        let _ = half.link.0.back.set(context.reactor.waker());
        Self {
            channel,
            half,
            origin: context.origin,
            leave,
            counters,
            spin_for_front: SpinBudget::new(poll, patience),
            spin_for_disk: SpinBudget::new(poll, FOR_DISK),
            batch_max: BATCH_FIRST,
            in_flight: 0,
            submitted: vec![Instant::now(); size].into_boxed_slice(),
            done: Vec::with_capacity(size),
            idle: None,
        }
    }

    /// Submits what has been handed over, and shows what completes meanwhile.
    fn issue(&mut self, bytes_max: u64) -> Option<Work> {
        if self.half.starts.is_empty() || bytes_max == 0 {
            return None;
        }
        let mut batch = Batch::new(self.batch_max, bytes_max);
        self.batch_max = self.batch_max.saturating_mul(2);
        let mut work = Some(self.submit_stretch(&mut batch));
        while !batch.is_over() {
            work = Work::sum(work, self.collect_completed());
            batch.begin_stretch();
            work = Work::sum(work, Some(self.submit_stretch(&mut batch)));
        }
        work
    }

    fn submit_stretch(&mut self, batch: &mut Batch) -> Work {
        let found = batch.begun();
        let handed_over = self.half.starts.slots();
        let (mut chains, mut answered) = (0, 0);
        while chains < batch.chains().min(handed_over) && batch.goes_on() {
            let Ok(start) = self.half.starts.pop() else { break };
            chains += 1;
            match self.begin(start, found) {
                Some(bytes) => batch.count(bytes),
                None => answered += 1,
            }
        }
        batch.end_stretch(chains, handed_over - chains);
        if mutant("daemon.back.hands-over-before-the-kick") {
            self.half.used.handed_over();
        }
        if batch.is_over() {
            self.channel.kick();
            // No sooner: the disk may have put off what it was given. A death in the kick is the
            // doing of one of them.
            self.half.used.handed_over();
        }
        let time = found.elapsed();
        self.counters.submit.record(time);
        add(&self.counters.answered, answered);
        if answered > 0 {
            self.publish();
        }
        Work { found, time }
    }

    /// Submits a chain; returns how many bytes it moves, or nothing if it needs no disk.
    fn begin(&mut self, start: Start, now: Instant) -> Option<u64> {
        let Start { head, status, work } = start;
        self.half.used.begin(head, status, work.parts());
        match work {
            Asked::Submit(request) => {
                self.in_flight += 1;
                Some(self.submit(request, now))
            }
            Asked::Ranges(parts) => {
                self.in_flight += 1;
                Some(parts.into_iter().map(|part| self.submit(part, now)).sum())
            }
            Asked::Answer(status, bytes) => {
                self.half.used.answer(head, status, bytes);
                self.give_back(head, None);
                None
            }
        }
    }

    fn submit(&mut self, mut request: Box<Request>, now: Instant) -> u64 {
        self.submitted[request.tag as usize] = now;
        request.origin = self.origin;
        let bytes = request.op.bytes();
        self.channel.submit(request);
        bytes
    }

    fn collect_completed(&mut self) -> Option<Work> {
        let mut done = std::mem::take(&mut self.done);
        self.channel.reap(&mut done);
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
        let since = self.submitted[completion.request.tag as usize];
        self.counters.came_back(op, now - since);
        if let Some(Finished { head, request, outcome }) = self.half.used.complete(completion) {
            self.counters.completed(op.kind(), outcome);
            self.in_flight -= 1;
            self.give_back(head, Some(request));
        }
    }

    /// Before it is published: when the driver offers the chain again, the other thread has it.
    fn give_back(&mut self, head: u16, request: Option<Box<Request>>) {
        let done = Return { head, request, used: self.half.used.next_used() };
        if mutant("daemon.back.gives-back-after-publishing") {
            self.half.used.publish();
        }
        assert!(self.half.returns.push(done).is_ok(), "there is room for every head");
    }

    fn publish(&mut self) {
        if self.half.used.publish() == Signal::Sent {
            add(&self.counters.calls, 1);
        }
        self.half.link.0.set_cleared(self.half.used.next_used());
        self.half.link.0.wake_front();
    }
}

impl QueueRun for BackTask {
    fn turn(&mut self, bytes_max: u64) -> Option<Work> {
        let submitted = self.issue(bytes_max);
        let completed = self.collect_completed();
        let work = Work::sum(submitted, completed)?;
        if let Some((since, disk_is_busy)) = self.idle.take() {
            let spin =
                if disk_is_busy { &mut self.spin_for_disk } else { &mut self.spin_for_front };
            spin.learn(work.found - since);
        }
        Some(work)
    }

    fn is_leaving(&self) -> bool {
        self.leave.load(Ordering::Acquire)
    }

    fn may_rest(&self) -> bool {
        let leaves = self.is_leaving() || self.half.link.0.front_leaves();
        !leaves || mutant("daemon.back.rests-while-it-is-to-stop")
    }

    fn is_over(&mut self) -> bool {
        let is_drained = self.is_leaving() && self.in_flight == 0 && self.half.starts.is_empty();
        is_drained && (self.retire() || mutant("daemon.back.leaves-before-its-channel-retires"))
    }

    fn retire(&mut self) -> bool {
        self.channel.retire()
    }

    fn begin_idle(&mut self, now: Instant) -> Duration {
        self.batch_max = BATCH_FIRST;
        let (_, disk_is_busy) = *self.idle.get_or_insert((now, self.in_flight > 0));
        if disk_is_busy { self.spin_for_disk.budget() } else { self.spin_for_front.budget() }
    }

    fn count_looking(&self, time: Duration) {
        add(&self.counters.spin_ns, nanos(time));
    }

    fn park(&mut self) -> bool {
        self.is_over() || !self.half.starts.is_empty()
    }

    fn next_look(&mut self) -> NextLook {
        let has_work = self.is_over() || !self.half.starts.is_empty();
        NextLook::now_if(has_work).min(self.channel.next_look())
    }

    fn unpark(&mut self) -> bool {
        !self.half.starts.is_empty()
    }

    fn count_sleep(&self, time: Duration) {
        add(&self.counters.sleeps, 1);
        add(&self.counters.sleep_ns, nanos(time));
    }

    fn finish(self: Box<Self>) -> QueuePart {
        drop(self.channel);
        QueuePart::Back(Box::new(self.half))
    }
}
