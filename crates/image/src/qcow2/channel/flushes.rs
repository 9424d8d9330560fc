//! Flushes of one queue. If no metadata waits to be written, a flush is a sync of the file, shared
//! by those that wait together; else it waits for a commit of the maintenance worker's.

use flowstone_block::{Completion, Errno, Outcome, mutant};
use flowstone_fileio::{FileChannel, FileOp, FileRequest, MemoryList};

use super::super::commits::Ticket;
use super::super::core::Core;
use super::SYNC_TAG;

#[derive(Default)]
pub struct Flushes {
    /// Those that wait for a commit.
    waiting: Vec<(Ticket, Completion)>,
    /// Those that our sync on its way serves.
    syncing: Option<Vec<Completion>>,
    /// Those that came too late for it.
    gathered: Vec<Completion>,
    started: bool,
}

impl Flushes {
    /// Completes the request once everything that has completed by now is durable.
    pub fn submit(
        &mut self,
        core: &Core,
        file: &mut dyn FileChannel,
        completion: Completion,
        completed: &mut Vec<Completion>,
    ) {
        if core.commits.has_failed() {
            completed.push(Completion { outcome: Err(Errno::IO), ..completion });
        } else if !core.meta().is_clean() && !mutant("qcow2.flush.syncs-without-a-commit") {
            self.waiting.push((core.commits.ask(), completion));
        } else {
            self.gathered.push(completion);
            if self.syncing.is_none() {
                self.start_sync(file);
            }
        }
    }

    fn start_sync(&mut self, file: &mut dyn FileChannel) {
        self.syncing = Some(std::mem::take(&mut self.gathered));
        self.started = true;
        let op = FileOp::Datasync;
        file.submit(FileRequest { op, memory: MemoryList::EMPTY, tag: SYNC_TAG });
    }

    pub fn finish_sync(
        &mut self,
        core: &Core,
        file: &mut dyn FileChannel,
        outcome: Outcome,
        completed: &mut Vec<Completion>,
    ) {
        if let Err(errno) = outcome
            && !mutant("qcow2.flush.forgets-a-failed-sync")
        {
            core.fail(&format!("a sync of the image has failed: {errno}"));
        }
        // The host may have reported a failure that concerns us to another queue.
        let outcome = if core.commits.has_failed() { Err(Errno::IO) } else { outcome };
        let served = self.syncing.take().unwrap_or_default();
        completed.extend(served.into_iter().map(|completion| Completion { outcome, ..completion }));
        if !self.gathered.is_empty() {
            self.start_sync(file);
        }
    }

    /// Completes what commits have served.
    pub fn collect(&mut self, core: &Core, completed: &mut Vec<Completion>) {
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
        self.waiting.iter().any(|(ticket, _)| core.commits.outcome(ticket).is_some())
    }

    /// Whether a sync of ours is on its way.
    pub fn is_syncing(&self) -> bool {
        self.syncing.is_some()
    }

    /// Whether a sync has been submitted since the last call, which wants a kick.
    pub fn take_started(&mut self) -> bool {
        std::mem::take(&mut self.started)
    }
}
