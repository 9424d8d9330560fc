//! The open file description behind a host file, and a queue's own share of it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};

use flowstone_block::{Outcome, mutant};
use rustix::fs::{SeekFrom, seek};

use crate::direct::DirectLimits;
use crate::lock::unlock;
use crate::page_cache::PageCache;
use crate::{FileOp, FileRequest, block_device};

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
            punches: AtomicU64::new(0),
            punched_bytes: AtomicU64::new(0),
            freed_bytes: AtomicU64::new(0),
            punching: Mutex::new(()),
        }
    }

    /// Whether space that is given back reads as zeroes without being written.
    pub fn discards_to_zeroes(&self) -> bool {
        let look = || block_device::discards_to_zeroes(&self.file);
        self.kind == FileKind::Regular || *self.zeroes.get_or_init(look)
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
            FileOp::Write { durable: true, .. } if !mutant("fileio.write.not-durable") => {
                libc::RWF_DSYNC
            }
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
    sync: File,
}

impl QueueFile {
    pub fn new(shared: &Arc<Descriptors>) -> io::Result<Arc<Self>> {
        let path = format!("/proc/self/fd/{}", shared.file.as_raw_fd());
        // Without /proc the queues share a description, and one of them gets the error.
        let own = match mutant("fileio.queue.shares-its-sync-description") {
            true => shared.file.try_clone(),
            false => File::open(path),
        };
        let sync = own.or_else(|_| shared.file.try_clone())?;
        Ok(Arc::new(Self { shared: Arc::clone(shared), sync }))
    }

    /// What a sync of this queue names.
    pub fn to_sync(&self) -> &File {
        let is_shared = mutant("fileio.sync.names-the-shared-description");
        if is_shared { &self.shared.file } else { &self.sync }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel tells each open file description once that writing back has failed. With one for all queues,
    /// the first that flushes hears of it, and the others are told that all is well.
    #[test]
    fn each_queue_syncs_through_a_description_of_its_own() {
        let file = tempfile::tempfile().unwrap();
        let shared = Arc::new(Descriptors::new(file, None, FileKind::Regular));
        let queues = [(); 2].map(|()| QueueFile::new(&shared).unwrap());
        // Two descriptors of one description have one position.
        let files = [&shared.file, &queues[0].sync, &queues[1].sync];
        for (file, at) in files.iter().zip(1..) {
            seek(file, SeekFrom::Start(at)).unwrap();
        }
        let positions = files.map(|file| seek(file, SeekFrom::Current(0)).unwrap());
        assert_eq!(positions, [1, 2, 3]);
    }
}
