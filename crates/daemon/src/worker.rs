//! The loop of one queue: take a batch, submit it, reap, publish, and signal at most once.
//!
//! Everything a queue needs is owned by its thread. Other threads reach it through the stop flag
//! and read its counters.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flowstone_block::{Channel, Completion, Doorbells, Request};
use flowstone_frontend::vhost_user::{Signal, VirtQueue};
use rustix::event::{EventfdFlags, eventfd};

use crate::PollMode;
use crate::counters::QueueCounters;
use crate::histogram::add;
use crate::spin::SpinBudget;

/// Requests that the first submission after a pause carries; each following one may carry twice as
/// many. The disk gets something to do early, and long batches still cost few system calls.
const BATCH_FIRST: u16 = 4;

/// Turns between two looks at the clock while looking for work.
const TURNS_PER_LOOK: u32 = 16;

/// Tells a worker to stop, and wakes it up to hear it.
pub struct StopFlag {
    raised: AtomicBool,
    event: OwnedFd,
}

impl StopFlag {
    /// Not raised.
    pub fn new() -> std::io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { raised: AtomicBool::new(false), event })
    }

    /// Raises it. It stays raised.
    pub fn raise(&self) {
        self.raised.store(true, Ordering::Release);
        // The counter cannot be full after one write.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }
}

/// A queue and what it needs to run.
pub struct Worker {
    // Before the queue: dropping the channel waits for requests that use the queue's memory.
    channel: Box<dyn Channel>,
    queue: VirtQueue,
    stop: Arc<StopFlag>,
    counters: Arc<QueueCounters>,
    /// How long to look for work when only the driver can bring it.
    spin_for_driver: SpinBudget,
    /// How long to look for work when the disk is busy for us.
    spin_for_disk: SpinBudget,
    /// The most requests that the next submission carries.
    batch_max: u16,
    /// When the request with a certain tag was submitted.
    submitted: Box<[Instant]>,
    done: Vec<Completion>,
}

impl Worker {
    /// Brings a queue and a channel together.
    pub fn new(
        queue: VirtQueue,
        channel: Box<dyn Channel>,
        stop: Arc<StopFlag>,
        counters: Arc<QueueCounters>,
        poll: PollMode,
    ) -> Self {
        let size = usize::from(queue.size());
        Self {
            channel,
            queue,
            stop,
            counters,
            spin_for_driver: SpinBudget::new(poll),
            spin_for_disk: SpinBudget::new(poll),
            batch_max: BATCH_FIRST,
            submitted: vec![Instant::now(); size].into_boxed_slice(),
            done: Vec::with_capacity(size),
        }
    }

    /// Runs until stopped and until nothing is in flight; returns the position of the next avail
    /// entry.
    pub fn run(mut self) -> u16 {
        self.queue.refuse_kicks();
        while !self.stop.is_raised() {
            if self.turn().is_none() {
                self.idle();
            }
        }
        self.drain();
        self.queue.next_avail()
    }

    /// One pass over ring and channel. Returns when it found work, if it did.
    fn turn(&mut self) -> Option<Instant> {
        let submitted = self.submit_available();
        let completed = self.collect_completed();
        submitted.or(completed)
    }

    fn submit_available(&mut self) -> Option<Instant> {
        if !self.queue.has_available() {
            return None;
        }
        let Self { channel, queue, stop, submitted, batch_max, .. } = self;
        let start = Instant::now();
        let submit = |request: Box<Request>| {
            submitted[request.tag as usize] = start;
            channel.submit(request);
        };
        let taken = if stop.is_raised() {
            // New ones are left alone.
            queue.take_undone(submit)
        } else {
            queue.take(*batch_max, || !stop.is_raised(), submit)
        };
        channel.kick();
        queue.handed_over();
        *batch_max = batch_max.saturating_mul(2);
        self.counters.submit.record(start.elapsed());
        add(&self.counters.answered, taken.answered as u64);
        if taken.answered > 0 {
            self.publish();
        }
        Some(start)
    }

