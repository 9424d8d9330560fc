//! A host file whose requests are charged to a disk.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use flowstone_block::{Clock, QueueContext};
use flowstone_fileio::{Engine, FileChannel, FileIo, FileOffset, Punched};

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

    fn extents(&self) -> Option<u64> {
        self.file.extents()
    }

    fn is_direct(&self) -> bool {
        self.file.is_direct()
    }

    fn heeds_dont_cache(&self) -> bool {
        self.file.heeds_dont_cache()
    }

    fn erase_unit(&self) -> Option<u64> {
        self.file.erase_unit()
    }

    fn tells_drive(&self) -> bool {
        self.file.tells_drive()
    }

    fn takes_discards(&self) -> bool {
        self.file.takes_discards()
    }

    fn zeroes_are_written(&self) -> bool {
        self.file.zeroes_are_written()
    }

    fn discards_to_zeroes(&self) -> bool {
        self.file.discards_to_zeroes()
    }

    fn survives_a_kill(&self) -> bool {
        self.file.survives_a_kill()
    }

    fn copies_on_write(&self) -> io::Result<Option<&'static str>> {
        self.file.copies_on_write()
    }

    fn punched(&self) -> Punched {
        self.file.punched()
    }

    fn device(&self) -> Option<u64> {
        self.file.device()
    }

    fn clock(&self) -> Clock {
        self.file.clock()
    }

    fn block_bytes(&self) -> u32 {
        self.file.block_bytes()
    }

    fn engine(&self) -> Option<Engine> {
        self.file.engine()
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
