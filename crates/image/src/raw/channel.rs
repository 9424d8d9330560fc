//! One queue of a raw image: each request becomes one file request, but discards are gathered (see
//! [`Trims`]).
//!
//! Flushes that wait together share one: while one is on its way, later ones gather, and go
//! together when it is back, since it may have begun too early for them.
//!
//! After a failed flush nobody knows what is on the disk, and the kernel reports the failure only
//! once. So the image stops promising: every later flush and write-through request fails, on all
//! queues, until the image is opened anew. Reads and plain writes go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flowstone_block::{
    Channel, Completion, Doorbells, Errno, Extent, Op, Outcome, QueueDepth, Request,
};
use flowstone_fileio::{FileChannel, FileCompletion, FileOffset, FileOp, FileRequest, MemoryList};
use slab::Slab;

use super::trims::Trims;
use crate::DiscardMode;
use crate::discards::DiscardCounters;

#[expect(clippy::vec_box, reason = "requests travel as boxes: a move is a pointer")]
pub(crate) struct RawChannel {
    file: Box<dyn FileChannel>,
    discard: DiscardMode,
    sync_failed: Arc<AtomicBool>,
    in_flight: Slab<Box<Request>>,
    trims: Trims,
    done: Vec<FileCompletion>,
    /// Completed without the file's help.
    settled: Vec<Completion>,
    /// Whether a flush of the file is on its way, and who waits for it.
    syncing: Option<Vec<Box<Request>>>,
    /// Who waits for the next one.
    unsynced: Vec<Box<Request>>,
}

/// The tag of the file's flush, which serves several requests.
const SYNC_TAG: usize = usize::MAX;
/// The tag of a call that serves discards.
const TRIM_TAG: usize = usize::MAX - 1;

/// How a request is carried out.
enum Plan {
    File(FileOp),
    Sync,
    /// Together with others of its kind.
    Trim,
    Nothing,
}

impl RawChannel {
    pub fn new(
        file: Box<dyn FileChannel>,
        depth: QueueDepth,
        discard: DiscardMode,
        sync_failed: Arc<AtomicBool>,
        trims: Arc<DiscardCounters>,
    ) -> Self {
        let depth = usize::from(depth.0);
        Self {
            file,
            discard,
            sync_failed,
            in_flight: Slab::with_capacity(depth),
            trims: Trims::new(trims),
            done: Vec::with_capacity(depth),
            settled: Vec::new(),
            syncing: None,
            unsynced: Vec::new(),
        }
    }

    /// What is to be done about `request`.
    fn translate(&self, request: &Request) -> Plan {
        let at = |extent: Extent| FileOffset::new(extent.start_bytes());
        let zero = |extent: Extent| FileOp::Zero { offset: at(extent), bytes: extent.bytes() };
        let ignored = self.discard == DiscardMode::Ignore;
        match request.op {
            Op::Read(extent) => {
                Plan::File(FileOp::Read { offset: at(extent), bytes: extent.bytes() })
            }
            Op::Write(extent) => Plan::File(FileOp::Write {
                offset: at(extent),
                bytes: extent.bytes(),
                durable: request.durable,
            }),
            Op::Flush => Plan::Sync,
            Op::Discard(_) if ignored => Plan::Nothing,
            Op::WriteZeroes { extent, unmap } if ignored || !unmap => Plan::File(zero(extent)),
            Op::Discard(_) | Op::WriteZeroes { .. } => Plan::Trim,
        }
    }

    /// Carries out the next of the gathered discards, if none is on its way.
    fn start_trim(&mut self) {
        let Some(extent) = self.trims.start() else { return };
        let (offset, bytes) = (FileOffset::new(extent.start_bytes()), extent.bytes());
        let op = match self.discard {
            DiscardMode::Keep => FileOp::Clear { offset, bytes },
            DiscardMode::Deallocate | DiscardMode::Ignore => FileOp::Punch { offset, bytes },
        };
        self.file.submit(FileRequest { op, memory: MemoryList::EMPTY, tag: TRIM_TAG });
    }

