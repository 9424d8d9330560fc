//! Which requests direct I/O can take.
//!
//! An image is open twice: with O_DIRECT, and through the page cache. A request that fits the
//! device's alignment goes direct. One that does not (a 512-byte sector on a 4 KiB device, an odd
//! buffer of a firmware driver) goes through the page cache, where the kernel does the
//! read-modify-write under its page lock and keeps both views coherent: a direct read writes
//! dirty pages back first, a direct write drops cached ones. No bounce buffers, and no
//! read-modify-write of our own that could race with a neighbouring sector.

use std::os::fd::AsFd;

use flowstone_block::IoVec;
use rustix::fs::{AtFlags, StatxFlags, statx};

use crate::{FileOp, FileRequest};

/// Alignment that direct I/O on a file demands, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectLimits {
    /// Of positions and lengths.
    pub offset_bytes: u64,
    /// Of memory addresses and of each piece's length.
    pub memory_bytes: usize,
}

/// What fits every device, for hosts that do not tell.
const STRICTEST: DirectLimits = DirectLimits { offset_bytes: 4096, memory_bytes: 4096 };

impl DirectLimits {
    /// The limits of an open file; `None` if the file system says that it has no direct I/O.
    pub fn of(file: impl AsFd) -> Option<Self> {
        let Ok(answer) = statx(&file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else {
            return Some(STRICTEST);
        };
        if answer.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
            return Some(STRICTEST);
        }
        if answer.stx_dio_offset_align == 0 {
            return None;
        }
        Some(Self {
            offset_bytes: u64::from(answer.stx_dio_offset_align),
            memory_bytes: answer.stx_dio_mem_align.max(1) as usize,
        })
    }

    /// Whether a request keeps to the limits; operations without memory always do.
    pub fn admit(&self, request: &FileRequest) -> bool {
        match request.op {
            FileOp::Read { offset, bytes } | FileOp::Write { offset, bytes, .. } => {
                (offset.get() | bytes) & (self.offset_bytes - 1) == 0
                    && request.memory.pieces().iter().all(|piece| self.admits_piece(*piece))
            }
            FileOp::Datasync | FileOp::Punch { .. } | FileOp::Zero { .. } => true,
        }
    }

    fn admits_piece(&self, piece: IoVec) -> bool {
        // Lengths count against the offset limit too: the kernel cuts requests at pieces.
        let mask = self.memory_bytes - 1;
        let lengths = (self.offset_bytes as usize - 1) | mask;
        (piece.address() as usize) & mask == 0 && piece.bytes() & lengths == 0
    }
}

#[cfg(test)]
mod tests {
    use flowstone_block::AlignedBuf;

    use super::*;
    use crate::{FileOffset, MemoryList};

    #[test]
    fn odd_positions_and_odd_memory_are_not_admitted() {
        let limits = DirectLimits { offset_bytes: 4096, memory_bytes: 512 };
        let mut buffer = AlignedBuf::zeroed(16384);
        let mut admits = |offset: u64, from: usize, bytes: usize| {
            // SAFETY: the buffer outlives the list.
            let list = [unsafe { IoVec::of(&mut buffer[from..from + bytes]) }];
            let op = FileOp::Read { offset: FileOffset::new(offset), bytes: bytes as u64 };
            // SAFETY: the list outlives the request.
            limits.admit(&FileRequest { op, memory: unsafe { MemoryList::new(&list) }, tag: 0 })
        };
        assert!(admits(8192, 0, 4096));
        assert!(admits(8192, 512, 8192));
        assert!(!admits(512, 0, 4096));
        assert!(!admits(0, 0, 512));
        assert!(!admits(0, 1, 4096));
    }
}
