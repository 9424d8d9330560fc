//! The lower seam: what an image needs of a host file, and nothing that knows guests.

use std::io;
use std::ops::Range;

use flowstone_block::{Clock, NextLook, QueueContext};

use crate::{Engine, FileCompletion, FileOffset, FileRequest};

/// Space given back to the host: calls made, and bytes in their ranges. Holes that were holes
/// before take no call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Punched {
    /// System calls.
    pub calls: u64,
    /// Bytes of their ranges.
    pub bytes: u64,
    /// Bytes by which they made the file smaller on the host. A device does not say; there it is
    /// the bytes of the ranges.
    pub freed_bytes: u64,
}

/// A host file, shared by all queues of a disk.
pub trait FileIo: Send + Sync {
    /// Size of the file in bytes.
    fn size(&self) -> io::Result<u64>;

    /// Makes the file this long; a longer file reads as zeroes at its end. Durable after the next
    /// [`FileOp::Datasync`](crate::FileOp::Datasync). A block device has the size it has, and says
    /// `EOPNOTSUPP`.
    fn set_size(&self, bytes: u64) -> io::Result<()>;

    /// Bytes that the host has given to the file.
    fn allocated_bytes(&self) -> io::Result<u64>;

    /// The next range at or after `from` that may hold something other than zeroes.
    fn next_data(&self, from: FileOffset) -> io::Result<Option<Range<FileOffset>>>;

    /// In how many extents the host keeps the file, if it tells.
    fn extents(&self) -> Option<u64> {
        None
    }

    /// Returns whether the drive below hears of space that is given back, and giving it back costs
    /// no more than that: a device that takes discards. A file has to get its space again.
    fn tells_drive(&self) -> bool {
        false
    }

    /// What the device below erases as one, in bytes, if it says so.
    fn erase_unit(&self) -> Option<u64> {
        None
    }

    /// Returns whether reads and writes bypass the host's page cache.
    fn is_direct(&self) -> bool {
        false
    }

    /// Returns whether it keeps out of the host's page cache what is to be kept out of it
    /// ([`FileRequest::dont_cache`]).
    fn heeds_dont_cache(&self) -> bool {
        false
    }

    /// Returns whether space that is given back reads as zeroes without being written, so that a
    /// discard is a punch. A file's space does; a device's may not (dm-crypt, thin volumes, some
    /// SSDs).
    fn discards_to_zeroes(&self) -> bool {
        true
    }

    /// Returns whether a discard does anything, or may: a file system may know no way to give a
    /// part of a file back.
    fn takes_discards(&self) -> bool {
        true
    }

    /// Returns whether the host writes what is to be zeroes and keeps its space, for want of a call
    /// that does not. Of such a file no more than a few MiB are made zero with one request.
    fn zeroes_are_written(&self) -> bool {
        false
    }

    /// Returns whether a completed write is still there when the process is killed before it is
    /// flushed. The host's file is; what tests put before it need not be.
    fn survives_a_kill(&self) -> bool {
        true
    }

    /// The host's file system, if it is one that writes what is replaced to another place: space
    /// that is kept for a range does not serve the data to come.
    fn copies_on_write(&self) -> io::Result<Option<&'static str>> {
        Ok(None)
    }

    /// What has been given back to the host since the file was opened.
    fn punched(&self) -> Punched {
        Punched::default()
    }

    /// The number of the device whose time requests take: files with the same one contend for it. A
    /// file in memory has none.
    fn device(&self) -> Option<u64> {
        None
    }

    /// The clock by which requests take time: that of a model if the file lies on one.
    fn clock(&self) -> Clock {
        Clock::default()
    }

    /// Smallest unit in which the file can be read and written, in bytes.
    fn block_bytes(&self) -> u32;

    /// How requests reach the file; nothing where they reach no file of the host.
    fn engine(&self) -> Option<Engine> {
        None
    }

    /// How the file is accessed, in a few words for an operator.
    fn describe(&self) -> String;

    /// A way to submit requests from the thread of `context.reactor`, which is the one that called
    /// this.
    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn FileChannel>>;
}

/// One queue's way into a host file. Every request submitted comes back from
/// [`reap`](Self::reap) exactly once, whole or as an error: short transfers are resumed.
///
/// Dropping a channel waits for what is in flight: until then the host may use its memory.
pub trait FileChannel {
    /// Takes a request; a refusal is a completion.
    fn submit(&mut self, request: FileRequest);

    /// Starts everything submitted so far, with at most one system call.
    fn kick(&mut self);

    /// Appends what has completed. Does not wait.
    fn reap(&mut self, done: &mut Vec<FileCompletion>);

    /// When the channel wants to be looked at again, that is, [`reap`](Self::reap) to be called.
    /// Asked as the last look before the thread sleeps
    /// ([`Reactor::sleep`](flowstone_block::Reactor::sleep)), which starts what has been submitted.
    fn next_look(&mut self) -> NextLook;

    /// Returns whether everything has come back: a drop waits for nothing.
    fn is_idle(&self) -> bool {
        true
    }
}
