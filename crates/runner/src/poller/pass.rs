//! A pass of a thread over its queues: all of them have a turn, the thread enters the kernel once
//! for all of them, and they complete what that has brought out (S2.2, S2.6).
//!
//! ```text
//!   turn A   turn B ──► io_uring_enter ──► complete A   complete B
//! ```
//!
//! If each queue entered the kernel in its turn, that would be for a request or two of its own, and
//! for the completions of one or two requests. What completes without the kernel (files in memory,
//! hits of the cache) is shown to the driver in the turn: it works while other queues have theirs.
//! The time in the kernel is divided between the queues by the bytes of their work.

use std::time::{Duration, Instant};

use flowstone_block::mutated;

use super::Poller;
use super::scheduled::Scheduled;
use crate::histogram::add;
use crate::poller::PollerCounters;
use crate::task::Work;

/// A cold queue gets one turn in this many passes.
const COLD_STRIDE: u32 = 16;

/// The thread enters the kernel before the end of a pass when so many bytes are to be submitted
/// ([`Work::bytes`]): with files in memory that is the time of the copy, other queues wait for it,
/// and queues of a disk that has used its share in it take no more in this pass.
const GATHERED_BYTES: u64 = 128 << 10;
/// The same after this time: the disks of queues that have had their turns wait.
const GATHERED_TIME: Duration = Duration::from_micros(50);

/// The work of a pass.
#[derive(Default)]
pub(super) struct Done {
    /// Time at which the first of it was found.
    found: Option<Instant>,
    time: Duration,
    /// Bytes and time since the thread has entered the kernel.
    gathered: (u64, Duration),
    /// Whether it has entered the kernel, and its time there that has not been charged.
    entered: bool,
    kernel: Duration,
}

impl Done {
    fn add(&mut self, work: Work) {
        self.found = self.found.or(Some(work.found));
        self.time += work.time;
        self.gathered.0 += work.bytes;
        self.gathered.1 += work.time;
    }

    /// Lets the thread enter the kernel by a call that returns whether it did.
    fn enter(&mut self, call: impl FnOnce() -> bool) {
        let begun = Instant::now();
        if call() {
            self.entered = true;
            self.kernel += begun.elapsed();
        }
        self.gathered = Default::default();
    }
}

impl Poller {
    /// Gives a turn to every queue that is not cold or resting. Returns when one found work or
    /// ended.
    pub(super) fn turn(&mut self) -> Option<Instant> {
        let mut done = Done::default();
        self.pass = self.pass.wrapping_add(1);
        let all = std::mem::take(&mut self.look_at_all);
        match &mut *self.tasks {
            [task] => {
                let work = if task.has_turns() { task.turn(u64::MAX) } else { None };
                if let Some(work) = work {
                    done.add(work);
                    task.entered(Duration::ZERO, work.found);
                }
            }
            _ => self.turns_of_several(all, &mut done),
        }
        let counters = &self.inbox.counters;
        add(&counters.turns, 1);
        if done.found.is_some() {
            PollerCounters::add_time(&counters.busy_ns, done.time);
        }
        let mut over = false;
        self.tasks.iter_mut().for_each(|task| over |= task.is_over());
        if over { self.end_tasks().or(done.found) } else { done.found }
    }

    fn turns_of_several(&mut self, all: bool, done: &mut Done) {
        self.shares.begin(self.pass);
        self.reactor.gather();
        let (first, count) = (self.next_first(), self.tasks.len());
        for index in (first..count).chain(0..first) {
            let task = &mut self.tasks[index];
            let is_asked = self.pass.wrapping_add(index as u32).is_multiple_of(COLD_STRIDE);
            task.has_turn = (all || !task.is_cold() || is_asked) && task.has_turns();
            if task.has_turn {
                let bytes_max = self.shares.bytes_left(task.share);
                self.let_work(index, done, |task| task.turn(bytes_max));
            }
            let (bytes, time) = done.gathered;
            let enters = bytes >= GATHERED_BYTES || time >= GATHERED_TIME;
            let enters = mutated("runner.pass.enters-for-each-queue", enters, true);
            if enters {
                done.enter(|| self.reactor.enter());
                self.charge(done);
            }
        }
        done.enter(|| self.reactor.enter());
        // A disk has its share of what follows in the next pass: nothing is taken in this one.
        self.shares.begin(self.pass.wrapping_add(1));
        if done.entered {
            for index in 0..count {
                if self.tasks[index].has_turn {
                    self.let_work(index, done, Scheduled::complete);
                }
            }
        }
        done.enter(|| self.reactor.scatter());
        self.charge(done);
    }

    /// Lets a task work, and charges it for that.
    pub(super) fn let_work(
        &mut self,
        index: usize,
        done: &mut Done,
        work: impl FnOnce(&mut Scheduled) -> Option<Work>,
    ) {
        let (task, uses) = (&mut self.tasks[index], self.reactor.uses());
        if let Some(work) = work(task) {
            self.shares.charge(task.share, work.time);
            done.add(work);
            if self.reactor.uses() != uses {
                task.bytes += work.bytes;
            }
        }
    }

    /// Divides the time in the kernel between the queues that have used the ring since the last
    /// time.
    fn charge(&mut self, done: &mut Done) {
        let Some(found) = done.found else { return };
        let kernel = std::mem::take(&mut done.kernel);
        done.time += kernel;
        let bytes = self.tasks.iter().map(|task| task.bytes).sum::<u64>().max(1);
        for task in self.tasks.iter_mut().filter(|task| task.has_worked) {
            let own = kernel.mul_f64(task.bytes as f64 / bytes as f64);
            self.shares.charge(task.share, own);
            task.entered(own, found + done.time);
        }
    }

    /// Returns the index of the first queue of this pass: each in turn, so that each queue of a
    /// disk gets part of the disk's share.
    fn next_first(&mut self) -> usize {
        self.first = if self.first + 1 < self.tasks.len() { self.first + 1 } else { 0 };
        self.first
    }

    fn end_tasks(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let over: Vec<Scheduled> = self.tasks.extract_if(.., |task| task.is_over()).collect();
        self.count_tasks();
        over.into_iter().for_each(|task| self.end(task, now));
        Some(now)
    }
}

#[cfg(test)]
impl Poller {
    /// Divides time in the kernel.
    pub(super) fn charge_for_test(&mut self, kernel: Duration) {
        let found = Some(Instant::now());
        self.charge(&mut Done { found, kernel, ..Done::default() });
    }
}
