//! What direct I/O demands, and what becomes of requests that do not keep to it.
//!
//! A file is served directly or through the page cache, never both: a buffered write reads the
//! whole page around it, and would put back what a direct write to its neighbour has just
//! replaced. So positions must fit by design (a file whose device wants more than 512-byte
//! alignment is served through the page cache, or told to the guest as its block size), and memory
//! that does not fit (an odd buffer of a firmware driver) is copied through memory that does.

use std::os::fd::AsFd;
use std::ptr;

use flowstone_block::{AlignedBuf, IoVec, SECTOR_BYTES};
use rustix::fs::{AtFlags, StatxFlags, ioctl_blksszget, statx};

use crate::{FileOp, FileRequest};

/// Alignment that direct I/O on a file demands, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectLimits {
    /// Of positions and lengths.
    pub offset_bytes: u64,
    /// Of memory addresses and of each piece's length.
    pub memory_bytes: usize,
}

impl DirectLimits {
    /// The limits of an open file; `None` if its file system has no direct I/O, or does not say
    /// what it demands.
    pub fn of(file: impl AsFd) -> Option<Self> {
        let answer = statx(&file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok();
        let told = answer.filter(|answer| answer.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
        match told {
            Some(answer) if answer.stx_dio_offset_align == 0 => None,
            Some(answer) => Some(Self {
                offset_bytes: u64::from(answer.stx_dio_offset_align),
                memory_bytes: answer.stx_dio_mem_align.max(1) as usize,
            }),
            // Before Linux 6.11, devices do not answer; their logical blocks always fit.
            None => ioctl_blksszget(&file).ok().map(|block_bytes| Self {
                offset_bytes: u64::from(block_bytes),
                memory_bytes: block_bytes as usize,
            }),
        }
    }

    /// Whether every 512-byte sector can be read and written by itself.
    pub fn take_any_sector(&self) -> bool {
        self.offset_bytes <= SECTOR_BYTES
    }

    /// Whether all memory of a request keeps to the limits.
    pub fn admit(&self, memory: &[IoVec]) -> bool {
        // Lengths count against the position's limit too: the kernel cuts requests at pieces.
        let address_mask = self.memory_bytes - 1;
        let length_mask = (self.offset_bytes as usize - 1) | address_mask;
        memory.iter().all(|piece| {
            (piece.address() as usize) & address_mask == 0 && piece.bytes() & length_mask == 0
        })
    }
}

/// Memory of our own that stands in for a request's memory.
pub struct Bounce {
    buffer: AlignedBuf,
    piece: [IoVec; 1],
}

impl Bounce {
    /// A stand-in, if the request needs one under these limits; a write's data is in it.
    pub fn needed(limits: Option<&DirectLimits>, request: &FileRequest) -> Option<Self> {
        let memory = request.memory.pieces();
        if limits.is_none_or(|limits| limits.admit(memory)) {
            return None;
        }
        let mut buffer = AlignedBuf::zeroed(memory.iter().map(|piece| piece.bytes()).sum());
        if matches!(request.op, FileOp::Write { .. }) {
            gather(memory, &mut buffer);
        }
        // SAFETY: the piece names the heap memory of `buffer`, which lives as long as the piece.
        let piece = [unsafe { IoVec::of(&mut buffer) }];
        Some(Self { buffer, piece })
    }

    /// The stand-in as a list of pieces.
    pub fn pieces(&self) -> &[IoVec] {
        &self.piece
    }

    /// Gives a finished read its data.
    pub fn finish(&self, request: &FileRequest) {
        if matches!(request.op, FileOp::Read { .. }) {
            scatter(&self.buffer, request.memory.pieces());
        }
    }
}

/// Copies the memory of a write, piece by piece, to `target`, which has its length.
pub fn gather(pieces: &[IoVec], mut target: &mut [u8]) {
    for piece in pieces {
        let (part, rest) = target.split_at_mut(piece.bytes());
        // SAFETY: the piece is valid for its length, and the target is memory of our own.
        unsafe { ptr::copy_nonoverlapping(piece.address(), part.as_mut_ptr(), part.len()) };
        target = rest;
    }
}

/// Copies `source` to the memory of a read, which has its length.
pub fn scatter(mut source: &[u8], pieces: &[IoVec]) {
    for piece in pieces {
        let (part, rest) = source.split_at(piece.bytes());
        // SAFETY: as for gather, the other way round.
        unsafe { ptr::copy_nonoverlapping(part.as_ptr(), piece.address(), part.len()) };
        source = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileOffset, MemoryList};

    const LIMITS: DirectLimits = DirectLimits { offset_bytes: 512, memory_bytes: 4 };

    #[test]
    fn odd_memory_bounces_and_other_memory_does_not() {
        let mut buffer = AlignedBuf::zeroed(4096);
        for (from, bytes, bounces) in
            [(0, 4096, false), (4, 512, false), (1, 512, true), (0, 511, true)]
        {
            // SAFETY: the buffer outlives the list.
            let list = [unsafe { IoVec::of(&mut buffer[from..from + bytes]) }];
            let op = FileOp::Read { offset: FileOffset::new(0), bytes: bytes as u64 };
            // SAFETY: the list outlives the request.
            let request = FileRequest { op, memory: unsafe { MemoryList::new(&list) }, tag: 0 };
            assert_eq!(
                Bounce::needed(Some(&LIMITS), &request).is_some(),
                bounces,
                "{from} {bytes}"
            );
            assert!(Bounce::needed(None, &request).is_none(), "the page cache takes anything");
        }
    }

    #[test]
    fn a_device_with_large_sectors_does_not_take_small_ones() {
        assert!(LIMITS.take_any_sector());
        assert!(!DirectLimits { offset_bytes: 4096, memory_bytes: 4 }.take_any_sector());
    }
}