    fn collect_completed(&mut self) -> Option<Instant> {
        let mut done = std::mem::take(&mut self.done);
        self.channel.reap(&mut done);
        let found = (!done.is_empty()).then(Instant::now);
        if let Some(now) = found {
            self.finish(&mut done, now);
            self.publish();
            self.counters.publish.record(now.elapsed());
        }
        self.done = done;
        found
    }

    fn finish(&mut self, done: &mut Vec<Completion>, now: Instant) {
        for completion in done.drain(..) {
            let tag = completion.request.tag as usize;
            let op = completion.request.op;
            self.counters.came_back(op, now - self.submitted[tag]);
            if let Some(outcome) = self.queue.complete(completion) {
                self.counters.completed(op.kind(), outcome.is_err());
            }
        }
    }

    fn publish(&mut self) {
        if self.queue.publish() == Signal::Sent {
            add(&self.counters.calls, 1);
        }
    }

    /// Looks for work for a while, then sleeps until there is some. A wake-up for nothing is part
    /// of the gap between work, and looking again would not pay.
    fn idle(&mut self) {
        let start = Instant::now();
        self.batch_max = BATCH_FIRST;
        let disk_is_busy = self.queue.in_flight() > 0;
        let budget = self.spin(disk_is_busy).budget();
        let mut found = self.look(start, budget);
        while found.is_none() && !self.stop.is_raised() {
            found = self.sleep();
        }
        if let Some(found) = found {
            self.spin(disk_is_busy).learn(found - start);
        }
    }

    /// A driver that answers at once must not be slept through because the disk takes its time,
    /// nor the other way round.
    fn spin(&mut self, disk_is_busy: bool) -> &mut SpinBudget {
        if disk_is_busy { &mut self.spin_for_disk } else { &mut self.spin_for_driver }
    }

    /// Returns when it found work, if it did. What was found is done by then, and is not counted
    /// as looking.
    fn look(&mut self, start: Instant, budget: Duration) -> Option<Instant> {
        if budget.is_zero() {
            return None;
        }
        loop {
            let found = self.turns();
            let now = found.unwrap_or_else(Instant::now);
            if found.is_some() || self.stop.is_raised() || now - start > budget {
                add(&self.counters.spin_ns, nanos(now - start));
                return found;
            }
            // The threads that do the disk's work may need this core: the kernel's threads that
            // sync and complete, a maintenance worker, other queues.
            std::thread::yield_now();
        }
    }

    fn turns(&mut self) -> Option<Instant> {
        (0..TURNS_PER_LOOK).find_map(|_| {
            std::hint::spin_loop();
            self.turn()
        })
    }

    /// Returns when there was work; `None` if it woke up for nothing.
    fn sleep(&mut self) -> Option<Instant> {
        let from = Instant::now();
        if self.queue.ask_for_kicks() {
            // A request came before the driver saw that we want to be told.
            self.queue.refuse_kicks();
            return Some(from);
        }
        add(&self.counters.sleeps, 1);
        let doorbells = [self.queue.kick_event(), self.stop.event.as_fd()];
        self.channel.sleep(&Doorbells { fds: &doorbells, deadline: None });
        let woke = Instant::now();
        add(&self.counters.sleep_ns, nanos(woke - from));
        self.queue.refuse_kicks();
        let completed = self.collect_completed().is_some();
        let available = self.queue.has_available();
        if available || !completed {
            // The driver's notification is what woke us, or one from before that we had no need
            // of: unread, it would end every sleep to come.
            add(&self.counters.kicks, self.queue.clear_kicks());
        }
        (completed || available).then_some(woke)
    }

    /// Waits for what is in flight, without taking more than what an earlier life left undone: the
    /// monitor may not keep the log of it any longer. (It is no more than a queue holds in flight.)
    fn drain(&mut self) {
        loop {
            // All of it before the first sleep: otherwise each waits for the one before.
            let submitted = self.queue.has_undone() && self.submit_available().is_some();
            let completed = self.collect_completed().is_some();
            if self.queue.in_flight() > 0 {
                if !completed && !submitted {
                    self.channel.sleep(&Doorbells { fds: &[], deadline: None });
                }
            } else if !self.queue.has_undone() {
                return;
            }
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
