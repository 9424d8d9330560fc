//! One queue of a raw image: each request becomes one file request, except that discards are handed
//! over (see [`Trims`]).
//!
//! Flushes of all queues share syncs (see [`GroupSync`]), and so do write-through requests once
//! they have been carried out. A write that finds no sync in flight is durable by itself instead
//! (`RWF_DSYNC`): one host call for a guest that writes one block after the other.
//!
//! After a failed sync the content of the disk is unknown, and the kernel reports the failure only
//! once. So every later flush and write-through request fails, on all queues, until the image is
//! reopened. Reads and plain writes go on.

#[cfg(test)]
use std::collections::BTreeSet;
use std::sync::Arc;

use flowstone_block::{
    Channel, Class, Completion, Errno, Extent, NextLook, Op, Outcome, QueueContext, Reactor,
    Request, mutated,
};
use flowstone_fileio::{FileChannel, FileCompletion, FileOffset, FileOp, FileRequest, MemoryList};
#[cfg(test)]
use flowstone_image::Wait;
use flowstone_image::runtime::completion_queue::CompletionQueue;
use flowstone_image::runtime::group_sync::{Flushes, GroupSync, sync_request};
use flowstone_image::runtime::pace::ActivityCounter;
use flowstone_image::runtime::trims::Trims;
use flowstone_image::runtime::wakers::QueueWaker;
use slab::Slab;

pub(crate) struct RawChannel {
    parts: RawParts,
    in_flight: Slab<Box<Request>>,
    reactor: Reactor,
    waker: Arc<QueueWaker>,
    /// Completions of discards that were handed over.
    completions: Arc<CompletionQueue>,
    /// Discards that have not completed.
    handed_over: usize,
    /// Whether the discarding thread has yet to be woken.
    trims_queued: bool,
    done: Vec<FileCompletion>,
    /// Requests completed without the file.
    completed: Vec<Completion>,
    flushes: Flushes,
    /// Tag of the write that is durable by itself, in the place of a sync.
    durable_write: Option<usize>,
}

/// Tag of the file's sync, which serves several requests.
const SYNC_TAG: usize = usize::MAX;

/// Parts that a queue is made of.
pub(crate) struct RawParts {
    pub file: Box<dyn FileChannel>,
    /// Whether discards are carried out; otherwise they complete without effect.
    pub discards: bool,
    /// Whether a discard makes the range read as zeroes; otherwise zeroes have to be written, and
    /// are not merged with discards.
    pub discards_to_zeroes: bool,
    /// Group sync: fails for good with the first failed sync or durable write.
    pub syncs: Arc<GroupSync>,
    pub trims: Arc<Trims>,
    pub activity: Arc<ActivityCounter>,
}

/// Way to carry out a request.
enum Plan {
    File(FileOp),
    Sync,
    /// Handed over and merged with other discards.
    Trim,
    Nothing,
}

impl RawChannel {
    pub fn new(parts: RawParts, context: &QueueContext) -> Self {
        let waker = QueueWaker::new(&context.reactor);
        let depth = usize::from(context.depth.0);
        Self {
            parts,
            in_flight: Slab::with_capacity(depth),
            completions: Arc::new(CompletionQueue::new(Arc::clone(&waker))),
            reactor: context.reactor.clone(),
            waker,
            handed_over: 0,
            trims_queued: false,
            done: Vec::with_capacity(depth),
            completed: Vec::new(),
            flushes: Flushes::default(),
            durable_write: None,
        }
    }

    /// Returns the states in which its requests wait.
    #[cfg(test)]
    pub fn waits(&self) -> BTreeSet<Wait> {
        #[rustfmt::skip]
        let Self {
            in_flight, handed_over, flushes,
            // Handles to other parts, and finished requests.
            parts: RawParts {
                file: _, discards: _, discards_to_zeroes: _, syncs: _, trims: _, activity: _,
            },
            reactor: _, waker: _, completions: _, trims_queued: _, done: _, completed: _, durable_write: _,
        } = self;
        let states = [
            (Wait::Host, !in_flight.is_empty()),
            (Wait::Discard, *handed_over > 0),
            (Wait::Sync, !flushes.is_idle()),
        ];
        states.into_iter().filter(|(_, holds)| *holds).map(|(wait, _)| wait).collect()
    }

