//! The loop of one queue: take a batch, submit it, reap, publish, and signal at most once.
//!
//! Everything a queue needs is owned by its thread. Other threads reach it through the stop flag
//! and read its counters.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flowstone_block::{Channel, Completion, Doorbells};
use flowstone_frontend::vhost_user::{Signal, VirtQueue};
use rustix::event::{EventfdFlags, eventfd};
use tracing::warn;

use crate::counters::QueueCounters;
use crate::histogram::add;
use crate::spin::SpinBudget;

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
    spin: SpinBudget,
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
        spin: SpinBudget,
    ) -> Self {
        let size = usize::from(queue.size());
        let submitted = vec![Instant::now(); size].into_boxed_slice();
        Self { channel, queue, stop, counters, spin, submitted, done: Vec::with_capacity(size) }
    }

    /// Runs until stopped and until nothing is in flight; returns the position of the next avail
    /// entry.
    pub fn run(mut self) -> u16 {
        self.queue.refuse_kicks();
        while !self.stop.is_raised() {
            if !self.turn() {
                self.idle();
            }
        }
        self.drain();
        self.queue.next_avail()
    }

    /// One pass over ring and channel. Returns whether anything moved.
    fn turn(&mut self) -> bool {
        let submitted = self.submit_available();
        let completed = self.collect_completed();
        submitted || completed
    }

    fn submit_available(&mut self) -> bool {
        if !self.queue.has_available() {
            return false;
        }
        let Self { channel, queue, submitted, .. } = self;
        let start = Instant::now();
        let mut passed_on = 0;
        let taken = queue.take(|request| {
            submitted[request.tag as usize] = start;
            passed_on += 1;
            channel.submit(request);
        });
        channel.kick();
        self.counters.submit.record(start.elapsed());
        add(&self.counters.answered, taken as u64 - passed_on);
        if passed_on < taken as u64 {
            self.publish();
        }
        if let Some(fault) = self.queue.fault() {
            warn!(?fault, "a guest broke its queue; it stays stopped until the guest resets it");
        }
        true
    }

    fn collect_completed(&mut self) -> bool {
        let mut done = std::mem::take(&mut self.done);
        self.channel.reap(&mut done);
        let any = !done.is_empty();
        if any {
            let now = Instant::now();
            self.finish(&mut done, now);
            self.publish();
            self.counters.publish.record(now.elapsed());
        }
        self.done = done;
        any
    }

    fn finish(&mut self, done: &mut Vec<Completion>, now: Instant) {
        let mut resubmitted = false;
        for completion in done.drain(..) {
            let tag = completion.request.tag as usize;
            self.counters.completed(&completion, now - self.submitted[tag]);
            if let Some(next_part) = self.queue.complete(completion) {
                self.submitted[tag] = now;
                self.channel.submit(next_part);
                resubmitted = true;
            }
        }
        if resubmitted {
            self.channel.kick();
        }
    }

    fn publish(&mut self) {
        if self.queue.publish() == Signal::Sent {
            add(&self.counters.calls, 1);
        }
    }

    /// Looks for work for a while, then sleeps until there is some.
    fn idle(&mut self) {
        let start = Instant::now();
        let found = self.look(start);
        let mut now = Instant::now();
        add(&self.counters.spin_ns, nanos(now - start));
        if !found {
            let slept_from = now;
            self.sleep();
            now = Instant::now();
            add(&self.counters.sleep_ns, nanos(now - slept_from));
        }
        self.spin.learn(now - start);
    }

    fn look(&mut self, start: Instant) -> bool {
        let budget = self.spin.budget();
        if budget.is_zero() {
            return false;
        }
        loop {
            for _ in 0..TURNS_PER_LOOK {
                std::hint::spin_loop();
                if self.turn() {
                    return true;
                }
            }
            if self.stop.is_raised() {
                return true;
            }
            if start.elapsed() > budget {
                return false;
            }
        }
    }

    fn sleep(&mut self) {
        if self.queue.ask_for_kicks() {
            // A request came before the driver saw that we want to be told.
            self.queue.refuse_kicks();
            return;
        }
        add(&self.counters.sleeps, 1);
        let bells = [self.queue.kick_event(), self.stop.event.as_fd()];
        self.channel.sleep(&Doorbells { fds: &bells, deadline: None });
        self.queue.refuse_kicks();
        let moved = self.collect_completed();
        if self.queue.has_available() || !moved {
            // The driver's notification is what woke us, or one from before that we had no need
            // of: unread, it would end every sleep to come.
            add(&self.counters.kicks, self.queue.clear_kicks());
        }
    }

    /// Waits for what is in flight, without taking more.
    fn drain(&mut self) {
        while self.queue.in_flight() > 0 {
            if !self.collect_completed() {
                self.channel.sleep(&Doorbells { fds: &[], deadline: None });
            }
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
