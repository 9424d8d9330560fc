//! Scheduling of the maintenance worker: wake-ups, and commits of changes that have waited long
//! enough.

use std::time::{Duration, Instant};

use flowstone_block::mutant;
use tracing::warn;

use super::{Maintenance, PATIENCE};
use crate::qcow2::commits::Command;
use crate::upkeep::Upkeep;

/// Wait for requests that may still use clusters in limbo.
const LIMBO_PATIENCE: Duration = Duration::from_millis(20);

impl Maintenance {
    /// Works until told to stop.
    pub fn run(mut self) {
        self.start();
        while !self.is_stopping {
            self.work();
        }
        // Requests that wait for room fail.
        self.core.commits.inbox.close();
        if let Err(errno) = self.close() {
            warn!("{}: could not be closed in order: {errno}; it may have leaks", self.core.name);
        }
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
        if self.core.commits.is_wanted() || is_due {
            self.commit_for_all();
        }
        self.is_stopping = called_for.stop;
        if !self.is_stopping {
            self.reclaim();
        }
    }

    /// Reclaims clusters without users, before the worker sleeps.
    fn reclaim(&mut self) {
        self.reclaim_limbo();
        self.core.meta().dead = self.dead();
        self.deadline = self.next_deadline();
    }

    /// Commands that come meanwhile wait until a commit has had its turn: requests without room ask
    /// repeatedly, and the commit may be what frees some.
    fn run_commands(&mut self) {
        let commands = self.core.commits.inbox.take_commands();
        if commands.iter().any(|(command, _)| matches!(command, Command::MakeRoom)) {
            self.grow(self.core.room_step());
            if self.would_gain_room() && !mutant("qcow2.room.waits-for-the-next-commit") {
                self.due = Some(self.core.clock.now());
            }
        }
        for (command, reply) in commands {
            let outcome = match command {
                Command::MakeRoom => Ok(()),
                Command::Resize(capacity) => {
                    let resized = self.resize(capacity);
                    // The old L1 table is freed soon.
                    self.due.get_or_insert(self.core.clock.now() + PATIENCE);
                    resized
                }
                Command::Compact => self.compact(),
            };
            reply.send(outcome);
        }
    }

    /// Returns whether there is no room, and clusters that are free after a commit.
    fn would_gain_room(&self) -> bool {
        let meta = self.core.meta();
        let would_free = !meta.dropped.is_empty() || !self.pending.dropped.is_empty();
        would_free && !meta.has_room(1)
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
