//! The lower interface: the operations of a host file that an image needs, independent of guests.

use std::io;
use std::ops::Range;

use flowstone_block::{Clock, NextLook, QueueContext};

use crate::{Engine, FileCompletion, FileOffset, FileRequest};

/// Statistics of freed host space. Ranges that are already holes take no call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Punched {
    /// System calls.
    pub calls: u64,
    /// Bytes of their ranges.
    pub bytes: u64,
    /// Bytes by which they shrank the file on the host. Unknown for a device; there it is the bytes
    /// of the ranges.
    pub freed_bytes: u64,
}

/// A host file, shared by all queues of a disk.
pub trait FileIo: Send + Sync {
    /// Returns the file that a wrapper without facts of its own is over: methods with a default ask
    /// it first.
    fn below(&self) -> Option<&dyn FileIo> {
        None
    }

    /// Returns the size of the file in bytes.
    fn size(&self) -> io::Result<u64>;

    /// Sets the size of the file; an extension reads as zeroes. Durable after the next
    /// [`FileOp::Datasync`](crate::FileOp::Datasync). The size of a block device is fixed: it fails
    /// with `EOPNOTSUPP`.
    fn set_size(&self, bytes: u64) -> io::Result<()>;

    /// Returns the bytes that the host has allocated to the file.
    fn allocated_bytes(&self) -> io::Result<u64>;

    /// Returns the next range at or after `from` that may hold non-zero data.
    fn next_data(&self, from: FileOffset) -> io::Result<Option<Range<FileOffset>>>;

    /// Returns the number of extents of the file on the host, if it tells.
    fn extents(&self) -> Option<u64> {
        self.below().and_then(|file| file.extents())
    }

    /// Returns whether freed space is passed on to the drive as a discard, and freeing costs no
    /// more than that: a device that takes discards. A file would have to allocate its space again.
    fn tells_drive(&self) -> bool {
        self.below().is_some_and(|file| file.tells_drive())
    }

    /// Returns the erase unit of the device below in bytes, if it is known.
    fn erase_unit(&self) -> Option<u64> {
        self.below().and_then(|file| file.erase_unit())
    }

    /// Returns the number of write streams of the drive (Linux 6.16, NVMe FDP). It keeps apart in
    /// its flash what comes in different streams, so that what dies together is erased together.
    fn write_streams(&self) -> u8 {
        self.below().map_or(0, |file| file.write_streams())
    }

    /// Returns whether reads and writes bypass the host's page cache.
    fn is_direct(&self) -> bool {
        self.below().is_some_and(|file| file.is_direct())
    }

    /// Returns whether it honours [`FileRequest::dont_cache`].
    fn heeds_dont_cache(&self) -> bool {
        self.below().is_some_and(|file| file.heeds_dont_cache())
    }

    /// Returns whether discarded space reads as zeroes without being written, so that a discard is
    /// a punch. A file's space does; a device's may not (dm-crypt, thin volumes, some SSDs).
    fn discards_to_zeroes(&self) -> bool {
        self.below().is_none_or(|file| file.discards_to_zeroes())
    }

    /// Returns whether a discard has, or may have, an effect: a file system may be unable to free
    /// part of a file.
    fn takes_discards(&self) -> bool {
        self.below().is_none_or(|file| file.takes_discards())
    }

    /// Returns whether the host zeroes a range by writing and keeps its space, for want of a call
    /// that does not. Then one request may zero a few MiB only.
    fn zeroes_are_written(&self) -> bool {
        self.below().is_some_and(|file| file.zeroes_are_written())
    }

    /// Returns whether a completed write survives if the process is killed before it is flushed. It
    /// does in a host file; wrappers in tests may buffer it.
    fn survives_a_kill(&self) -> bool {
        self.below().is_none_or(|file| file.survives_a_kill())
    }

    /// Returns the name of the host's file system if it is copy-on-write: allocated space does not
    /// guarantee that later writes to the range find space.
    fn copies_on_write(&self) -> io::Result<Option<&'static str>> {
        self.below().map_or(Ok(None), |file| file.copies_on_write())
    }

    /// Returns the statistics of space freed since the file was opened.
    fn punched(&self) -> Punched {
        self.below().map_or_else(Punched::default, |file| file.punched())
    }

    /// Returns the number of the device that serves requests; files with the same one contend for
    /// it. `None` for a file in memory.
    fn device(&self) -> Option<u64> {
        self.below().and_then(|file| file.device())
    }

    /// Returns the clock by which requests take time: that of a model if the file is on one.
    fn clock(&self) -> Clock {
        self.below().map_or_else(Clock::default, |file| file.clock())
    }

    /// Returns the smallest unit in which the file can be read and written, in bytes.
    fn block_bytes(&self) -> u32;

    /// Returns the engine that serves the file; `None` if it is not a file of the host.
    fn engine(&self) -> Option<Engine> {
        self.below().and_then(|file| file.engine())
    }

    /// Describes the access to the file, in a few words for an operator.
    fn describe(&self) -> String;

    /// Makes a channel for the thread of `context.reactor`, which is the calling thread.
    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn FileChannel>>;
}

/// One queue's way into a host file. Every submitted request comes back from [`reap`](Self::reap)
/// exactly once, in full or as an error: short transfers are resumed.
///
/// Dropping a channel waits for what is in flight: until then the host may use its memory.
pub trait FileChannel {
    /// Takes a request. A refusal is a completion.
    fn submit(&mut self, request: FileRequest);

    /// Starts everything submitted so far, with at most one system call.
    fn kick(&mut self);

    /// Appends completed requests to `done`. Does not wait.
    fn reap(&mut self, done: &mut Vec<FileCompletion>);

    /// Returns when [`reap`](Self::reap) is to be called next. Called last before the thread sleeps
    /// ([`Reactor::sleep`](flowstone_block::Reactor::sleep)), which starts what has been submitted.
    fn next_look(&mut self) -> NextLook;

    /// Returns whether nothing is in flight: a drop waits for nothing.
    fn is_idle(&self) -> bool {
        true
    }
}
