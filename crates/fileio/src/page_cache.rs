//! Keeps data out of the host's page cache that will not be read again and would evict other data.
//!
//! Linux 6.14 has a flag for this on each call (`RWF_DONTCACHE`). Measured on 6.18, it works for
//! reads on ext4 and XFS, and for writes on XFS; ext4 accepts it on writes and keeps the pages,
//! since its writes end in an interrupt, and btrfs refuses it; and no file system drops pages that
//! were cached before. So the range of a write is also dropped when it has been written back: at
//! the second sync that ends after the write, since the first may have begun before it. (An image
//! has one sync in flight at a time.)
//!
//! Only for files that are accessed through the page cache.

use std::fs::File;
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::sync::Mutex;

use flowstone_block::{Outcome, lock};
use rustix::fs::{Advice, fadvise, fstatfs};

use crate::{FileOffset, FileOp, FileRequest};

/// From linux/magic.h.
const XFS_MAGIC: u64 = 0x5846_5342;
const PAGE_BYTES: u64 = 4096;
/// Ranges remembered until a sync, each of which costs it a call; any beyond that stay in the page
/// cache. A journal is written in few ranges.
const RANGES_MAX: usize = 64;

/// The page-cache hints of a file.
#[derive(Debug)]
pub(crate) struct PageCache {
    /// Flags of reads and writes whose data is not to be cached.
    read_flag: i32,
    write_flag: i32,
    written: Mutex<Written>,
}

/// Written ranges that are to be dropped.
#[derive(Debug, Default)]
struct Written {
    /// Written since the last completed sync.
    fresh: Vec<(u64, u64)>,
    /// Written before it.
    old: Vec<(u64, u64)>,
}

impl PageCache {
    /// Probes the file's file system.
    pub fn of(file: &File) -> Self {
        let read_flag = if takes_the_flag(file) { libc::RWF_DONTCACHE } else { 0 };
        let is_xfs = fstatfs(file).is_ok_and(|told| told.f_type as u64 == XFS_MAGIC);
        let write_flag = if is_xfs { read_flag } else { 0 };
        Self { read_flag, write_flag, written: Mutex::default() }
    }

    /// Returns the flags of the call that carries out a read or write.
    pub fn flags(&self, request: &FileRequest) -> i32 {
        match request.op {
            FileOp::Read { .. } if request.dont_cache => self.read_flag,
            FileOp::Write { .. } if request.dont_cache => self.write_flag,
            _ => 0,
        }
    }

    /// Called when a request has been carried out.
    pub fn carried_out(&self, file: &File, request: &FileRequest, outcome: Outcome) {
        if outcome.is_err() {
            return;
        }
        match request.op {
            FileOp::Read { offset, bytes } if request.dont_cache && self.read_flag == 0 => {
                drop_range(file, (offset.get(), bytes));
            }
            // Already written back.
            FileOp::Write { offset, bytes, durable: true } if request.dont_cache => {
                drop_range(file, (offset.get(), bytes));
            }
            FileOp::Write { offset, bytes, .. } if request.dont_cache => {
                self.remember(offset, bytes);
            }
            FileOp::Datasync => self.drop_old(file),
            _ => {}
        }
    }

    fn remember(&self, offset: FileOffset, bytes: u64) {
        let mut written = lock(&self.written);
        let has_room = written.fresh.len() < RANGES_MAX;
        // Journals are written sequentially, and so are the copies of a log image beside them.
        let mut ranges = written.fresh.iter_mut();
        match ranges.find(|(start, length)| *start + *length == offset.get()) {
            Some((_, length)) => *length += bytes,
            None if has_room => written.fresh.push((offset.get(), bytes)),
            None => {}
        }
    }

    fn drop_old(&self, file: &File) {
        let mut written = lock(&self.written);
        let fresh = std::mem::take(&mut written.fresh);
        let old = std::mem::replace(&mut written.old, fresh);
        drop(written);
        old.into_iter().for_each(|range| drop_range(file, range));
    }
}

/// Returns whether reads accept the flag.
fn takes_the_flag(file: &File) -> bool {
    let mut buffer = [0u8; 512];
    let piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: the piece names the buffer, which outlives the call.
    unsafe { libc::preadv2(file.as_raw_fd(), &raw const piece, 1, 0, libc::RWF_DONTCACHE) >= 0 }
}

/// Drops the clean pages of a range, including pages shared with its neighbours: small file systems
/// have journals of 1 KiB blocks, and Linux drops whole pages only. Pages that cannot be dropped
/// only cost memory.
fn drop_range(file: &File, (start, bytes): (u64, u64)) {
    let (from, to) = (start & !(PAGE_BYTES - 1), (start + bytes).next_multiple_of(PAGE_BYTES));
    let _ = fadvise(file, from, NonZeroU64::new(to - from), Advice::DontNeed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryList;

    fn write(offset: u64, bytes: u64) -> FileRequest {
        let op = FileOp::Write { offset: FileOffset::new(offset), bytes, durable: false };
        FileRequest::new(op, MemoryList::EMPTY, 0).dont_cache(true)
    }

    #[test]
    fn ranges_wait_for_a_sync_that_began_after_them_and_do_not_pile_up() {
        let file = tempfile::tempfile().unwrap();
        let cache = PageCache { read_flag: 0, write_flag: 0, written: Mutex::default() };
        let done = |request: &FileRequest| cache.carried_out(&file, request, Ok(()));
        let sync = FileRequest::new(FileOp::Datasync, MemoryList::EMPTY, 0);
        let ranges = || {
            let Written { fresh, old } = &*cache.written.lock().unwrap();
            (fresh.clone(), old.clone())
        };
        done(&write(4096, 4096));
        done(&write(8192, 4096));
        done(&write(0, 512));
        done(&write(0, 512).dont_cache(false));
        cache.carried_out(&file, &write(1 << 20, 512), Err(flowstone_block::Errno::IO));
        assert_eq!(ranges(), (vec![(4096, 8192), (0, 512)], vec![]));
        done(&sync);
        assert_eq!(ranges(), (vec![], vec![(4096, 8192), (0, 512)]));
        done(&write(0, 512));
        done(&sync);
        assert_eq!(ranges(), (vec![], vec![(0, 512)]));
        (0..5000).for_each(|at| done(&write(at * 8192, 4096)));
        assert_eq!(ranges().0.len(), RANGES_MAX);
    }
}
