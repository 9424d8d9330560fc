//! Freeing space, and finding ranges that have none to free.
//!
//! Guests mostly discard ranges that are free already. Punching a hole in a hole costs little by
//! itself, but file systems lock the file for it and wait for its direct I/O: all reads and writes
//! stall for a moment. A query of the extent map is cheap and stalls no I/O, so a punch begins with
//! one.
//!
//! `SEEK_DATA` alone is not enough: it takes allocated but unwritten space for a hole. `FIEMAP`
//! lists extents of both kinds. A range without either has no space: `SEEK_DATA` covers dirty pages
//! in the page cache, in case a file system lists extents only when they have been written out.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

use flowstone_block::{Errno, Outcome, lock};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};

use crate::FileOffset;
use crate::block_device;
use crate::descriptor::{Descriptors, FileKind};
use crate::zeroes::{is_unsupported, zero, zero_fallback};

/// Most bytes punched with one call: a fragmented file stays locked during the call.
const BYTES_PER_PUNCH: u64 = 128 << 20;

/// Frees the space of a range; it reads as zeroes.
pub fn punch(files: &Descriptors, offset: FileOffset, bytes: u64) -> Outcome {
    let end = offset.forward(bytes).get();
    let mut at = offset.get();
    if files.kind == FileKind::BlockDevice {
        if files.discards_to_zeroes() {
            files.freed_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        return punch_at(files, at, end);
    }
    while at < end {
        at = first_extent(&files.file, at, end);
        if at == end {
            break;
        }
        let stop = end.min(at + BYTES_PER_PUNCH);
        punch_and_weigh(files, at, stop)?;
        at = stop;
    }
    Ok(())
}

/// Frees the space of a range whose content is not needed.
pub fn discard(files: &Descriptors, offset: FileOffset, bytes: u64) -> Outcome {
    if files.discards_to_zeroes() {
        return punch(files, offset, bytes);
    }
    if files.kind == FileKind::Regular {
        // Its file system cannot free parts of files.
        return Ok(());
    }
    files.punches.fetch_add(1, Ordering::Relaxed);
    files.punched_bytes.fetch_add(bytes, Ordering::Relaxed);
    files.freed_bytes.fetch_add(bytes, Ordering::Relaxed);
    block_device::discard(&files.file, offset, bytes)
}

/// Punches a hole and counts the bytes by which the file shrinks: the range may be all data or one
/// block. The kernel punches one range of a file at a time; the lock here tells what each call
/// freed.
fn punch_and_weigh(files: &Descriptors, at: u64, end: u64) -> Outcome {
    let _alone = lock(&files.punching);
    let before = files.allocated_bytes();
    let outcome = punch_at(files, at, end);
    if let (Ok(before), Ok(after)) = (before, files.allocated_bytes()) {
        files.freed_bytes.fetch_add(before.saturating_sub(after), Ordering::Relaxed);
    }
    outcome
}

fn punch_at(files: &Descriptors, at: u64, end: u64) -> Outcome {
    files.punches.fetch_add(1, Ordering::Relaxed);
    files.punched_bytes.fetch_add(end - at, Ordering::Relaxed);
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match fallocate(&files.file, flags, at, end - at) {
        Err(errno) if is_unsupported(errno) => zero_fallback(files, FileOffset::new(at), end - at),
        outcome => outcome,
    }
}

/// Zeroes the data of a range. Holes stay holes, and unwritten extents stay unwritten.
pub fn clear(files: &Descriptors, offset: FileOffset, bytes: u64) -> Outcome {
    if files.kind == FileKind::BlockDevice {
        return punch(files, offset, bytes);
    }
    let end = offset.forward(bytes).get();
    let mut at = offset.get();
    while at < end {
        let (data, hole) = match seek(&files.file, SeekFrom::Data(at)) {
            Ok(data) if data >= end => break,
            Err(Errno::NXIO) => break,
            Ok(data) => (data, seek(&files.file, SeekFrom::Hole(data))?),
            Err(errno) if is_unsupported(errno) => (at, end),
            Err(errno) => return Err(errno),
        };
        let stop = hole.min(end);
        zero(files, FileOffset::new(data), stop - data)?;
        at = stop;
    }
    Ok(())
}

/// Returns the start of the first allocated extent in `at..end`; `end` if there is none, `at` if
/// the file system does not tell.
fn first_extent(file: &File, at: u64, end: u64) -> u64 {
    let listed = match first_listed(file, at, end) {
        Some(listed) if listed > at => listed,
        _ => return at,
    };
    match seek(file, SeekFrom::Data(at)) {
        Ok(data) => data.min(listed),
        Err(Errno::NXIO) => listed,
        Err(_) => at,
    }
}

/// `struct fiemap` of linux/fiemap.h with room for one extent.
#[repr(C)]
#[derive(Default)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extent_logical: u64,
    extent_physical: u64,
    extent_length: u64,
    extent_reserved: [u64; 2],
    extent_flags: u32,
    extent_padding: [u32; 3],
}

