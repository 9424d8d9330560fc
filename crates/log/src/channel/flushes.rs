//! Flushes of one queue, and the effect of a sync on the log: records that had committed when it
//! began are durable when it has ended.

use flowstone_block::{Completion, Errno, Outcome, mutant};
use flowstone_image::runtime::group_sync;
use flowstone_log_format::Sequence;

use super::super::log::Log;
use super::{Purpose, Queue};

#[derive(Default)]
pub struct Flushes {
    group: group_sync::Flushes,
    /// While this queue carries out a sync: all records before this sequence number were written
    /// when it began.
    covered: Option<Sequence>,
}

impl Flushes {
    /// Completes the request once everything that has completed by now is durable.
    pub fn submit(&mut self, queue: &mut Queue, completion: Completion) {
        if queue.log.sync.has_failed() {
            queue.completed.push(Completion { outcome: Err(Errno::IO), ..completion });
            return;
        }
        if mutant("log.flush.answers-before-sync") {
            queue.completed.push(completion);
            return;
        }
        if self.group.submit(&queue.log.sync, completion, &queue.waker) {
            self.start(queue);
        }
    }

    fn start(&mut self, queue: &mut Queue) {
        self.covered = Some(queue.log.append_state().committed());
        queue.store.sync(Purpose::Sync.tag(0));
    }

    pub fn finish_sync(&mut self, queue: &mut Queue, outcome: Outcome) {
        // After a failed sync, the success of a later one does not cover the data lost by the
        // first.
        let promises = outcome.is_ok() && !queue.log.sync.has_failed();
        if let Some(durable) = self.covered.take().filter(|_| promises) {
            let mut state = queue.log.append_state();
            let durable = match mutant("log.flush.promises-what-came-later") {
                true => state.committed(),
                false => durable,
            };
            state.mark_durable_before(durable);
        }
        if self.group.finish(&queue.log.sync, outcome) {
            self.start(queue);
        }
    }

    /// Completes the flushes that have been served.
    pub fn collect(&mut self, queue: &mut Queue) {
        if self.group.take_over(&queue.log.sync) {
            self.start(queue);
        }
        let sync = &queue.log.sync;
        self.group.collect(sync, || sync.has_failed(), &mut queue.completed);
    }

    pub fn can_advance(&self, log: &Log) -> bool {
        self.group.can_advance(&log.sync)
    }

    /// Marks the queue as leaving.
    pub fn leave(&mut self) {
        self.group.leave();
    }

    #[cfg(test)]
    pub fn is_idle(&self) -> bool {
        let Self { group, covered: _ } = self;
        group.is_idle()
    }

    /// Returns whether a sync of this queue is in flight.
    pub fn is_leading(&self) -> bool {
        self.group.is_leading()
    }
}
