//! One queue of a raw image: each request becomes one file request.

use flowstone_block::{Channel, Completion, Doorbells, Extent, Op, QueueDepth, Request};
use flowstone_fileio::{FileChannel, FileCompletion, FileOffset, FileOp, FileRequest, MemoryList};
use slab::Slab;

use crate::DiscardMode;

pub(crate) struct RawChannel {
    file: Box<dyn FileChannel>,
    discard: DiscardMode,
    in_flight: Slab<Box<Request>>,
    done: Vec<FileCompletion>,
    /// Completed without the file's help.
    settled: Vec<Completion>,
}

impl RawChannel {
    pub fn new(file: Box<dyn FileChannel>, depth: QueueDepth, discard: DiscardMode) -> Self {
        let depth = usize::from(depth.0);
        Self {
            file,
            discard,
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
        let tag = self.in_flight.insert(request);
        self.file.submit(FileRequest { op, memory, tag });
    }

    /// The second half of a write-through zeroing: fallocate has no flag that makes it durable.
    fn needs_sync(request: &Request) -> bool {
        request.durable && matches!(request.op, Op::WriteZeroes { .. } | Op::Discard(_))
    }

    fn finish(&mut self, completion: FileCompletion, done: &mut Vec<Completion>) {
        let mut request = self.in_flight.remove(completion.tag);
        if completion.outcome.is_ok() && Self::needs_sync(&request) {
            request.durable = false;
            self.start(request, FileOp::Datasync);
            return;
        }
        done.push(Completion { request, outcome: completion.outcome });
    }
}

impl Channel for RawChannel {
    fn submit(&mut self, request: Box<Request>) {
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
