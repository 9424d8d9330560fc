//! Space management of block devices, which is more limited than that of files and varies.
//!
//! `fallocate(PUNCH_HOLE)` on a device promises zeroes, so the kernel offers it only if the device
//! can deallocate to zeroes. Other devices have a discard without a promise: dm-crypt decrypts
//! whatever lies below, a thin volume may return zeroes or old data, an SSD either at each read. On
//! those, zeroes have to be written, and a discard afterwards would undo them. So each of the two
//! calls here does one thing.

use std::fs::{self, File};
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use flowstone_block::{Errno, Outcome};

use crate::FileOffset;

/// Plausible erase units: smaller ones are sectors, pages or stripes; larger ones are too large for
/// a segment.
const ERASE_UNITS: RangeInclusive<u64> = (1 << 20)..=(1 << 30);

// From linux/fs.h: _IO(0x12, 119) and _IO(0x12, 127). Both take a start and a length in bytes.
const BLKDISCARD: u32 = 0x1277;
const BLKZEROOUT: u32 = 0x127f;

/// Discards a range. A device that takes no discards, or none of such a range, is left as it is.
pub fn discard(device: &File, offset: FileOffset, bytes: u64) -> Outcome {
    match range_ioctl(device, BLKDISCARD, offset, bytes) {
        Err(Errno::OPNOTSUPP | Errno::INVAL) => Ok(()),
        outcome => outcome,
    }
}

/// Zeroes a range, with the device's own command if it has one.
pub fn zero_out(device: &File, offset: FileOffset, bytes: u64) -> Outcome {
    range_ioctl(device, BLKZEROOUT, offset, bytes)
}

/// Returns whether `fallocate(PUNCH_HOLE)` works on the device, i.e. whether it has a command that
/// leaves zeroes. `false` if the device does not say.
pub fn discards_to_zeroes(device: &File) -> bool {
    let limit = || {
        let folder = queue_folder(device.metadata().ok()?.rdev())?;
        read_number(&folder.join("write_zeroes_max_bytes"))
    };
    limit().is_some_and(|bytes| bytes > 0)
}

/// Returns the erase unit of a device: its discard granularity or optimal I/O size, whichever is
/// larger, if it is in a plausible range. Of a file, that of the device of its file system.
pub fn erase_unit(file: &File) -> Option<u64> {
    let metadata = file.metadata().ok()?;
    let is_device = metadata.file_type().is_block_device();
    let folder = queue_folder(if is_device { metadata.rdev() } else { metadata.dev() })?;
    let limits = ["discard_granularity", "optimal_io_size"];
    let largest = limits.iter().filter_map(|name| read_number(&folder.join(name))).max()?;
    ERASE_UNITS.contains(&largest).then_some(largest / 4096 * 4096)
}

/// Returns the number of write streams of a device; a partition has none.
pub fn write_streams(device: &File) -> u8 {
    let streams = || {
        let device = device.metadata().ok()?.rdev();
        let folder = disk_folder(device)?;
        let is_partition = folder.join("partition").exists();
        let streams = read_number(&folder.join("queue/max_write_streams"))?;
        (!is_partition).then(|| u8::try_from(streams).unwrap_or(u8::MAX))
    };
    streams().unwrap_or(0)
}

/// Returns whether this is a device that takes discards.
pub fn tells_drive(file: &File) -> bool {
    let Ok(metadata) = file.metadata() else { return false };
    let limit = || read_number(&queue_folder(metadata.rdev())?.join("discard_max_bytes"));
    metadata.file_type().is_block_device() && limit().is_some_and(|bytes| bytes > 0)
}

/// Returns the sysfs folder of a device's limits; a partition has those of its disk.
fn queue_folder(device: u64) -> Option<PathBuf> {
    let folder = disk_folder(device)?;
    let disk = if folder.join("partition").exists() { folder.parent()? } else { &folder };
    Some(disk.join("queue"))
}

fn disk_folder(device: u64) -> Option<PathBuf> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()
}

fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn range_ioctl(device: &File, request: u32, offset: FileOffset, bytes: u64) -> Outcome {
    let range = [offset.get(), bytes];
    let request = libc::c_ulong::from(request);
    // SAFETY: both requests read two u64 from the address given, which lives across the call.
    match unsafe { libc::ioctl(device.as_raw_fd(), request, range.as_ptr()) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}