    fn finish_trim(&mut self, outcome: Outcome, done: &mut Vec<Completion>) {
        for request in self.trims.finish(outcome) {
            self.settle(request, outcome, done);
        }
        self.start_trim();
        self.file.kick();
    }

    fn start(&mut self, request: Box<Request>, op: FileOp) {
        // SAFETY: the request stays in `in_flight`, its box and list unmoved, until the file
        // request completes; dropping the channel drops `file` first, which waits.
        let memory = unsafe { MemoryList::new(&request.memory) };
        let tag = self.in_flight.insert(request);
        self.file.submit(FileRequest { op, memory, tag });
    }

    /// Whether the request promises durability that cannot be kept any more.
    fn is_refused(&self, request: &Request) -> bool {
        let promises = request.durable && request.op.modifies() || request.op == Op::Flush;
        promises && self.has_failed()
    }

    fn has_failed(&self) -> bool {
        self.sync_failed.load(Ordering::Relaxed)
    }

    /// Makes everything that has completed so far durable on behalf of `request`.
    fn sync(&mut self, request: Box<Request>) {
        self.unsynced.push(request);
        if self.syncing.is_none() {
            self.start_sync();
        }
    }

    fn start_sync(&mut self) {
        self.syncing = Some(std::mem::take(&mut self.unsynced));
        let op = FileOp::Datasync;
        self.file.submit(FileRequest { op, memory: MemoryList::EMPTY, tag: SYNC_TAG });
    }

    fn finish_sync(&mut self, outcome: Outcome, done: &mut Vec<Completion>) {
        if outcome.is_err() {
            self.sync_failed.store(true, Ordering::Relaxed);
        }
        // Another queue may have heard of a failure that concerns us too.
        let outcome = if self.has_failed() { Err(Errno::IO) } else { outcome };
        let served = self.syncing.take().unwrap_or_default();
        done.extend(served.into_iter().map(|request| Completion { request, outcome }));
        if !self.unsynced.is_empty() {
            self.start_sync();
            self.file.kick();
        }
    }

    fn finish(&mut self, completion: FileCompletion, done: &mut Vec<Completion>) {
        if completion.tag == SYNC_TAG {
            return self.finish_sync(completion.outcome, done);
        }
        if completion.tag == TRIM_TAG {
            return self.finish_trim(completion.outcome, done);
        }
        let request = self.in_flight.remove(completion.tag);
        self.settle(request, completion.outcome, done);
    }

    /// Gives a request back, unless it has to be made durable first.
    fn settle(&mut self, request: Box<Request>, outcome: Outcome, done: &mut Vec<Completion>) {
        // fallocate has no flag that makes it durable: write-through takes a second step.
        let zeroing = matches!(request.op, Op::Discard(_) | Op::WriteZeroes { .. });
        match outcome {
            Ok(()) if request.durable && zeroing => {
                self.sync(request);
                self.file.kick();
            }
            // A write that did not fit has lost nothing; one that the disk refused may have.
            Err(Errno::IO) if request.durable => {
                self.sync_failed.store(true, Ordering::Relaxed);
                done.push(Completion { request, outcome });
            }
            outcome => done.push(Completion { request, outcome }),
        }
    }
}

impl Channel for RawChannel {
    fn submit(&mut self, request: Box<Request>) {
        if self.is_refused(&request) {
            self.settled.push(Completion { request, outcome: Err(Errno::IO) });
            return;
        }
        match self.translate(&request) {
            Plan::File(op) => self.start(request, op),
            Plan::Sync => self.sync(request),
            Plan::Trim => self.trims.add(request),
            Plan::Nothing => self.settled.push(Completion { request, outcome: Ok(()) }),
        }
    }

    fn kick(&mut self) {
        self.start_trim();
        self.file.kick();
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.settled);
        let mut finished = std::mem::take(&mut self.done);
        self.file.reap(&mut finished);
        for completion in finished.drain(..) {
            self.finish(completion, done);
        }
        self.done = finished;
    }

    fn sleep(&mut self, bells: &Doorbells<'_>) {
        if self.settled.is_empty() {
            self.start_trim();
            self.file.sleep(bells);
        }
    }
}
