//! A host file whose requests are charged to a disk.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use flowstone_block::QueueContext;
use flowstone_fileio::{FileChannel, FileIo, FileOffset};

use super::channel::SharedChannel;
use super::member::Member;

/// A file whose requests are charged to a disk's share of the device.
pub struct SharedFile {
    file: Box<dyn FileIo>,
    member: Arc<Member>,
}

impl SharedFile {
    pub(super) fn new(file: Box<dyn FileIo>, member: Arc<Member>) -> Self {
        Self { file, member }
    }
}

impl FileIo for SharedFile {
    fn below(&self) -> Option<&dyn FileIo> {
        Some(&*self.file)
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        self.file.set_size(bytes)
    }

    fn allocated_bytes(&self) -> io::Result<u64> {
        self.file.allocated_bytes()
    }

    fn next_data(&self, from: FileOffset) -> io::Result<Option<Range<FileOffset>>> {
        self.file.next_data(from)
    }

    fn block_bytes(&self) -> u32 {
        self.file.block_bytes()
    }

    fn describe(&self) -> String {
        self.file.describe()
    }

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn FileChannel>> {
        let base = self.file.channel(context)?;
        let member = Arc::clone(&self.member);
        Ok(Box::new(SharedChannel::new(base, member, context.reactor.waker())))
    }
}
