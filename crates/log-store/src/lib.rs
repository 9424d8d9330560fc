//! The store below the log: two superblock slots, and segments that are read, appended to,
//! allocated, freed and synced; [`segments`] knows which of them are in use.
//!
//! Today it is one file with a segment after the other; an [`Address`] is a block of it. Only this
//! crate makes requests of the file, so the log itself does not depend on what its segments are
//! kept in.

mod queue;
mod reader;
pub mod segments;
mod window;

use std::io;
use std::ops::Range;

use flowstone_block::{AlignedBuf, Clock, Outcome, QueueContext, mutated};
use flowstone_fileio::{BlockingFile, FileIo, FileOffset, FileOp};
use flowstone_image::runtime::group_sync::GroupSync;
use flowstone_log_format::{Address, BLOCK_BYTES, SegmentId, Shape, Superblock};

use self::queue::write_stream;
pub use self::queue::{Hints, StoreQueue};
pub use self::reader::Reader;
pub use self::window::Window;

/// The store of an open image: queues and threads get at its segments through it.
pub struct SegmentStore {
    file: Box<dyn FileIo>,
    shape: Shape,
}

impl SegmentStore {
    /// The store in a file whose segments have this shape.
    pub fn new(file: Box<dyn FileIo>, shape: Shape) -> Self {
        Self { file, shape }
    }

    /// Opens a queue for the thread of `context`.
    pub fn queue(&self, context: &QueueContext) -> io::Result<StoreQueue> {
        StoreQueue::open(&*self.file, context)
    }

    /// Opens it with blocking calls.
    pub fn blocking(&self) -> io::Result<BlockingStore> {
        BlockingStore::open(&*self.file, self.shape)
    }

    /// Returns the clock by which its requests are timed.
    pub fn clock(&self) -> Clock {
        self.file.clock()
    }

    /// Returns whether the host keeps requests out of its page cache if it is [asked](Hints) to.
    pub fn heeds_hints(&self) -> bool {
        self.file.heeds_dont_cache()
    }

    /// Returns the size of the file in bytes.
    pub fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    /// Returns the file, for what the host knows of it as a whole. Only the store reads and writes
    /// it while the image is open.
    pub fn file(&self) -> &dyn FileIo {
        &*self.file
    }
}

/// The store with blocking calls, for a thread that changes it.
pub struct BlockingStore {
    file: BlockingFile,
    shape: Shape,
    has_write_streams: bool,
}

impl BlockingStore {
    /// Opens the store in a file whose segments have this shape.
    pub fn open(file: &dyn FileIo, shape: Shape) -> io::Result<Self> {
        let has_write_streams = file.write_streams() > 0;
        Ok(Self { file: BlockingFile::new(file)?, shape, has_write_streams })
    }

    /// Keeps all that it reads and writes out of the host's page cache.
    pub fn keep_out_of_page_cache(&mut self) {
        let keeps_out = mutated("log.cleaner.fills-the-page-cache", true, false);
        self.file.set_dont_cache(keeps_out);
    }

    /// Reads many buffers. Returns the first error.
    pub fn read_many<'a>(
        &mut self,
        reads: impl Iterator<Item = (Address, &'a mut [u8])>,
    ) -> Outcome {
        self.file.read_many(&mut offsets(reads))
    }

    /// Writes a record of a lifetime.
    pub fn append(&mut self, lifetime: u8, at: Address, record: &mut [u8]) -> Outcome {
        self.file.set_write_stream(write_stream(lifetime, self.has_write_streams));
        let outcome = self.file.write(at.offset(), record);
        self.file.set_write_stream(0);
        outcome
    }

    /// Writes a superblock into its slot.
    pub fn write_superblock(&mut self, superblock: &Superblock) -> Outcome {
        let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
        block.copy_from_slice(&superblock.encode());
        self.file.write(superblock.slot().offset(), &mut block)
    }

    /// Allocates space for segments that follow each other.
    pub fn allocate(&mut self, segments: Range<SegmentId>) -> Outcome {
        let (offset, bytes) = self.place(segments);
        self.file.run(FileOp::Allocate { offset, bytes })
    }

    /// Gives back the space of segments that follow each other.
    pub fn free(&mut self, segments: Range<SegmentId>) -> Outcome {
        self.free_within(segments, u64::MAX)
    }

    /// The same, as far as they lie in a file of `size` bytes.
    pub fn free_within(&mut self, segments: Range<SegmentId>, size: u64) -> Outcome {
        let (offset, bytes) = self.place(segments);
        match bytes.min(size.saturating_sub(offset.get())) {
            0 => Ok(()),
            bytes => self.file.run(FileOp::Discard { offset, bytes }),
        }
    }

    fn place(&self, segments: Range<SegmentId>) -> (FileOffset, u64) {
        let count = segments.end.get().saturating_sub(segments.start.get());
        let offset = self.shape.address(segments.start, 0).offset();
        (offset, u64::from(count) * self.shape.segment_bytes())
    }

    /// Makes all durable that has been written, apart from the group syncs of queues: for threads
    /// that no queue runs beside.
    pub fn sync_alone(&mut self) -> Outcome {
        self.file.sync()
    }

    /// Makes all durable that has been written, with the flushes of queues.
    pub fn sync(&mut self, group: &GroupSync) -> Outcome {
        group.run(&mut self.file)
    }
}

/// Returns the places in the file of what is read.
fn offsets<'a>(
    reads: impl Iterator<Item = (Address, &'a mut [u8])>,
) -> Vec<(FileOffset, &'a mut [u8])> {
    reads.map(|(from, target)| (from.offset(), target)).collect()
}

#[cfg(test)]
mod tests;
