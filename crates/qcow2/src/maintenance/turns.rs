//! Scheduling of the maintenance worker: wake-ups, and commits of changes that have waited long
//! enough.

use std::time::{Duration, Instant};

use flowstone_block::{Outcome, mutated};
use flowstone_image::Upkeep;

use super::{Maintenance, PATIENCE};
use crate::commits::Command;

/// Wait for requests that may still use clusters in limbo.
const LIMBO_PATIENCE: Duration = Duration::from_millis(20);
/// Wait of a request without room for the clusters that other requests may still use.
const ROOM_PATIENCE: Duration = Duration::from_secs(1);

impl Maintenance {
    /// Works until told to stop.
    pub fn run(mut self) -> Outcome {
        self.start();
        while !self.is_stopping {
            self.work();
        }
        // Requests that wait for room fail.
        self.core.commits.inbox.close();
        self.askers.clear();
        self.close()
    }

    /// Does the work that is due before the first request.
    pub fn start(&mut self) {
        self.reserve();
        if self.core.meta().is_changed() {
            // Changes that a killed daemon has left.
            self.commit_for_all();
        }
        self.reclaim();
    }

    /// Sleeps until woken or something is due, and does that.
    fn work(&mut self) {
        let called_for = self.core.commits.inbox.wait(self.deadline);
        if self.core.commits.is_touched() {
            self.due.get_or_insert(self.core.clock.now() + PATIENCE);
        }
        if self.core.commits.take_lacks_room() {
            self.grow(self.core.room_step());
        }
        self.run_commands();
        let is_due = self.due.is_some_and(|due| due <= self.core.clock.now());
        if self.core.commits.is_wanted() || is_due || self.would_commit_free_room() {
            self.commit_for_all();
        }
        self.is_stopping = called_for.stop;
        if !self.is_stopping {
            self.reclaim();
        }
        self.answer_askers();
    }

    /// Reclaims clusters without users, before the worker sleeps.
    fn reclaim(&mut self) {
        self.reclaim_limbo();
        self.core.meta().dead = self.dead();
        self.deadline = self.next_deadline();
    }

    /// Requests without room are answered after a commit has had its turn, which may free some.
    fn run_commands(&mut self) {
        for (command, reply) in self.core.commits.inbox.take_commands() {
            let outcome = match command {
                Command::MakeRoom => {
                    self.askers.push(reply);
                    self.asked_at.get_or_insert(self.core.clock.now());
                    continue;
                }
                Command::Resize(capacity) => {
                    let resized = self.resize(capacity);
                    // The old L1 table is freed soon.
                    self.due.get_or_insert(self.core.clock.now() + PATIENCE);
                    resized
                }
                Command::Compact => {
                    let compacted = self.compact();
                    if self.refcounts.is_changed() {
                        self.due.get_or_insert(self.core.clock.now() + PATIENCE);
                    }
                    compacted
                }
            };
            reply.send(outcome);
        }
    }

    /// Returns whether requests wait for room, and clusters are free after a commit.
    fn would_commit_free_room(&mut self) -> bool {
        if self.askers.is_empty() || self.commit_failed {
            return false;
        }
        self.grow(self.core.room_step());
        let meta = self.core.meta();
        let would_free = !meta.dropped.is_empty() || !self.pending.dropped.is_empty();
        let is_due = would_free && !meta.has_room(1);
        mutated("qcow2.room.waits-for-the-next-commit", is_due, false)
    }

    /// Answers requests without room: there is some, or none will be soon.
    fn answer_askers(&mut self) {
        if self.askers.is_empty() {
            return;
        }
        if !self.core.meta().has_room(1) {
            self.grow(self.core.room_step());
        }
        let is_late = self.asked_at.is_some_and(|at| self.core.clock.since(at) >= ROOM_PATIENCE);
        let in_limbo = self.limbo.iter().any(|(_, runs)| !runs.is_empty());
        let in_limbo = mutated("qcow2.room.forgets-the-limbo", in_limbo, false);
        let may_wait = in_limbo && !is_late;
        if !may_wait || self.core.meta().has_room(1) {
            self.asked_at = None;
            self.askers.drain(..).for_each(|reply| reply.send(Ok(())));
            self.core.answered_by_hand();
        }
    }

    /// Returns the end of its sleep if no work comes; `None` if nothing has changed.
    fn next_deadline(&self) -> Option<Instant> {
        let limbo = (!self.limbo.is_empty()).then(|| self.core.clock.now() + LIMBO_PATIENCE);
        let again = self.refused_at.map(|at| at + PATIENCE);
        [limbo, self.rests_until, self.due, again].into_iter().flatten().min()
    }
}

impl Upkeep for Maintenance {
    fn is_due(&self) -> bool {
        let is_time = self.deadline.is_some_and(|at| at <= self.core.clock.now());
        is_time || self.core.commits.inbox.is_called()
    }

    fn next(&self) -> Option<Instant> {
        self.deadline
    }

    fn turn(&mut self) {
        self.work();
    }
}
