//! One queue of a raw image: each request becomes one file request.
//!
//! After a failed flush nobody knows what is on the disk, and the kernel reports the failure only
//! once. So the image stops promising: every later flush and write-through request fails, on all
//! queues, until the image is opened anew. Reads and plain writes go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flowstone_block::{Channel, Completion, Doorbells, Errno, Extent, Op, QueueDepth, Request};
use flowstone_fileio::{FileChannel, FileCompletion, FileOffset, FileOp, FileRequest, MemoryList};
use slab::Slab;

use crate::DiscardMode;

pub(crate) struct RawChannel {
    file: Box<dyn FileChannel>,
    discard: DiscardMode,
    sync_failed: Arc<AtomicBool>,
    in_flight: Slab<InFlight>,
    done: Vec<FileCompletion>,
    /// Completed without the file's help.
    settled: Vec<Completion>,
}

/// A request and what the file is doing about it.
struct InFlight {
    request: Box<Request>,
    op: FileOp,
}

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
        }
    }

    /// The file operation that carries out `request`; `None` if there is nothing to do.
    fn translate(&self, request: &Request) -> Option<FileOp> {
        let at = |extent: Extent| FileOffset::new(extent.start_bytes());
        let deallocate = self.discard == DiscardMode::Deallocate;
        Some(match request.op {
            Op::Read(extent) => FileOp::Read { offset: at(extent), bytes: extent.bytes() },
            Op::Write(extent) => FileOp::Write {
                offset: at(extent),
                bytes: extent.bytes(),
                durable: request.durable,
            },
            Op::Flush => FileOp::Datasync,
            Op::WriteZeroes { extent, unmap } if unmap && deallocate => {
                FileOp::Punch { offset: at(extent), bytes: extent.bytes() }
            }
            Op::WriteZeroes { extent, .. } => {
                FileOp::Zero { offset: at(extent), bytes: extent.bytes() }
            }
            Op::Discard(extent) if deallocate => {
                FileOp::Punch { offset: at(extent), bytes: extent.bytes() }
            }
            Op::Discard(_) => return None,
        })
    }

    fn start(&mut self, request: Box<Request>, op: FileOp) {
        // SAFETY: the request stays in `in_flight`, its box and list unmoved, until the file
        // request completes; dropping the channel drops `file` first, which waits.
        let memory = unsafe { MemoryList::new(&request.memory) };
        let tag = self.in_flight.insert(InFlight { request, op });
        self.file.submit(FileRequest { op, memory, tag });
    }

    /// Whether the request promises durability that cannot be kept any more.
    fn is_refused(&self, request: &Request) -> bool {
        let promises = request.durable && request.op.modifies() || request.op == Op::Flush;
        promises && self.sync_failed.load(Ordering::Relaxed)
    }

    fn finish(&mut self, completion: FileCompletion, done: &mut Vec<Completion>) {
        let InFlight { request, op } = self.in_flight.remove(completion.tag);
        if completion.outcome.is_err() && op == FileOp::Datasync {
            self.sync_failed.store(true, Ordering::Relaxed);
        }
        // fallocate has no flag that makes it durable: write-through takes a second step.
        let unsynced = matches!(op, FileOp::Punch { .. } | FileOp::Zero { .. }) && request.durable;
        if completion.outcome.is_ok() && unsynced {
            self.start(request, FileOp::Datasync);
            self.file.kick();
            return;
        }
        done.push(Completion { request, outcome: completion.outcome });
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
