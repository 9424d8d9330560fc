//! Scheduling of the maintenance worker: wake-ups, and pauses of guests.

use std::time::{Duration, Instant};

use flowstone_block::Outcome;
use flowstone_image::Upkeep;
use flowstone_image::runtime::inbox::PendingWork;

use super::{Maintenance, Progress};
use crate::log::append::Health;

/// Time after the last write after which a checkpoint is made, so that the next open is quick.
pub const QUIET_TIME: Duration = Duration::from_secs(20);
/// Shorter time for a checkpoint that gives space back to the host.
const RELEASE_TIME: Duration = Duration::from_secs(2);
/// Time after the last copies after which their memory is released.
const MEMORY_TIME: Duration = Duration::from_secs(5);

impl Maintenance {
    /// Works until told to stop, then writes a last checkpoint.
    pub fn run(mut self) -> Outcome {
        while self.is_awake || !self.called_for.stop {
            self.work();
        }
        self.log.end_copying();
        self.close()
    }

    /// Does one step. If the last one had nothing to do, first sleeps until it is woken or deferred
    /// work is due.
    fn work(&mut self) {
        if !self.is_awake {
            self.called_for = self.log.inbox.wait(self.deadline);
        }
        self.run_commands();
        self.is_awake = self.step() == Progress::Made && !self.log.inbox.is_stopping();
        if self.is_awake || self.called_for.stop {
            return;
        }
        if self.called_for == PendingWork::default() {
            match self.quiet_at.is_some_and(|at| at <= self.log.clock.now()) {
                true => self.pause(),
                false => self.resort.run_if_light(&mut self.cleaner, &mut self.writer),
            }
        }
        self.deadline = self.next_pause();
    }

    /// Returns when to check for a pause of the guests; earlier, when the re-sorting pass may go
    /// on.
    pub fn next_pause(&mut self) -> Option<Instant> {
        let (now, gives_back) = (self.log.clock.now(), self.gives_back());
        let resort = self.resort.due_at(now).map(|paid| match paid <= now {
            true => self.resort.look_at_guests().1,
            false => paid,
        });
        let state = self.log.append_state();
        if state.health() != Health::Running || self.log.sync.has_failed() {
            return None;
        }
        let has_written = std::mem::replace(&mut self.seen, state.committed()) != self.seen;
        let has_memory = self.cleaner.has_memory();
        let wait = match (gives_back, has_memory) {
            (true, _) => RELEASE_TIME,
            (false, true) => MEMORY_TIME,
            (false, false) => QUIET_TIME,
        };
        let is_due = gives_back || has_memory || state.accounting().has_changed();
        // Looks by the re-sorting pass do not postpone the pause.
        let before = self.quiet_at.filter(|at| *at > now && !has_written);
        self.quiet_at = is_due.then(|| before.map_or(now + wait, |at| at.min(now + wait)));
        self.quiet_at.into_iter().chain(resort).min()
    }

    /// Returns whether a pause would give space back to the host.
    fn gives_back(&self) -> bool {
        let is_sparse = self.cleaner.sparsest().is_some();
        let state = self.log.append_state();
        is_sparse || state.segments().dead_count() > 0 || self.writer.space.has_surplus(&state)
    }

    /// Does deferred work: no request came for a while.
    pub fn pause(&mut self) {
        if self.cleaner.has_memory() && !self.gives_back() {
            // The rest is due later.
            return self.cleaner.release_memory();
        }
        self.cleaner.clean_sparse(&mut self.writer, self.seen);
        self.resort.run_if_light(&mut self.cleaner, &mut self.writer);
        self.cleaner.release_memory();
        let (committed, wanted, dead) = {
            let state = self.log.append_state();
            (state.committed(), state.accounting().has_changed(), state.segments().dead_count())
        };
        if (wanted && committed == self.seen) || dead > 0 {
            self.writer.try_checkpoint();
        }
        self.writer.space.trim_reserve();
    }
}

impl Upkeep for Maintenance {
    fn is_due(&self) -> bool {
        let is_time = self.deadline.is_some_and(|at| at <= self.log.clock.now());
        self.is_awake || is_time || self.log.inbox.is_called()
    }

    fn next(&self) -> Option<Instant> {
        self.deadline
    }

    fn turn(&mut self) {
        self.work();
    }
}