// From linux/fs.h: _IOWR('f', 11, struct fiemap), which counts without its extents.
const FS_IOC_FIEMAP: u32 = 0xc020_660b;

/// Returns the number of extents of the file; `None` if the file system does not tell.
pub fn count_extents(file: &File) -> Option<u64> {
    // Without room for extents the call only counts them; delayed allocations are written out
    // first.
    const SYNC: u32 = 1;
    let mut map = Fiemap { length: u64::MAX, flags: SYNC, ..Fiemap::default() };
    list(file, &mut map).then(|| u64::from(map.mapped_extents))
}

/// Returns the start of the first extent that the file system lists, `end` if there is none; `None`
/// if it lists none for any file.
fn first_listed(file: &File, at: u64, end: u64) -> Option<u64> {
    let mut map = Fiemap { start: at, length: end - at, extent_count: 1, ..Fiemap::default() };
    if !list(file, &mut map) {
        return None;
    }
    Some(if map.mapped_extents == 0 { end } else { map.extent_logical.clamp(at, end) })
}

/// Asks for at most one extent. Returns whether the call succeeded.
fn list(file: &File, map: &mut Fiemap) -> bool {
    assert!(map.extent_count <= 1, "room for the extents asked for");
    let request = libc::c_ulong::from(FS_IOC_FIEMAP);
    // SAFETY: the call reads and writes the structure, which has room for the extents asked for.
    unsafe { libc::ioctl(file.as_raw_fd(), request, std::ptr::from_mut(map)) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    const MIB: u64 = 1 << 20;

    fn sparse() -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 * MIB).unwrap();
        file
    }

    fn files(file: File) -> Descriptors {
        Descriptors::new(file, None, FileKind::Regular).unwrap()
    }

    #[test]
    fn data_in_the_page_cache_and_space_without_data_are_no_holes() {
        let file = sparse();
        let end = 64 * MIB;
        if first_listed(&file, 0, end).is_none() {
            flowstone_testkit::skip("this file system lists no extents");
            return;
        }
        assert_eq!(first_extent(&file, 0, end), end);
        // Not written out, and perhaps not allocated yet.
        file.write_all_at(&[1; 4096], 20 * MIB).unwrap();
        assert_eq!(first_extent(&file, 0, end), 20 * MIB);
        assert_eq!(first_extent(&file, 20 * MIB + 512, end), 20 * MIB + 512);
        assert_eq!(first_extent(&file, 0, 20 * MIB), 20 * MIB);
        fallocate(&file, FallocateFlags::empty(), 8 * MIB, MIB).unwrap();
        assert_eq!(first_extent(&file, 0, end), 8 * MIB);
    }

    #[test]
    fn holes_are_not_punched_again_and_unwritten_space_is() {
        let files = files(sparse());
        let punches = || files.punches.load(Ordering::Relaxed);
        punch(&files, FileOffset::new(0), 64 * MIB).unwrap();
        if first_listed(&files.file, 0, MIB).is_some() {
            assert_eq!(punches(), 0);
        }
        fallocate(&files.file, FallocateFlags::empty(), 8 * MIB, 8 * MIB).unwrap();
        files.file.write_all_at(&[1; 8192], 32 * MIB).unwrap();
        let before = punches();
        let given = files.allocated_bytes().unwrap();
        punch(&files, FileOffset::new(512), 40 * MIB).unwrap();
        assert!(punches() > before);
        let left = files.allocated_bytes().unwrap();
        assert!(left < 32 << 10, "space was not returned");
        assert_eq!(files.freed_bytes.load(Ordering::Relaxed), given - left);
        let mut back = [1; 8192];
        files.file.read_exact_at(&mut back, 32 * MIB).unwrap();
        assert_eq!(back, [0; 8192]);
    }
}
