//! Flushes of one queue, and the effect of a sync on the log: records that had committed when it
//! began are durable when it has ended.

use flowstone_block::{Completion, Errno, Outcome, mutated};

use super::{Purpose, Queue};

impl Queue {
    /// Completes the request once everything that has completed by now is durable.
    pub fn take_flush(&mut self, completion: Completion) {
        if self.log.sync.has_failed() {
            self.completed.push(Completion { outcome: Err(Errno::IO), ..completion });
            return;
        }
        let syncs = mutated("log.flush.answers-before-sync", true, false);
        if !syncs {
            self.completed.push(completion);
            return;
        }
        if self.flushes.submit(&self.log.sync, completion, &self.waker) {
            self.start_sync();
        }
    }

    fn start_sync(&mut self) {
        self.covered = Some(self.log.append_state().committed());
        self.store.sync(Purpose::Sync.tag(0));
    }

    pub fn finish_sync(&mut self, outcome: Outcome) {
        // After a failed sync, the success of a later one does not cover the data lost by the
        // first.
        let promises = outcome.is_ok() && !self.log.sync.has_failed();
        if let Some(durable) = self.covered.take().filter(|_| promises) {
            let mut state = self.log.append_state();
            let durable = mutated("log.flush.promises-what-came-later", durable, state.committed());
            state.mark_durable_before(durable);
        }
        if self.flushes.finish(&self.log.sync, outcome) {
            self.start_sync();
        }
    }

    /// Completes the flushes that have been served.
    pub fn collect_flushes(&mut self) {
        if self.flushes.take_over(&self.log.sync) {
            self.start_sync();
        }
        let sync = &self.log.sync;
        self.flushes.collect(sync, || sync.has_failed(), &mut self.completed);
    }
}