    /// Decides how to carry out `request`.
    fn translate(&self, request: &Request) -> Plan {
        let at = |extent: Extent| FileOffset::new(extent.start_bytes());
        let zero = |extent: Extent| FileOp::Zero { offset: at(extent), bytes: extent.bytes() };
        match request.op {
            Op::Read(extent) => {
                Plan::File(FileOp::Read { offset: at(extent), bytes: extent.bytes() })
            }
            Op::Write(extent) => Plan::File(FileOp::Write {
                offset: at(extent),
                bytes: extent.bytes(),
                durable: false,
            }),
            Op::Flush => Plan::Sync,
            Op::Discard(_) if !self.parts.discards => Plan::Nothing,
            Op::WriteZeroes { extent, unmap }
                if !unmap || !self.parts.discards || !self.parts.discards_to_zeroes =>
            {
                Plan::File(zero(extent))
            }
            Op::Discard(_) | Op::WriteZeroes { .. } => Plan::Trim,
        }
    }

    fn kick_trims(&mut self) {
        if std::mem::take(&mut self.trims_queued) {
            self.parts.trims.kick();
        }
    }

    fn collect_trims(&mut self, done: &mut Vec<Completion>) {
        for Completion { request, outcome } in self.completions.take() {
            self.handed_over -= 1;
            self.complete(request, outcome, done);
        }
    }

    fn start(&mut self, request: Box<Request>, mut op: FileOp) {
        let mut leads = false;
        if let FileOp::Write { durable, .. } = &mut op {
            leads = request.durable && self.flushes.begin_write(&self.parts.syncs);
            let is_durable = mutated("raw.write-through.write-not-durable", leads, false);
            *durable = is_durable;
        }
        // SAFETY: the request stays in `in_flight`, its box and list unmoved, until the file
        // request completes; dropping the channel drops its file first, which waits.
        let memory = unsafe { MemoryList::new(&request.memory) };
        let is_journal = request.class == Class::Journal;
        let tag = self.in_flight.insert(request);
        self.durable_write = self.durable_write.or(leads.then_some(tag));
        let request = FileRequest::new(op, memory, tag).dont_cache(is_journal).first(is_journal);
        self.parts.file.submit(request);
    }

    /// Returns whether the request asks for durability that can no longer be guaranteed.
    fn is_refused(&self, request: &Request) -> bool {
        let promises = request.durable && request.op.modifies() || request.op == Op::Flush;
        promises && self.has_failed()
    }

    fn has_failed(&self) -> bool {
        self.parts.syncs.has_failed()
    }

    /// Makes everything that has completed so far durable on behalf of `request`.
    fn sync(&mut self, request: Box<Request>) {
        let completion = Completion { request, outcome: Ok(()) };
        if self.flushes.submit(&self.parts.syncs, completion, &self.waker) {
            self.parts.file.submit(sync_request(SYNC_TAG));
        }
    }

    fn finish_sync(&mut self, outcome: Outcome) {
        let outcome = mutated("raw.flush.failure-forgotten", outcome, Ok(()));
        if self.flushes.finish(&self.parts.syncs, outcome) {
            self.parts.file.submit(sync_request(SYNC_TAG));
            self.parts.file.kick();
        }
    }

    fn collect_flushes(&mut self, done: &mut Vec<Completion>) {
        let sync = &self.parts.syncs;
        if self.flushes.take_over(sync) {
            self.parts.file.submit(sync_request(SYNC_TAG));
            self.parts.file.kick();
        }
        self.flushes.collect(sync, || sync.has_failed(), done);
    }

    fn finish(&mut self, completion: FileCompletion, done: &mut Vec<Completion>) {
        if completion.tag == SYNC_TAG {
            return self.finish_sync(completion.outcome);
        }
        let request = self.in_flight.remove(completion.tag);
        if self.durable_write.take_if(|tag| *tag == completion.tag).is_some() {
            self.finish_sync(outcome_of_its_sync(&completion));
            let outcome = completion.outcome.and(self.parts.syncs.promise());
            return done.push(Completion { request, outcome });
        }
        self.complete(request, completion.outcome, done);
    }

