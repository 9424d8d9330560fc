//! One queue of a log image.
//!
//! A read becomes as few file reads as the addresses of its blocks allow. Writes are batched into
//! records, a few of which are in flight at once, so that the batch grows with the load.
//!
//! The path of a write, with the files that take part in it:
//!
//! 1. `submit`: [`writes`] takes the request.
//! 2. `kick`: [`writes`] gathers it into a draft; [`records`] asks for a place of the draft, which
//!    the [log](super::log) gives it [under its lock](super::log::append), and writes it there.
//! 3. `reap`: [`records`] learns that it is written; the log [commits](super::log::append::commit)
//!    records in their order, and maps their blocks; [`writes`] completes the requests of those
//!    that have committed.
//!
//! The others compute: how large a record becomes ([`pace`], [`device`]), and the rest of blocks of
//! which a part is written ([`partial`]).

mod device;
mod flushes;
mod pace;
mod partial;
mod reads;
mod records;
mod verify;
mod writes;

#[cfg(test)]
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use flowstone_block::{
    Channel, Completion, Errno, NextLook, Op, QueueContext, Reactor, Request, mutated,
};
use flowstone_fileio::FileCompletion;
#[cfg(test)]
use flowstone_image::Wait;
use flowstone_image::runtime::group_sync::Flushes;
use flowstone_image::runtime::wakers::QueueWaker;
use flowstone_log_format::Sequence;
use flowstone_log_store::StoreQueue;

use self::reads::Reads;
use self::records::{Placement, Records};
use self::writes::Writes;
use super::log::Log;
use super::log::append::PlaceError;
use super::volume::Volume;

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
    volume: Arc<Volume>,
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
    writes: Writes,
    records: Records,
    done: Vec<FileCompletion>,
    readonly: bool,
    reactor: Reactor,
}

impl LogChannel {
    pub fn new(
        log: Arc<Log>,
        volume: Arc<Volume>,
        context: &QueueContext,
        readonly: bool,
    ) -> io::Result<Self> {
        let store = log.store.queue(context)?;
        let waker = log.wakers.add(&context.reactor);
        let writes = Writes::new(log.shape, log.store.heeds_hints());
        let records = Records::new(log.shape);
        let completed = Vec::new();
        Ok(Self {
            queue: Queue {
                log,
                volume,
                waker,
                store,
                completed,
                flushes: Flushes::default(),
                covered: None,
            },
            reads: Reads::default(),
            writes,
            records,
            done: Vec::new(),
            readonly,
            reactor: context.reactor.clone(),
        })
    }

    fn finish(&mut self, completion: FileCompletion) {
        let Self { queue, reads, writes, records, .. } = self;
        let (purpose, index) = Purpose::of(completion.tag);
        match purpose {
            Purpose::Read => reads.finish(queue, index, completion.outcome),
            Purpose::Partial => writes.finish_partial(queue, index, completion.outcome),
            Purpose::Record => records.finish(queue, index, completion.outcome),
            Purpose::Sync => queue.finish_sync(completion.outcome),
        }
    }

    /// Returns the states in which its requests wait.
    #[cfg(test)]
    pub fn waits(&self) -> BTreeSet<Wait> {
        let Self { queue, reads, writes, records, done: _, readonly: _, reactor: _ } = self;
        let Queue { log, flushes, volume: _, waker: _, store: _, completed: _, covered: _ } = queue;
        let mut waits = BTreeSet::new();
        if !reads.is_idle() {
            waits.insert(Wait::Host);
        }
        if !flushes.is_idle() {
            waits.insert(Wait::Sync);
        }
        writes.waits(records.has_draft(), &mut waits);
        records.waits(log, &mut waits);
        waits
    }

    /// Gathers waiting requests into records, and starts to write these.
    fn stage(&mut self) {
        let Self { queue, writes, records, .. } = self;
        let mut has_started = false;
        while writes.is_any_waiting() || records.has_draft() {
            let load = records.load(writes.waiting());
            if has_started && load.waits_enough() {
                // The device starts while the next record is copied.
                queue.store.kick();
            }
            let mut draft = records.take_draft();
            let takes_more = match &draft {
                // It waits for room.
                Some(draft) => !draft.only_trims(),
                None => load.may_begin(),
            };
            if takes_more && writes.is_any_waiting() {
                let mut record =
                    draft.take().unwrap_or_else(|| records.begin_draft(writes.next_blocks()));
                writes.gather(queue, &mut record, load);
                if record.content.entries().is_empty() {
                    records.give_back(record);
                } else {
                    draft = Some(record);
                }
            }
            let Some(draft) = draft else { return };
            let placement = match writes.have_their_memory(&draft) {
                true => records.place(queue, draft),
                false => Placement::Refused(draft, PlaceError::Full(Errno::FAULT)),
            };
            match placement {
                Placement::Started => {}
                Placement::Waits => return,
                Placement::Refused(mut draft, why) => {
                    writes.take_back(queue, &mut draft, why);
                    records.give_back(draft);
                }
            }
            has_started = true;
        }
    }

    /// Advances everything that can advance without waiting.
    fn advance(&mut self) {
        let Self { queue, writes, records, .. } = self;
        while let Some((record, outcome)) = records.take_ended(&queue.log) {
            writes.end_shares(queue, &record, outcome);
            records.give_back(record);
        }
        writes.settle_conflicts(queue);
        self.stage();
        self.queue.collect_flushes();
    }

    /// Returns whether another thread has made progress that a request waits for.
    fn can_advance(&self) -> bool {
        let Queue { log, flushes, .. } = &self.queue;
        self.records.can_advance(log)
            || self.writes.has_settled_conflicts(log)
            || flushes.can_advance(&log.sync)
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
        self.stage();
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
        self.stage();
        let has_something = !self.queue.completed.is_empty() || self.can_advance();
        NextLook::now_if(has_something).min(self.queue.store.next_look())
    }

    fn retire(&mut self) -> bool {
        let leaves = mutated("log.retire.goes-on-leading", true, false);
        if leaves {
            self.queue.flushes.leave();
        }
        self.reap(&mut Vec::new());
        let is_idle = mutated("log.retire.does-not-ask-its-file", self.queue.store.is_idle(), true);
        let has_some = self.records.in_flight() || self.queue.flushes.is_leading() || !is_idle;
        mutated("log.channel.retires-while-it-leads", !has_some, true)
    }
}

impl Drop for LogChannel {
    /// Waits for I/O of this queue, so that later records of other queues can commit.
    fn drop(&mut self) {
        self.queue.flushes.leave();
        while self.records.in_flight() || self.queue.flushes.is_leading() {
            self.reactor.sleep(|| self.queue.store.next_look());
            let mut finished = Vec::new();
            self.queue.store.reap(&mut finished);
            finished.into_iter().for_each(|completion| self.finish(completion));
        }
        self.records.abandon(&self.queue.log);
    }
}
