//! Asynchronous reads and writes of the maintenance worker.

use std::io;

use flowstone_block::{AlignedBuf, IoVec, Outcome, QueueContext, QueueDepth, Reactor};
use flowstone_fileio::{
    FileChannel, FileCompletion, FileIo, FileOffset, FileOp, FileRequest, MemoryList,
};
use slab::Slab;

/// Queue depth: more than are ever in flight.
const DEPTH: u16 = 128;

/// See the module. Each transfer ends when it is [waited for](Self::wait).
pub struct Transfers {
    /// Dropped first, which waits for transfers in flight: the kernel uses `started`.
    channel: Box<dyn FileChannel>,
    reactor: Reactor,
    done: Vec<FileCompletion>,
    started: Slab<Transfer>,
}

/// One transfer.
struct Transfer {
    buffer: AlignedBuf,
    /// Part of the buffer that is transferred. Boxed: the kernel has its address.
    #[expect(dead_code, reason = "only the kernel looks at it")]
    memory: Box<[IoVec; 1]>,
    outcome: Option<Outcome>,
}

/// Identifies a started transfer.
#[derive(Debug)]
pub struct Ticket(usize);

impl Transfers {
    /// Opens a queue of `file`.
    pub fn new(file: &dyn FileIo) -> io::Result<Self> {
        let context = QueueContext::alone(QueueDepth(DEPTH))?;
        let channel = file.channel(&context)?;
        Ok(Self { channel, reactor: context.reactor, done: Vec::new(), started: Slab::new() })
    }

    /// Starts a read into the first `bytes` of a buffer.
    pub fn read(&mut self, offset: FileOffset, buffer: AlignedBuf, bytes: usize) -> Ticket {
        self.start(FileOp::Read { offset, bytes: bytes as u64 }, buffer, bytes)
    }

    /// Starts a write of the first `bytes` of a buffer.
    pub fn write(&mut self, offset: FileOffset, buffer: AlignedBuf, bytes: usize) -> Ticket {
        let op = FileOp::Write { offset, bytes: bytes as u64, durable: false };
        self.start(op, buffer, bytes)
    }

    fn start(&mut self, op: FileOp, mut buffer: AlignedBuf, bytes: usize) -> Ticket {
        // SAFETY: buffer and list stay in `started` until the request has completed; neither moves.
        let memory = Box::new([unsafe { IoVec::of(&mut buffer[..bytes]) }]);
        // SAFETY: as above.
        let list = unsafe { MemoryList::new(&*memory) };
        let key = self.started.insert(Transfer { buffer, memory, outcome: None });
        self.channel.submit(FileRequest::new(op, list, key));
        self.channel.kick();
        Ticket(key)
    }

    /// Returns whether a transfer has completed. Does not block.
    pub fn has_ended(&mut self, ticket: &Ticket) -> bool {
        if self.started[ticket.0].outcome.is_none() {
            self.collect();
        }
        self.started[ticket.0].outcome.is_some()
    }

    /// Waits until a transfer has completed; returns its buffer.
    pub fn wait(&mut self, ticket: Ticket) -> (AlignedBuf, Outcome) {
        loop {
            if let Some(outcome) = self.started[ticket.0].outcome {
                return (self.started.remove(ticket.0).buffer, outcome);
            }
            self.reactor.sleep(|| self.channel.next_look());
            self.collect();
        }
    }

    fn collect(&mut self) {
        self.channel.reap(&mut self.done);
        for completion in self.done.drain(..) {
            self.started[completion.tag].outcome = Some(completion.outcome);
        }
    }
}
