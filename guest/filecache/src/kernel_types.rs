//! Conversions of attributes, times and flags from and to the FUSE library's types.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{OFlags, Timespec, UTIME_NOW, UTIME_OMIT};

use crate::files::open::Opened;
use crate::library::{FileAttr, FileType, FopenFlags, INodeNo, TimeOrNow};
use crate::open_mode::Mode;
use crate::stamp::Attributes;

/// Converts the flags of an open.
pub fn open_flags(flags: i32) -> OFlags {
    OFlags::from_bits_retain(flags.cast_unsigned())
}

/// Returns the caching flags of an opened file.
pub fn how(opened: &Opened) -> FopenFlags {
    match opened.mode {
        Mode::Direct => FopenFlags::FOPEN_DIRECT_IO,
        _ if opened.keeps_pages => FopenFlags::FOPEN_KEEP_CACHE,
        _ => FopenFlags::empty(),
    }
}

/// Returns the flags of an opened folder: the kernel caches its names, and keeps cached ones if
/// `keeps_names`.
pub fn how_names(keeps_names: bool) -> FopenFlags {
    let keeps = if keeps_names { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() };
    FopenFlags::FOPEN_CACHE_DIR | keeps
}

/// Converts a file type.
pub fn kind(it: rustix::fs::FileType) -> FileType {
    match it {
        rustix::fs::FileType::Directory => FileType::Directory,
        rustix::fs::FileType::Symlink => FileType::Symlink,
        rustix::fs::FileType::Fifo => FileType::NamedPipe,
        rustix::fs::FileType::Socket => FileType::Socket,
        rustix::fs::FileType::CharacterDevice => FileType::CharDevice,
        rustix::fs::FileType::BlockDevice => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

/// Converts the attributes of a node.
pub fn to_kernel(id: u64, it: &Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(id),
        size: it.stamp.size,
        blocks: it.blocks,
        atime: system_time(it.accessed),
        mtime: system_time(it.stamp.modified),
        ctime: system_time(it.stamp.changed),
        kind: kind(it.kind),
        perm: it.mode,
        nlink: it.links,
        uid: it.uid,
        gid: it.gid,
        rdev: it.device_node,
        blksize: it.block_size,
        ..nothing(id)
    }
}

/// Returns attributes of an unknown file.
pub fn nothing(id: u64) -> FileAttr {
    FileAttr {
        ino: INodeNo(id),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

fn system_time(it: Timespec) -> SystemTime {
    let seconds = Duration::from_secs(it.tv_sec.unsigned_abs());
    let whole = if it.tv_sec < 0 { UNIX_EPOCH - seconds } else { UNIX_EPOCH + seconds };
    whole + Duration::from_nanos(it.tv_nsec.unsigned_abs())
}

/// Converts a time to be set.
pub fn to_source(time: Option<TimeOrNow>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(TimeOrNow::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(TimeOrNow::SpecificTime(time)) => match time.duration_since(UNIX_EPOCH) {
            Ok(since) => Timespec {
                tv_sec: since.as_secs().cast_signed(),
                tv_nsec: since.subsec_nanos().into(),
            },
            Err(before) => before_1970(before.duration()),
        },
    }
}

/// Converts a time before 1970: seconds round down, nanoseconds count up from there.
fn before_1970(before: Duration) -> Timespec {
    let part = i64::from(before.subsec_nanos());
    let seconds = -before.as_secs().cast_signed() - i64::from(part > 0);
    Timespec { tv_sec: seconds, tv_nsec: if part > 0 { 1_000_000_000 - part } else { 0 } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_keep_their_fraction() {
        let time = Timespec { tv_sec: -2, tv_nsec: 800_000_000 };
        let there = system_time(time);
        assert_eq!(UNIX_EPOCH.duration_since(there).unwrap(), Duration::from_millis(1200));
        let back = to_source(Some(TimeOrNow::SpecificTime(there)));
        assert_eq!((back.tv_sec, back.tv_nsec), (-2, 800_000_000));
        let whole = to_source(Some(TimeOrNow::SpecificTime(UNIX_EPOCH - Duration::from_secs(3))));
        assert_eq!((whole.tv_sec, whole.tv_nsec), (-3, 0));
    }
}
