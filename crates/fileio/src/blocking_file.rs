//! A host file used with blocking calls: for recovery, checks and background work that have nothing
//! else to do meanwhile.

use std::io;

use flowstone_block::{IoVec, NextLook, Outcome, QueueContext, QueueDepth, Reactor};

use crate::{FileChannel, FileCompletion, FileIo, FileOffset, FileOp, FileRequest, MemoryList};

/// A file with blocking calls. Stays on the thread that made it, as its channel does.
pub struct BlockingFile {
    channel: Box<dyn FileChannel>,
    reactor: Reactor,
    done: Vec<FileCompletion>,
    dont_cache: bool,
    write_stream: u8,
}

/// Requests that [`BlockingFile::read_many`] and its like have in flight.
const DEPTH: usize = 32;

impl BlockingFile {
    /// Opens a channel into `file`.
    pub fn new(file: &dyn FileIo) -> io::Result<Self> {
        let context = QueueContext::alone(QueueDepth(DEPTH as u16))?;
        let channel = file.channel(&context)?;
        let (done, dont_cache, write_stream) = Default::default();
        Ok(Self { channel, reactor: context.reactor, done, dont_cache, write_stream })
    }

    /// Sets whether its reads and writes are to stay out of the host's page cache.
    pub fn set_dont_cache(&mut self, dont_cache: bool) {
        self.dont_cache = dont_cache;
    }

    /// Sets the drive's write stream of the following writes.
    pub fn set_write_stream(&mut self, write_stream: u8) {
        self.write_stream = write_stream;
    }

    /// Returns the reactor, by which other threads end [`wait`](Self::wait).
    pub fn reactor(&self) -> &Reactor {
        &self.reactor
    }

    /// Waits for other threads until `is_ready` returns `true`, with no request of its own in
    /// flight. They store that condition before they wake the reactor.
    pub fn wait(&mut self, is_ready: impl Fn() -> bool) {
        while !is_ready() {
            self.reactor.sleep(|| NextLook::now_if(is_ready()).min(self.channel.next_look()));
        }
    }

    /// Fills `target` from the file.
    pub fn read(&mut self, offset: FileOffset, target: &mut [u8]) -> Outcome {
        let op = FileOp::Read { offset, bytes: target.len() as u64 };
        self.transfer(op, target)
    }

    /// Writes `source` to the file. It is mutable only because memory lists are the same for reads
    /// and writes.
    pub fn write(&mut self, offset: FileOffset, source: &mut [u8]) -> Outcome {
        let op = FileOp::Write { offset, bytes: source.len() as u64, durable: false };
        self.transfer(op, source)
    }

    /// Makes all completed writes durable.
    pub fn sync(&mut self) -> Outcome {
        self.run(FileOp::Datasync)
    }

    /// Carries out an operation that needs no memory.
    pub fn run(&mut self, op: FileOp) -> Outcome {
        self.transfer(op, &mut [])
    }

    /// Carries out an operation with this memory.
    pub fn transfer(&mut self, op: FileOp, memory: &mut [u8]) -> Outcome {
        // SAFETY: the request completes before this call returns.
        let list = [unsafe { IoVec::of(memory) }];
        // SAFETY: as above. An operation without memory has an empty list.
        let memory = unsafe { MemoryList::new(&list[..usize::from(!memory.is_empty())]) };
        self.carry_out(self.request(op, memory, 0))
    }

    fn request(&self, op: FileOp, memory: MemoryList, tag: usize) -> FileRequest {
        let request = FileRequest::new(op, memory, tag).dont_cache(self.dont_cache);
        request.write_stream(self.write_stream)
    }

    /// Carries out a request of another channel, and waits for its completion.
    pub fn carry_out(&mut self, request: FileRequest) -> Outcome {
        self.channel.submit(request);
        loop {
            if let Some(completion) = self.next() {
                return completion.outcome;
            }
        }
    }

    /// Reads many buffers from many offsets, several at a time. Starts no more after the first
    /// error, and returns it.
    pub fn read_many(&mut self, reads: &mut [(FileOffset, &mut [u8])]) -> Outcome {
        self.transfer_many(reads, |offset, bytes| FileOp::Read { offset, bytes })
    }

    /// Writes many buffers to many offsets, like [`read_many`](Self::read_many).
    pub fn write_many(&mut self, writes: &mut [(FileOffset, &mut [u8])]) -> Outcome {
        self.transfer_many(writes, |offset, bytes| FileOp::Write { offset, bytes, durable: false })
    }

    fn transfer_many(
        &mut self,
        transfers: &mut [(FileOffset, &mut [u8])],
        op: impl Fn(FileOffset, u64) -> FileOp,
    ) -> Outcome {
        // SAFETY: every request completes before this call returns.
        let lists: Vec<[IoVec; 1]> =
            transfers.iter_mut().map(|(_, memory)| [unsafe { IoVec::of(memory) }]).collect();
        let mut outcome = Ok(());
        let (mut started, mut finished) = (0, 0);
        while finished < started || started < transfers.len() && outcome.is_ok() {
            while started < transfers.len() && started - finished < DEPTH && outcome.is_ok() {
                let (offset, memory) = &transfers[started];
                let op = op(*offset, memory.len() as u64);
                // SAFETY: `lists` is not touched until all have completed.
                let memory = unsafe { MemoryList::new(&lists[started]) };
                self.channel.submit(self.request(op, memory, started));
                started += 1;
            }
            while let Some(completion) = self.next() {
                finished += 1;
                outcome = outcome.and(completion.outcome);
                if self.done.is_empty() {
                    break;
                }
            }
        }
        outcome
    }

    /// Returns the next completion; `None` if the thread woke up without one.
    fn next(&mut self) -> Option<FileCompletion> {
        if self.done.is_empty() {
            self.reactor.sleep(|| self.channel.next_look());
            self.channel.reap(&mut self.done);
        }
        self.done.pop()
    }
}
