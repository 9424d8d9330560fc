//! A simulated disk whose channels a test wraps, to hold, delay, refuse or watch their requests.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use flowstone_block::{Errno, QueueContext};
use flowstone_fileio::{FileChannel, FileIo, FileOffset};

use crate::SimDisk;

type Wrap = dyn Fn(Box<dyn FileChannel>) -> Box<dyn FileChannel> + Send + Sync;

/// See the module.
#[derive(Clone)]
pub struct Wrapped {
    disk: SimDisk,
    wrap: Arc<Wrap>,
    /// The smallest unit of reads and writes: that of the disk, unless changed.
    pub block_bytes: u32,
    /// Whether it honours `dont_cache`: not unless changed.
    pub heeds_dont_cache: bool,
    /// Write streams of the drive: none, unless changed.
    pub write_streams: u8,
    /// Name of the threads that get no channel.
    refuses: Option<&'static str>,
}

impl Wrapped {
    /// Wraps each channel to the disk by `wrap`, which runs on the channel's thread.
    pub fn new<C: FileChannel + 'static>(
        disk: &SimDisk,
        wrap: impl Fn(Box<dyn FileChannel>) -> C + Send + Sync + 'static,
    ) -> Self {
        Self::with(disk, Arc::new(move |channel| Box::new(wrap(channel))))
    }

    /// Leaves channels as they are, but threads of this name get none, for want of a descriptor.
    pub fn refusing(disk: &SimDisk, thread: &'static str) -> Self {
        Self { refuses: Some(thread), ..Self::with(disk, Arc::new(|channel| channel)) }
    }

    fn with(disk: &SimDisk, wrap: Arc<Wrap>) -> Self {
        let block_bytes = disk.block_bytes();
        let (heeds_dont_cache, write_streams, refuses) = Default::default();
        Self { disk: disk.clone(), wrap, block_bytes, heeds_dont_cache, write_streams, refuses }
    }
}

impl FileIo for Wrapped {
    fn size(&self) -> io::Result<u64> {
        self.disk.size()
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        self.disk.set_size(bytes)
    }

    fn allocated_bytes(&self) -> io::Result<u64> {
        self.disk.allocated_bytes()
    }

    fn next_data(&self, from: FileOffset) -> io::Result<Option<Range<FileOffset>>> {
        self.disk.next_data(from)
    }

    fn heeds_dont_cache(&self) -> bool {
        self.heeds_dont_cache
    }

    fn write_streams(&self) -> u8 {
        self.write_streams
    }

    fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    fn describe(&self) -> String {
        self.disk.describe()
    }

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn FileChannel>> {
        if self.refuses.is_some() && std::thread::current().name() == self.refuses {
            return Err(Errno::MFILE.into());
        }
        Ok((self.wrap)(self.disk.channel(context)?))
    }
}
