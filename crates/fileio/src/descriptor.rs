//! The open file descriptions behind a host file.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, OnceLock};

use flowstone_block::{Outcome, mutated};
use rustix::fs::{SeekFrom, seek};

#[cfg(test)]
use crate::again::DESCRIPTORS;
use crate::direct::DirectLimits;
use crate::lock::unlock;
use crate::page_cache::PageCache;
use crate::{FileOp, FileRequest, block_device, host_calls};

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    Regular,
    BlockDevice,
}

/// An open file, as used by its engines.
///
/// There is one descriptor, and every request of the file holds it: so its lock outlives even a
/// killed process until the kernel is done with the last request, and a new daemon cannot overtake
/// an old write.
///
/// Both descriptors are opened and closed with the disk, and never by a queue: on FUSE and NFS
/// either call waits for the server, and a queue's thread may serve other disks.
pub(crate) struct Descriptors {
    pub file: File,
    /// Another description of the file, for syncs: the kernel reports a write-back error once per
    /// description, and an error that a durable write has consumed must reach a flush all the same.
    /// One serves all queues: an image has one sync in flight at a time, and all queues get its
    /// outcome. Reads that stay out of the page cache use it, too.
    pub sync: File,
    /// The limits of direct I/O; `None` if requests go through the page cache.
    pub direct: Option<DirectLimits>,
    /// Hints that keep data out of the page cache; `None` if impossible or not wanted.
    pub page_cache: Option<PageCache>,
    pub kind: FileKind,
    /// A call on the file may wait for a server.
    pub asks_server: bool,
    /// Write streams of the device.
    pub write_streams: u8,
    /// Cached result of [`discards_to_zeroes`](Self::discards_to_zeroes).
    zeroes: OnceLock<bool>,
    /// Cached result of [`zeroes_are_written`](Self::zeroes_are_written).
    written: OnceLock<bool>,
    /// Statistics of freed space: calls, bytes of their ranges, bytes freed. Updated only beside a
    /// system call.
    pub punches: AtomicU64,
    pub punched_bytes: AtomicU64,
    pub freed_bytes: AtomicU64,
    /// Held while a hole is punched in a file.
    pub punching: Mutex<()>,
}

impl Descriptors {
    /// Makes the descriptors of a file without a name.
    #[cfg(test)]
    pub fn new(file: File, direct: Option<DirectLimits>, kind: FileKind) -> io::Result<Self> {
        use std::path::Path;
        let again = crate::again::open_again(&file, Path::new(""), Path::new(DESCRIPTORS));
        Ok(Self::with_sync(file, again.map_err(io::Error::other)?, direct, kind))
    }

    /// Makes the descriptors from `file` and `sync`, another description of the same file.
    pub fn with_sync(file: File, sync: File, direct: Option<DirectLimits>, kind: FileKind) -> Self {
        Self {
            file,
            sync,
            direct,
            page_cache: None,
            kind,
            asks_server: false,
            write_streams: 0,
            zeroes: OnceLock::new(),
            written: OnceLock::new(),
            punches: AtomicU64::new(0),
            punched_bytes: AtomicU64::new(0),
            freed_bytes: AtomicU64::new(0),
            punching: Mutex::new(()),
        }
    }

    /// Returns whether discarded space reads as zeroes without being written.
    pub fn discards_to_zeroes(&self) -> bool {
        *self.zeroes.get_or_init(|| match self.kind {
            FileKind::Regular => host_calls::has_punch_hole(&self.file),
            FileKind::BlockDevice => block_device::discards_to_zeroes(&self.file),
        })
    }

    /// Returns whether a discard has, or may have, an effect.
    pub fn takes_discards(&self) -> bool {
        self.kind == FileKind::BlockDevice || self.discards_to_zeroes()
    }

    /// Returns whether the host zeroes a range by writing and keeps its space, for want of a call
    /// that does not.
    pub fn zeroes_are_written(&self) -> bool {
        *self.written.get_or_init(|| match self.kind {
            FileKind::Regular => !host_calls::has_zero_range(&self.file),
            FileKind::BlockDevice => !block_device::discards_to_zeroes(&self.file),
        })
    }

    /// Returns the size of the file or device in bytes.
    pub fn size(&self) -> io::Result<u64> {
        if self.kind == FileKind::BlockDevice {
            // The metadata of a device node has no size; seek to the end of the device.
            return Ok(seek(&self.file, SeekFrom::End(0))?);
        }
        Ok(self.file.metadata()?.len())
    }

    /// Returns the flags of the call that carries out a read or write.
    pub fn flags(&self, request: &FileRequest) -> i32 {
        let durable = match request.op {
            FileOp::Write { durable: true, .. } => libc::RWF_DSYNC,
            _ => 0,
        };
        let durable = mutated("fileio.write.not-durable", durable, 0);
        durable | self.page_cache.as_ref().map_or(0, |cache| cache.flags(request))
    }

    /// Called when a request has been carried out.
    pub fn carried_out(&self, request: &FileRequest, outcome: Outcome) {
        if let Some(cache) = &self.page_cache {
            cache.carried_out(&self.file, request, outcome);
        }
    }

    /// Returns the description to sync.
    pub fn to_sync(&self) -> &File {
        mutated("fileio.sync.names-the-description-of-writes", &self.sync, &self.file)
    }

    /// Returns the description to read. Where the page cache is to keep nothing of it there is no
    /// readahead either, which would go on behind what is read.
    pub fn to_read(&self, request: &FileRequest) -> &File {
        let keeps_out = request.dont_cache && self.page_cache.is_some();
        let keeps_out = mutated("fileio.read.goes-on-into-the-page-cache", keeps_out, false);
        if keeps_out { &self.sync } else { &self.file }
    }

    /// Returns the bytes that the host has allocated to a file.
    pub fn allocated_bytes(&self) -> io::Result<u64> {
        // st_blocks counts 512-byte units whatever the file system's block size (stat(2)).
        Ok(self.file.metadata()?.blocks() * 512)
    }
}

impl Drop for Descriptors {
    /// Unlocks the file now, before the kernel has freed the rings, so that the next user need not
    /// wait for that: all channels are gone and have waited for their requests.
    fn drop(&mut self) {
        unlock(self.file.as_fd());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel reports a write-back error once per open file description: a write with
    /// `RWF_DSYNC` must not consume the error that the next sync is to report.
    #[test]
    fn syncs_have_a_description_of_their_own() {
        let file = tempfile::tempfile().unwrap();
        let files = Descriptors::new(file, None, FileKind::Regular).unwrap();
        // Two descriptors of one description have one position.
        let both = [&files.file, files.to_sync()];
        for (file, at) in both.iter().zip(1..) {
            seek(file, SeekFrom::Start(at)).unwrap();
        }
        assert_eq!(both.map(|file| seek(file, SeekFrom::Current(0)).unwrap()), [1, 2]);
    }
}
