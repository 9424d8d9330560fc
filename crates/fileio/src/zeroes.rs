//! Ranges made zero without giving their space back.

use std::fs::File;
use std::os::unix::fs::FileExt;

use flowstone_block::{AlignedBuf, Errno, Outcome};
use rustix::fs::{FallocateFlags, fallocate};

use crate::FileOffset;
use crate::block_device;
use crate::descriptor::{Descriptors, FileKind};

/// Whether a host says that it has no such call, or (a device with large blocks) none for such a
/// range.
pub fn is_unsupported(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::INVAL)
}

/// Makes a range read as zeroes and keeps its space.
pub fn zero(files: &Descriptors, offset: FileOffset, bytes: u64) -> Outcome {
    let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    match fallocate(&files.file, flags, offset.get(), bytes) {
        Err(errno) if is_unsupported(errno) => zero_fallback(files, offset, bytes),
        outcome => outcome,
    }
}

/// Zeroes for hosts whose file system or device has no call for them. It must be the last that
/// touches the range: a discard after it may bring back anything.
pub fn zero_fallback(files: &Descriptors, offset: FileOffset, bytes: u64) -> Outcome {
    let is_device = files.kind == FileKind::BlockDevice;
    if is_device && block_device::zero_out(&files.file, offset, bytes).is_ok() {
        return Ok(());
    }
    write_zeroes(&files.file, offset, bytes)
}

fn write_zeroes(file: &File, offset: FileOffset, bytes: u64) -> Outcome {
    const CHUNK_BYTES: u64 = 256 << 10;
    let zeroes = AlignedBuf::zeroed(bytes.min(CHUNK_BYTES) as usize);
    let mut done = 0;
    while done < bytes {
        let part = (bytes - done).min(CHUNK_BYTES);
        file.write_all_at(&zeroes[..part as usize], offset.get() + done)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        done += part;
    }
    Ok(())
}
