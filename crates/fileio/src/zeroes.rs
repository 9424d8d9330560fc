//! Zeroing of ranges that keeps their space.

use std::fs::File;
use std::os::unix::fs::FileExt;

use flowstone_block::{AlignedBuf, Errno, FILL_BYTES_MAX, Outcome, mutated};
use rustix::fs::{FallocateFlags, fallocate};

use crate::FileOffset;
use crate::block_device;
use crate::descriptor::{Descriptors, FileKind};

/// Returns whether a host has no such call, or (a device with large blocks) none for such a range.
pub fn is_unsupported(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::INVAL)
}

/// Makes a range read as zeroes and keeps its space. On a host without a call for that at most
/// [`FILL_BYTES_MAX`] are written.
pub fn zero(files: &Descriptors, offset: FileOffset, bytes: u64) -> Outcome {
    let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    match fallocate(&files.file, flags, offset.get(), bytes) {
        Err(errno) if is_unsupported(errno) => {
            let is_too_long = bytes > FILL_BYTES_MAX;
            let is_too_long = mutated("fileio.zero.fills-without-bound", is_too_long, false);
            if is_too_long { Err(Errno::OPNOTSUPP) } else { zero_fallback(files, offset, bytes) }
        }
        outcome => outcome,
    }
}

/// Zeroes a range on hosts whose file system or device has no call for it. Must be the last access
/// to the range: a discard after it may change the content.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// 17 requests delayed SIGTERM for a minute and wrote 212 GiB; one of them held a thread for 29
    /// s.
    #[test]
    fn a_host_without_a_call_for_zeroes_is_not_asked_to_write_many() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(1 << 40).unwrap();
        file.write_all_at(&[1; 8192], FILL_BYTES_MAX - 4096).unwrap();
        let files = Descriptors::new(file, None, FileKind::Regular).unwrap();
        assert!(files.zeroes_are_written() && files.discards_to_zeroes());
        let zero = |bytes| zero(&files, FileOffset::new(0), bytes);
        assert_eq!(zero(FILL_BYTES_MAX), Ok(()));
        assert_eq!(zero(FILL_BYTES_MAX + 512), Err(Errno::OPNOTSUPP));
        let mut back = [9; 8192];
        files.file.read_exact_at(&mut back, FILL_BYTES_MAX - 4096).unwrap();
        assert!(back[..4096] == [0; 4096] && back[4096..] == [1; 4096]);
        let written = files.allocated_bytes().unwrap();
        assert!(written <= FILL_BYTES_MAX + (1 << 20), "{written} bytes");
    }
}
