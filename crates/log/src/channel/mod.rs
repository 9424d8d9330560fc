//! One queue of a log image.
//!
//! A read becomes as few file reads as the addresses of its blocks allow. Writes are batched into
//! records, a few of which are in flight at once, so that the batch grows with the load.
//!
//! The path of a write: [`write_queue`] takes it, [`pending_write`] copies it into a record,
//! [`append`](super::log::append) gives the record its place and
//! [commits](super::log::append::commit_order) it in order, and [`write_queue`] completes it.

mod device;
mod flushes;
mod partial;
mod pending_record;
mod pending_write;
mod reads;
mod spare_records;
mod verify;
mod write_queue;

#[cfg(test)]
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use flowstone_block::{
    Channel, Completion, Errno, NextLook, Op, QueueContext, Reactor, Request, mutant,
};
use flowstone_fileio::FileCompletion;
#[cfg(test)]
use flowstone_image::Wait;
use flowstone_image::runtime::group_sync::Flushes;
use flowstone_image::runtime::wakers::QueueWaker;
use flowstone_log_format::Sequence;
use flowstone_log_store::StoreQueue;

use self::reads::Reads;
use self::write_queue::WriteQueue;
use super::log::Log;

/// Purpose of a file request, in the upper half of its tag; the lower half is an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
enum Purpose {
    Read,
    Partial,
    Record,
    Sync,
}

const PURPOSE_SHIFT: u32 = 32;

impl Purpose {
    const fn tag(self, index: usize) -> usize {
        (self as usize) << PURPOSE_SHIFT | index
    }

    fn of(tag: usize) -> (Self, usize) {
        let purpose = match tag >> PURPOSE_SHIFT {
            0 => Self::Read,
            1 => Self::Partial,
            2 => Self::Record,
            _ => Self::Sync,
        };
        (purpose, tag & ((1 << PURPOSE_SHIFT) - 1))
    }
}

/// State that every part of a queue uses.
struct Queue {
    log: Arc<Log>,
    waker: Arc<QueueWaker>,
    store: StoreQueue,
    /// Requests ready to be returned.
    completed: Vec<Completion>,
    flushes: Flushes,
    /// While this queue carries out a sync: all records before this sequence number were written
    /// when it began.
    covered: Option<Sequence>,
}

/// One queue's way into a log image.
pub struct LogChannel {
    queue: Queue,
    reads: Reads,
    writes: WriteQueue,
    done: Vec<FileCompletion>,
    readonly: bool,
    reactor: Reactor,
}

impl LogChannel {
    pub fn new(log: Arc<Log>, context: &QueueContext, readonly: bool) -> io::Result<Self> {
        let store = StoreQueue::open(&*log.file, context)?;
        let waker = log.wakers.add(&context.reactor);
        let writes = WriteQueue::new(log.shape, log.file.heeds_dont_cache());
        let completed = Vec::new();
        Ok(Self {
            queue: Queue {
                log,
                waker,
                store,
                completed,
                flushes: Flushes::default(),
                covered: None,
            },
            reads: Reads::default(),
            writes,
            done: Vec::new(),
            readonly,
            reactor: context.reactor.clone(),
        })
    }

    fn finish(&mut self, completion: FileCompletion) {
        let Self { queue, reads, writes, .. } = self;
        let (purpose, index) = Purpose::of(completion.tag);
        match purpose {
            Purpose::Read => reads.finish(queue, index, completion.outcome),
            Purpose::Partial => writes.finish_partial(queue, index, completion.outcome),
            Purpose::Record => writes.finish_record(queue, index, completion.outcome),
            Purpose::Sync => queue.finish_sync(completion.outcome),
        }
    }

    /// Returns the states in which its requests wait.
    #[cfg(test)]
    pub fn waits(&self) -> BTreeSet<Wait> {
        let Self { queue, reads, writes, done: _, readonly: _, reactor: _ } = self;
        let Queue { log, flushes, waker: _, store: _, completed: _, covered: _ } = queue;
        let mut waits = BTreeSet::new();
        if !reads.is_idle() {
            waits.insert(Wait::Host);
        }
        if !flushes.is_idle() {
            waits.insert(Wait::Sync);
        }
        writes.waits(log, &mut waits);
        waits
    }

    /// Advances everything that can advance without waiting.
    fn advance(&mut self) {
        let Self { queue, writes, .. } = self;
        writes.collect_committed(queue);
        writes.stage(queue);
        queue.collect_flushes();
    }

    /// Returns whether another thread has made progress that a request waits for.
    fn can_advance(&self) -> bool {
        let Queue { log, flushes, .. } = &self.queue;
        self.writes.can_advance(log) || flushes.can_advance(&log.sync)
    }
}

impl Channel for LogChannel {
    fn submit(&mut self, request: Box<Request>) {
        let queue = &mut self.queue;
        if self.readonly && (request.op.modifies() || request.op == Op::Flush) {
            let outcome = if request.op == Op::Flush { Ok(()) } else { Err(Errno::ROFS) };
            queue.completed.push(Completion { request, outcome });
            return;
        }
        match request.op {
            Op::Read(extent) => self.reads.submit(queue, request, extent),
            Op::Flush => queue.take_flush(Completion { request, outcome: Ok(()) }),
            Op::Write(extent) | Op::Discard(extent) | Op::WriteZeroes { extent, .. } => {
                self.writes.submit(queue, request, extent);
            }
        }
    }

    fn kick(&mut self) {
        self.writes.stage(&mut self.queue);
        self.queue.store.kick();
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        let mut finished = std::mem::take(&mut self.done);
        self.queue.store.reap(&mut finished);
        let found = !finished.is_empty();
        finished.drain(..).for_each(|completion| self.finish(completion));
        self.done = finished;
        if found || self.can_advance() {
            self.advance();
            self.queue.store.kick();
        }
        done.append(&mut self.queue.completed);
    }

    fn next_look(&mut self) -> NextLook {
        self.writes.stage(&mut self.queue);
        let has_something = !self.queue.completed.is_empty() || self.can_advance();
        NextLook::now_if(has_something).min(self.queue.store.next_look())
    }

    fn retire(&mut self) -> bool {
        if !mutant("log.retire.goes-on-leading") {
            self.queue.flushes.leave();
        }
        self.reap(&mut Vec::new());
        let is_with_host =
            !self.queue.store.is_idle() && !mutant("log.retire.does-not-ask-its-file");
        let has_some = self.writes.in_flight() || self.queue.flushes.is_leading() || is_with_host;
        !has_some || mutant("log.channel.retires-while-it-leads")
    }
}

impl Drop for LogChannel {
    /// Waits for I/O of this queue, so that later records of other queues can commit.
    fn drop(&mut self) {
        self.queue.flushes.leave();
        while self.writes.in_flight() || self.queue.flushes.is_leading() {
            self.reactor.sleep(|| self.queue.store.next_look());
            let mut finished = Vec::new();
            self.queue.store.reap(&mut finished);
            finished.into_iter().for_each(|completion| self.finish(completion));
        }
        self.writes.abandon(&self.queue.log);
    }
}
