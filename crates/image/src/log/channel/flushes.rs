//! Flushes of one queue: each waits for the sync that its ticket names.

use flowstone_block::{Completion, Errno, Outcome, mutant};
use flowstone_fileio::{FileOp, FileRequest, MemoryList};

use super::super::core::Core;
use super::super::ids::Sequence;
use super::super::sync::Ticket;
use super::{Purpose, Queue};

#[derive(Default)]
pub struct Flushes {
    waiting: Vec<(Ticket, Completion)>,
    /// While we carry out a sync: everything before this sequence number was in the file when it
    /// began.
    leading: Option<Sequence>,
}

impl Flushes {
    /// Completes the request once everything that has completed by now is durable.
    pub fn submit(&mut self, queue: &mut Queue, completion: Completion) {
        if queue.core.sync.has_failed() {
            queue.completed.push(Completion { outcome: Err(Errno::IO), ..completion });
            return;
        }
        if mutant("log.flush.answers-before-sync") {
            queue.completed.push(completion);
            return;
        }
        let (ticket, lead) = queue.core.sync.request();
        self.waiting.push((ticket, completion));
        if lead {
            self.start(queue);
        }
    }

    fn start(&mut self, queue: &mut Queue) {
        self.leading = Some(queue.core.append_state().committed());
        let op = FileOp::Datasync;
        let tag = Purpose::Sync.tag(0);
        queue.file.submit(FileRequest { op, memory: MemoryList::EMPTY, tag });
    }

    pub fn finish_sync(&mut self, queue: &mut Queue, outcome: Outcome) {
        // After a failed sync a later one says nothing about what the first has lost.
        let promises = outcome.is_ok() && !queue.core.sync.has_failed();
        if let Some(durable) = self.leading.take().filter(|_| promises) {
            let mut state = queue.core.append_state();
            let durable = match mutant("log.flush.promises-what-came-later") {
                true => state.committed(),
                false => durable,
            };
            state.durable = state.durable.max(durable);
        }
        if queue.core.sync.finish(outcome.is_ok()) {
            self.start(queue);
        }
        queue.core.wakers.wake_all();
    }

    /// Completes what has been served.
    pub fn collect(&mut self, queue: &mut Queue) {
        let sync = &queue.core.sync;
        let outcome = if sync.has_failed() { Err(Errno::IO) } else { Ok(()) };
        let served = self.waiting.extract_if(.., |(ticket, _)| sync.is_served(*ticket));
        queue.completed.extend(served.map(|(_, completion)| Completion { outcome, ..completion }));
    }

    pub fn can_advance(&self, core: &Core) -> bool {
        self.waiting.iter().any(|(ticket, _)| core.sync.is_served(*ticket))
    }

    /// Whether a sync of ours is on its way.
    pub fn leading(&self) -> bool {
        self.leading.is_some()
    }
}
