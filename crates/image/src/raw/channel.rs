//! One queue of a raw image: each request becomes one file request.
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

use crate::DiscardMode;

#[expect(clippy::vec_box, reason = "requests travel as boxes: a move is a pointer")]
pub(crate) struct RawChannel {
    file: Box<dyn FileChannel>,
    discard: DiscardMode,
    sync_failed: Arc<AtomicBool>,
    in_flight: Slab<Box<Request>>,
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

impl RawChannel {
    pub fn new(
        file: Box<dyn FileChannel>,
        depth: QueueDepth,
        discard: DiscardMode,
        sync_failed: Arc<AtomicBool>,
    ) -> Self {
        let depth = usize::from(depth.0);
        Self {
            file,
            discard,
            sync_failed,
            in_flight: Slab::with_capacity(depth),
            done: Vec::with_capacity(depth),
            settled: Vec::new(),
            syncing: None,
            unsynced: Vec::new(),
        }
    }

    /// The file operation that carries out `request`; `None` if it is a flush, or if there is
    /// nothing to do.
    fn translate(&self, request: &Request) -> Option<FileOp> {
        let at = |extent: Extent| FileOffset::new(extent.start_bytes());
        Some(match request.op {
            Op::Read(extent) => FileOp::Read { offset: at(extent), bytes: extent.bytes() },
            Op::Write(extent) => FileOp::Write {
                offset: at(extent),
                bytes: extent.bytes(),
                durable: request.durable,
            },
            Op::Discard(extent) | Op::WriteZeroes { extent, unmap: true } => {
                let (offset, bytes) = (at(extent), extent.bytes());
                match (self.discard, request.op) {
                    (DiscardMode::Deallocate, _) => FileOp::Punch { offset, bytes },
                    (DiscardMode::Keep, _) => FileOp::Clear { offset, bytes },
                    (DiscardMode::Ignore, Op::Discard(_)) => return None,
                    (DiscardMode::Ignore, _) => FileOp::Zero { offset, bytes },
                }
            }
            Op::WriteZeroes { extent, unmap: false } => {
                FileOp::Zero { offset: at(extent), bytes: extent.bytes() }
            }
            Op::Flush => return None,
        })
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
        let request = self.in_flight.remove(completion.tag);
        // fallocate has no flag that makes it durable: write-through takes a second step.
        let zeroing = matches!(request.op, Op::Discard(_) | Op::WriteZeroes { .. });
        match completion.outcome {
            Ok(()) if request.durable && zeroing => {
                self.sync(request);
                self.file.kick();
            }
            // A write that did not fit has lost nothing; one that the disk refused may have.
            Err(Errno::IO) if request.durable => {
                self.sync_failed.store(true, Ordering::Relaxed);
                done.push(Completion { request, outcome: completion.outcome });
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
            Some(op) => self.start(request, op),
            None if request.op == Op::Flush => self.sync(request),
            None => self.settled.push(Completion { request, outcome: Ok(()) }),
        }
    }

    fn kick(&mut self) {
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
            self.file.sleep(bells);
        }
    }
}
