//! Carries out one file request by plain system calls: the reference for all engines.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Mutex;

use flowstone_block::{Errno, IoVec, Outcome, lock, mutated};
use libc::{c_int, iovec, off_t};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, fdatasync, ftruncate, seek};
use rustix::io::retry_on_intr;

use crate::descriptor::{Descriptors, FileKind};
use crate::direct::Bounce;
use crate::zeroes::{is_unsupported, zero};
use crate::{FileCompletion, FileOffset, FileOp, FileRequest, holes};

/// Most pieces of one call (`UIO_MAXIOV`).
const PIECES_PER_CALL_MAX: usize = 1024;

/// Carries out `request`; returns when it is done in full or has failed.
#[expect(clippy::disallowed_methods, reason = "this is FileOp::Datasync")]
pub fn execute(files: &Descriptors, request: &FileRequest) -> FileCompletion {
    if request.is_lost() {
        return FileCompletion::refused(request.tag, Errno::FAULT);
    }
    let outcome = match request.op {
        FileOp::Read { .. } | FileOp::Write { .. } => {
            match Bounce::is_needed(files.direct.as_ref(), request).then(|| Bounce::new(request)) {
                Some(Err(errno)) => return FileCompletion::refused(request.tag, errno),
                Some(Ok(bounce)) => transfer_bounced(files, request, bounce),
                None => transfer_all(files, request, request.memory.pieces()),
            }
        }
        FileOp::Datasync => fdatasync(files.to_sync()),
        FileOp::Punch { offset, bytes } => holes::punch(files, offset, bytes),
        FileOp::Discard { offset, bytes } => holes::discard(files, offset, bytes),
        FileOp::Clear { offset, bytes } => holes::clear(files, offset, bytes),
        FileOp::Zero { offset, bytes } => zero(files, offset, bytes),
        FileOp::Allocate { offset, bytes } => allocate(files, offset, bytes),
    };
    files.carried_out(request, outcome);
    FileCompletion::new(request.tag, request.believe(outcome))
}

/// Transfers a request through a bounce buffer, part by part.
fn transfer_bounced(files: &Descriptors, request: &FileRequest, mut bounce: Bounce) -> Outcome {
    while let Some(part) = bounce.next_part(request) {
        let pieces = part.memory.pieces();
        transfer_all(files, &part, pieces)?;
        let moved = total_bytes(pieces);
        bounce.advance(request, moved)?;
    }
    Ok(())
}

fn transfer_all(files: &Descriptors, request: &FileRequest, pieces: &[IoVec]) -> Outcome {
    let (file, flags) = (&files.file, files.flags(request));
    match request.op {
        FileOp::Read { offset, .. } => {
            let file = files.to_read(request);
            transfer(pieces, offset, |pieces, at| move_some(libc::preadv2, file, pieces, at, flags))
        }
        FileOp::Write { offset, .. } => {
            let flags = |at| {
                let first_only = if at == offset { flags } else { flags & !libc::RWF_DSYNC };
                mutated("fileio.blocking.resumes-not-durable", flags, first_only)
            };
            transfer(pieces, offset, |pieces, at| {
                move_some(libc::pwritev2, file, pieces, at, flags(at))
            })
        }
        _ => Ok(()),
    }
}

/// Transfers all pieces with calls that may each be short.
fn transfer(
    pieces: &[IoVec],
    mut offset: FileOffset,
    mut some: impl FnMut(&[IoVec], FileOffset) -> Result<usize, Errno>,
) -> Outcome {
    let mut rest: Vec<IoVec>;
    let mut left = pieces;
    loop {
        let call = &left[..left.len().min(PIECES_PER_CALL_MAX)];
        let moved = match some(call, offset) {
            Ok(moved) => moved,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
        };
        if moved == total_bytes(left) {
            return Ok(());
        }
        if moved == 0 {
            // End of file inside the request: the file has been truncated.
            return Err(Errno::IO);
        }
        offset = offset.forward(moved as u64);
        rest = skip(left, moved);
        left = &rest;
    }
}

fn total_bytes(pieces: &[IoVec]) -> usize {
    pieces.iter().map(|piece| piece.bytes()).sum()
}

/// Returns `pieces` without their first `bytes` bytes.
pub fn skip(pieces: &[IoVec], mut bytes: usize) -> Vec<IoVec> {
    let mut rest = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let gone = bytes.min(piece.bytes());
        bytes -= gone;
        if gone < piece.bytes() {
            rest.push(piece.skip(gone));
        }
    }
    rest
}

/// `preadv2` or `pwritev2`.
type Move = unsafe extern "C" fn(c_int, *const iovec, c_int, off_t, c_int) -> isize;

fn move_some(
    how: Move,
    file: &File,
    pieces: &[IoVec],
    offset: FileOffset,
    flags: i32,
) -> Result<usize, Errno> {
    let (first, count) = (pieces.as_ptr().cast(), pieces.len() as i32);
    // SAFETY: IoVec is laid out as iovec, and the pieces are valid until the request completes.
    let moved = unsafe { how(file.as_raw_fd(), first, count, offset.get() as i64, flags) };
    usize::try_from(moved).map_err(|_| last_errno())
}

fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Allocates host space for a range.
fn allocate(files: &Descriptors, offset: FileOffset, bytes: u64) -> Outcome {
    let call = || fallocate(&files.file, FallocateFlags::empty(), offset.get(), bytes);
    match retry_on_intr(call) {
        Err(errno) if is_unsupported(errno) => allocate_fallback(files, offset.forward(bytes)),
        outcome => outcome,
    }
}

/// Allocates without `fallocate`: a file can at least be extended, and a device's space is fixed.
fn allocate_fallback(files: &Descriptors, end: FileOffset) -> Outcome {
    // Size check and extension must be atomic: an extension based on an old size would truncate
    // what another thread has appended. Writes do not append where space is allocated first.
    static GROWTH: Mutex<()> = Mutex::new(());
    let _alone = lock(&GROWTH);
    let held = seek(&files.file, SeekFrom::End(0))?;
    match files.kind {
        _ if end.get() <= held => Ok(()),
        FileKind::Regular => ftruncate(&files.file, end.get()),
        FileKind::BlockDevice => Err(Errno::NOSPC),
    }
}

#[cfg(test)]
mod calls;
#[cfg(test)]
mod refusal;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_call_for_space_a_file_grows_and_a_device_does_not() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let outcomes = |kind| {
            let file = file.try_clone().unwrap();
            let files = Descriptors::new(file, None, kind).unwrap();
            [4096, 8192, 12288].map(|end| allocate_fallback(&files, FileOffset::new(end)))
        };
        assert_eq!(outcomes(FileKind::BlockDevice), [Ok(()), Ok(()), Err(Errno::NOSPC)]);
        assert_eq!(file.metadata().unwrap().len(), 8192, "a fallback changed a device");
        assert_eq!(outcomes(FileKind::Regular), [Ok(()); 3]);
        assert_eq!(file.metadata().unwrap().len(), 12288);
        assert_eq!(outcomes(FileKind::Regular), [Ok(()); 3]);
        assert_eq!(file.metadata().unwrap().len(), 12288, "space that was there was cut off");
    }
}
