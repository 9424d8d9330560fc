//! Flushes of one queue. If no metadata waits to be written, a flush is a group sync of the file,
//! shared by waiting flushes of all queues; otherwise it waits for a commit of the maintenance
//! worker.

use std::sync::Arc;

use flowstone_block::{Completion, Errno, Outcome, mutated};
use flowstone_fileio::FileChannel;
#[cfg(test)]
use flowstone_image::Wait;
use flowstone_image::runtime::group_sync::{self, sync_request};
use flowstone_image::runtime::wakers::QueueWaker;

use super::super::commits::Ticket;
use super::super::core::Core;
use super::SYNC_TAG;

#[derive(Default)]
pub struct Flushes {
    /// Flushes that wait for a commit.
    waiting: Vec<(Ticket, Completion)>,
    /// Flushes that need only a sync.
    group: group_sync::Flushes,
    started: bool,
}

impl Flushes {
    /// Completes the request once everything that has completed by now is durable.
    pub fn submit(
        &mut self,
        core: &Core,
        file: &mut dyn FileChannel,
        completion: Completion,
        waker: &Arc<QueueWaker>,
        completed: &mut Vec<Completion>,
    ) {
        if core.has_failed() {
            completed.push(Completion { outcome: Err(Errno::IO), ..completion });
            return;
        }
        let is_clean = core.meta().is_clean();
        let is_clean = mutated("qcow2.flush.syncs-without-a-commit", is_clean, true);
        if !is_clean {
            self.waiting.push((core.commits.ask(), completion));
        } else if self.group.submit(&core.sync, completion, waker) {
            self.start_sync(file);
        }
    }

    fn start_sync(&mut self, file: &mut dyn FileChannel) {
        self.started = true;
        file.submit(sync_request(SYNC_TAG));
    }

    pub fn finish_sync(&mut self, core: &Core, file: &mut dyn FileChannel, outcome: Outcome) {
        let outcome = mutated("qcow2.flush.forgets-a-failed-sync", outcome, Ok(()));
        if let Err(errno) = outcome {
            core.fail(&format!("a sync of the image has failed: {errno}"));
        }
        if self.group.finish(&core.sync, outcome) {
            self.start_sync(file);
        }
    }

    /// Completes the flushes that syncs and commits have served.
    pub fn collect(
        &mut self,
        core: &Core,
        file: &mut dyn FileChannel,
        completed: &mut Vec<Completion>,
    ) {
        if self.group.take_over(&core.sync) {
            self.start_sync(file);
        }
        self.group.collect(&core.sync, || core.has_failed(), completed);
        if self.waiting.is_empty() {
            return;
        }
        let served =
            self.waiting.extract_if(.., |(ticket, _)| core.commits.outcome(ticket).is_some());
        completed.extend(served.map(|(ticket, completion)| {
            let outcome = core.commits.outcome(&ticket).unwrap_or(Err(Errno::IO));
            Completion { outcome, ..completion }
        }));
    }

    pub fn can_advance(&self, core: &Core) -> bool {
        self.group.can_advance(&core.sync)
            || self.waiting.iter().any(|(ticket, _)| core.commits.outcome(ticket).is_some())
    }

    /// Marks the queue as leaving.
    pub fn leave(&mut self) {
        self.group.leave();
    }

    /// Returns the states in which its flushes wait.
    #[cfg(test)]
    pub fn waits(&self) -> [(Wait, bool); 2] {
        let Self { waiting, group, started: _ } = self;
        [(Wait::MapCommit, !waiting.is_empty()), (Wait::Sync, !group.is_idle())]
    }

    /// Returns whether a sync of this queue is in flight.
    pub fn is_leading(&self) -> bool {
        self.group.is_leading()
    }

    /// Returns whether a sync has been submitted since the last call, so that the file needs a
    /// kick.
    pub fn take_started(&mut self) -> bool {
        std::mem::take(&mut self.started)
    }
}
