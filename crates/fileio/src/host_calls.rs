//! Probes of the calls that a host's file system supports, once per file, before its queues run.

use std::fs::{self, File};
use std::os::fd::AsRawFd;

use flowstone_block::Errno;
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, fstatfs, open};

/// File systems that can zero a range without writing it.
const HAVE_ZERO_RANGE: [u64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];

/// Returns whether the host can zero a range of the file without writing it. Tried on an unnamed
/// temporary file in the same folder; if none can be made, the file system's magic number decides.
pub fn has_zero_range(file: &File) -> bool {
    let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    match scratch_beside(file) {
        Some(scratch) => {
            let made = fallocate(&scratch, flags, 0, 4096);
            !matches!(made, Err(Errno::OPNOTSUPP | Errno::INVAL))
        }
        None => fstatfs(file).is_ok_and(|of| HAVE_ZERO_RANGE.contains(&(of.f_type as u64))),
    }
}

fn scratch_beside(file: &File) -> Option<File> {
    let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    open(path.parent()?, flags, Mode::RUSR | Mode::WUSR).ok().map(File::from)
}

/// Returns whether the file system can free parts of a file. Tried beyond the end, where there is
/// nothing to free.
pub fn has_punch_hole(file: &File) -> bool {
    const FAR_BEHIND: u64 = 1 << 30;
    let Ok(bytes) = file.metadata().map(|it| it.len().next_multiple_of(4096)) else { return true };
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(file, flags, bytes + FAR_BEHIND, 4096) != Err(Errno::OPNOTSUPP)
}
