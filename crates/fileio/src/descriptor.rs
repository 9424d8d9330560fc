//! The open file description behind a host file, and a queue's own share of it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};

use flowstone_block::Outcome;
use rustix::fs::{SeekFrom, seek};

use crate::direct::DirectLimits;
use crate::lock::unlock;
use crate::page_cache::PageCache;
use crate::{FileOp, FileRequest, block_device, host_calls};

/// What kind of file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    Regular,
    BlockDevice,
}

/// An open file, as its engines see it.
///
/// There is one descriptor, and every request of the file holds it: so the lock on it outlives even
/// a killed process until the kernel is done with the last request, and a new daemon cannot
/// overtake an old write.
pub(crate) struct Descriptors {
    pub file: File,
    /// The limits of direct I/O; absent where requests go through the page cache.
    pub direct: Option<DirectLimits>,
    /// How data is kept out of the page cache; absent where that cannot be, or is not wanted.
    pub page_cache: Option<PageCache>,
    pub kind: FileKind,
    /// What [`discards_to_zeroes`](Self::discards_to_zeroes) has found out.
    zeroes: OnceLock<bool>,
    /// ... and [`zeroes_are_written`](Self::zeroes_are_written).
    written: OnceLock<bool>,
    /// How often space was given back, of which ranges, and how much. Written where a system call
    /// is made anyway.
    pub punches: AtomicU64,
    pub punched_bytes: AtomicU64,
    pub freed_bytes: AtomicU64,
    /// Held while a file is punched.
    pub punching: Mutex<()>,
}

impl Descriptors {
    pub const fn new(file: File, direct: Option<DirectLimits>, kind: FileKind) -> Self {
        Self {
            file,
            direct,
            page_cache: None,
            kind,
            zeroes: OnceLock::new(),
            written: OnceLock::new(),
            punches: AtomicU64::new(0),
            punched_bytes: AtomicU64::new(0),
            freed_bytes: AtomicU64::new(0),
            punching: Mutex::new(()),
        }
    }

    /// Whether space that is given back reads as zeroes without being written.
    pub fn discards_to_zeroes(&self) -> bool {
        *self.zeroes.get_or_init(|| match self.kind {
            FileKind::Regular => host_calls::has_punch_hole(&self.file),
            FileKind::BlockDevice => block_device::discards_to_zeroes(&self.file),
        })
    }

    /// Whether a discard does anything, or may.
    pub fn takes_discards(&self) -> bool {
        self.kind == FileKind::BlockDevice || self.discards_to_zeroes()
    }

    /// Whether the host writes what is to be zeroes and keeps its space, for want of a call that does not.
    pub fn zeroes_are_written(&self) -> bool {
        *self.written.get_or_init(|| match self.kind {
            FileKind::Regular => !host_calls::has_zero_range(&self.file),
            FileKind::BlockDevice => !block_device::discards_to_zeroes(&self.file),
        })
    }

    /// Bytes of the file or device.
    pub fn size(&self) -> io::Result<u64> {
        if self.kind == FileKind::BlockDevice {
            // A device node's metadata has no size; the end of the device does.
            return Ok(seek(&self.file, SeekFrom::End(0))?);
        }
        Ok(self.file.metadata()?.len())
    }

    /// Flags for the call that carries a read or write out.
    pub fn flags(&self, request: &FileRequest) -> i32 {
        let durable = match request.op {
            FileOp::Write { durable: true, .. } => libc::RWF_DSYNC,
            _ => 0,
        };
        durable | self.page_cache.as_ref().map_or(0, |cache| cache.flags(request))
    }

    /// A request has been carried out.
    pub fn carried_out(&self, request: &FileRequest, outcome: Outcome) {
        if let Some(cache) = &self.page_cache {
            cache.carried_out(&self.file, request, outcome);
        }
    }

    /// Bytes that the host has given to a file.
    pub fn allocated_bytes(&self) -> io::Result<u64> {
        // st_blocks counts 512-byte units whatever the file system's block size (stat(2)).
        Ok(self.file.metadata()?.blocks() * 512)
    }
}

impl Drop for Descriptors {
    /// Every channel is gone, and has waited for its requests: the next user need not wait until
    /// the kernel has taken our rings apart.
    fn drop(&mut self) {
        unlock(self.file.as_fd());
    }
}

/// The file as one queue uses it.
pub(crate) struct QueueFile {
    pub shared: Arc<Descriptors>,
    /// A description of the queue's own, to flush with: the kernel tells each description once
    /// that writing back has failed, and every queue must get that error.
    pub sync: File,
}

impl QueueFile {
    pub fn new(shared: &Arc<Descriptors>) -> io::Result<Arc<Self>> {
        let path = format!("/proc/self/fd/{}", shared.file.as_raw_fd());
        // Without /proc the queues share a description, and one of them gets the error.
        let sync = File::open(path).or_else(|_| shared.file.try_clone())?;
        Ok(Arc::new(Self { shared: Arc::clone(shared), sync }))
    }
}
