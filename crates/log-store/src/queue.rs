//! Requests of the store in flight: those of a queue of guests, or of the cleaner.

use std::io;

use flowstone_block::{NextLook, QueueContext, mutated};
use flowstone_fileio::{FileChannel, FileCompletion, FileIo, FileOp, FileRequest, MemoryList};
use flowstone_image::runtime::group_sync::sync_request;
use flowstone_log_format::{Address, LIFETIME_CLEANED, LIFETIME_SORTED};

/// See the module. Each request has a tag, which its completion returns.
pub struct StoreQueue {
    file: Box<dyn FileChannel>,
    has_write_streams: bool,
}

/// How the host treats a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hints {
    /// Its page cache does not keep the data.
    pub stays_out: bool,
    /// It goes before other requests at a contended device.
    pub is_first: bool,
}

impl Hints {
    /// Those of a request of a guest's journal, or of others.
    pub const fn of_journal(is_journal: bool) -> Self {
        Self { stays_out: is_journal, is_first: is_journal }
    }
}

impl StoreQueue {
    /// Opens a queue of its own for the thread of `context`.
    pub(crate) fn open(file: &dyn FileIo, context: &QueueContext) -> io::Result<Self> {
        let has_write_streams = file.write_streams() > 0;
        Ok(Self { file: file.channel(context)?, has_write_streams })
    }

    /// Reads blocks that follow each other.
    pub fn read(&mut self, from: Address, memory: MemoryList, tag: usize, hints: Hints) {
        let op = FileOp::Read { offset: from.offset(), bytes: memory.bytes() };
        self.submit(FileRequest::new(op, memory, tag), hints);
    }

    /// Writes a record of a lifetime.
    pub fn append(
        &mut self,
        lifetime: u8,
        at: Address,
        memory: MemoryList,
        tag: usize,
        hints: Hints,
    ) {
        let op = FileOp::Write { offset: at.offset(), bytes: memory.bytes(), durable: false };
        let write_stream = write_stream(lifetime, self.has_write_streams);
        self.submit(FileRequest::new(op, memory, tag).write_stream(write_stream), hints);
    }

    /// Makes all durable that has been written before.
    pub fn sync(&mut self, tag: usize) {
        self.file.submit(sync_request(tag));
    }

    fn submit(&mut self, request: FileRequest, Hints { stays_out, is_first }: Hints) {
        self.file.submit(request.dont_cache(stays_out).first(is_first));
    }

    /// Starts all requests since the last call.
    pub fn kick(&mut self) {
        self.file.kick();
    }

    /// Appends completions to `done`.
    pub fn reap(&mut self, done: &mut Vec<FileCompletion>) {
        self.file.reap(done);
    }

    /// Returns when to look again.
    pub fn next_look(&mut self) -> NextLook {
        self.file.next_look()
    }

    /// Returns whether nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.file.is_idle()
    }
}

/// Returns the write stream of the drive for records of a class: copies outlive what guests have
/// just written. A stream for each class of copies gains half a percent more (`flowstone replay`).
pub(crate) fn write_stream(lifetime: u8, has_write_streams: bool) -> u8 {
    let is_copy = (LIFETIME_CLEANED..=LIFETIME_SORTED).contains(&lifetime);
    let is_apart = is_copy && has_write_streams;
    let is_apart = mutated("log.copies.share-the-stream-of-guests", is_apart, false);
    u8::from(is_apart)
}