    /// Completes a request, unless it has to be made durable first.
    fn complete(&mut self, request: Box<Request>, outcome: Outcome, done: &mut Vec<Completion>) {
        let is_promised = request.durable && request.op.modifies();
        let is_promised = mutated("raw.write-through.skips-sync", is_promised, false);
        if is_promised && outcome.is_ok() {
            self.sync(request);
            self.parts.file.kick();
        } else {
            done.push(Completion { request, outcome });
        }
    }
}

/// Returns what the outcome of a durable write says about its sync. Lack of space is an error of
/// the write, which then has no sync: a full host must not end the disk. (If a host's sync reports
/// it nevertheless, then to each open file description, and the next sync uses another one than the
/// writes.) A write that was never submitted to the host (no memory to copy unaligned buffers to)
/// has no sync either.
fn outcome_of_its_sync(write: &FileCompletion) -> Outcome {
    // EFAULT: the kernel found no memory to take the data from, or zeroes in its place; no sync has
    // failed.
    let is_unsynced = matches!(write.outcome, Err(Errno::NOSPC | Errno::DQUOT | Errno::FAULT));
    if is_unsynced || !write.asked { Ok(()) } else { write.outcome }
}

impl Channel for RawChannel {
    fn submit(&mut self, request: Box<Request>) {
        if self.is_refused(&request) {
            self.completed.push(Completion { request, outcome: Err(Errno::IO) });
            return;
        }
        let plan = self.translate(&request);
        if !matches!(plan, Plan::Trim) {
            self.parts.activity.count();
        }
        match plan {
            Plan::File(op) => self.start(request, op),
            Plan::Sync => {
                let syncs = mutated("raw.flush.answered-without-sync", true, false);
                if syncs {
                    self.sync(request);
                } else {
                    self.completed.push(Completion { request, outcome: Ok(()) });
                }
            }
            Plan::Trim => {
                self.handed_over += 1;
                self.trims_queued = true;
                self.parts.trims.submit(request, &self.completions);
            }
            Plan::Nothing => self.completed.push(Completion { request, outcome: Ok(()) }),
        }
    }

    fn kick(&mut self) {
        self.kick_trims();
        self.parts.file.kick();
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.completed);
        let mut finished = std::mem::take(&mut self.done);
        self.parts.file.reap(&mut finished);
        for completion in finished.drain(..) {
            self.finish(completion, done);
        }
        self.done = finished;
        if self.completions.has_completions() {
            self.collect_trims(done);
        }
        if self.flushes.can_advance(&self.parts.syncs) {
            self.collect_flushes(done);
        }
    }

    fn next_look(&mut self) -> NextLook {
        self.kick_trims();
        let has_something = !self.completed.is_empty()
            || self.completions.has_completions()
            || self.flushes.can_advance(&self.parts.syncs);
        NextLook::now_if(has_something).min(self.parts.file.next_look())
    }

    fn retire(&mut self) -> bool {
        let leaves = mutated("raw.retire.goes-on-leading", true, false);
        if leaves {
            self.flushes.leave();
        }
        self.reap(&mut Vec::new());
        let has_discards = mutated("raw.retire.forgets-its-discards", self.handed_over > 0, false);
        let is_idle = mutated("raw.retire.does-not-ask-its-file", self.parts.file.is_idle(), true);
        let has_some = has_discards || self.flushes.is_leading() || !is_idle;
        mutated("raw.channel.retires-while-it-leads", !has_some, true)
    }
}

impl Drop for RawChannel {
    /// Waits for discards: the disk must not change for a queue that is gone. Also waits for a sync
    /// that it leads: other queues wait for it.
    fn drop(&mut self) {
        let mut done = Vec::new();
        self.flushes.leave();
        while self.handed_over > 0 || self.flushes.is_leading() {
            self.completed.clear();
            let reactor = self.reactor.clone();
            reactor.sleep(|| self.next_look());
            self.reap(&mut done);
            done.clear();
        }
    }
}
