//! Requirements of direct I/O, and bounce buffers for requests that do not meet them.
//!
//! A file is served either by direct I/O or through the page cache, never both: a buffered write
//! reads the whole page around it, and would undo a direct write to its neighbour. So offsets are
//! aligned by design (a file whose device needs more than 512-byte alignment is served through the
//! page cache, or has its alignment as the guest's block size), and unaligned memory (an odd buffer
//! of a firmware driver) is copied through aligned memory. The guest chooses the size and the
//! number of such requests, so they are copied in parts, and only a few per queue at a time.

use std::collections::VecDeque;
use std::os::fd::AsFd;

use flowstone_block::{AlignedBuf, Errno, IoVec, SECTOR_BYTES, gather, is_whole, mutated, scatter};
use rustix::fs::{AtFlags, StatxFlags, ioctl_blksszget, statx};

use crate::{FileOp, FileRequest, MemoryList};

/// Alignment that direct I/O on a file requires, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectLimits {
    /// Alignment of offsets and lengths.
    pub offset_bytes: u64,
    /// Alignment of memory addresses and of each piece's length.
    pub memory_bytes: usize,
}

impl DirectLimits {
    /// Returns the limits of an open file; `None` if its file system has no direct I/O, or does not
    /// report its requirements.
    pub fn of(file: impl AsFd) -> Option<Self> {
        let answer = statx(&file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok();
        let told = answer.filter(|answer| answer.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
        match told {
            Some(answer) if answer.stx_dio_offset_align == 0 => None,
            Some(answer) => Some(Self {
                offset_bytes: u64::from(answer.stx_dio_offset_align),
                memory_bytes: answer.stx_dio_mem_align.max(1) as usize,
            }),
            // Before Linux 6.11 devices do not answer; their logical block size is always
            // sufficient.
            None => ioctl_blksszget(&file).ok().map(|block_bytes| Self {
                offset_bytes: u64::from(block_bytes),
                memory_bytes: block_bytes as usize,
            }),
        }
    }

    /// Returns whether every 512-byte sector can be read and written by itself.
    pub fn take_any_sector(&self) -> bool {
        self.offset_bytes <= SECTOR_BYTES
    }

    /// Returns whether all memory of a request meets the limits.
    pub fn admit(&self, memory: &[IoVec]) -> bool {
        // Lengths must meet the offset's alignment too: the kernel splits requests at pieces.
        let address_mask = self.memory_bytes - 1;
        let length_mask = (self.offset_bytes as usize - 1) | address_mask;
        memory.iter().all(|piece| {
            (piece.address() as usize) & address_mask == 0 && piece.bytes() & length_mask == 0
        })
    }
}

/// Largest bounce buffer; a larger request goes through it in parts.
pub const BOUNCE_BYTES_MAX: usize = 256 << 10;
/// Requests of a queue that have a bounce buffer at the same time.
const BOUNCES_MAX: usize = 16;

/// A bounce buffer: aligned memory that holds one part of a request after the other.
pub struct Bounce {
    buffer: AlignedBuf,
    /// The part of the buffer for the next transfer; empty when all is done.
    piece: [IoVec; 1],
    /// Bytes of the request that have been transferred.
    done: usize,
}

#[cfg(test)]
thread_local! {
    /// Allocations of bounce buffers fail on this thread.
    pub static HOST_IS_OUT_OF_MEMORY: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

impl Bounce {
    /// Returns whether a request needs a bounce buffer under these limits.
    pub fn is_needed(limits: Option<&DirectLimits>, request: &FileRequest) -> bool {
        limits.is_some_and(|limits| !limits.admit(request.memory.pieces()))
    }

    /// Makes the buffer for the first part of a request, filled with a write's data. `NOMEM` if the
    /// host is out of memory.
    pub fn new(request: &FileRequest) -> Result<Self, Errno> {
        let bytes = (request.memory.bytes() as usize).min(BOUNCE_BYTES_MAX);
        #[cfg(test)]
        if HOST_IS_OUT_OF_MEMORY.get() {
            return Err(Errno::NOMEM);
        }
        let mut buffer = AlignedBuf::try_zeroed(bytes).ok_or(Errno::NOMEM)?;
        // SAFETY: the piece names the heap memory of `buffer`, which lives as long as the piece.
        let piece = [unsafe { IoVec::of(&mut buffer) }];
        let mut bounce = Self { buffer, piece, done: 0 };
        bounce.prepare(request)?;
        Ok(bounce)
    }

    /// Returns the buffer of the next part, as a list of pieces.
    pub fn pieces(&self) -> &[IoVec] {
        &self.piece
    }

    /// Returns the next transfer; `None` when all of `request` is done.
    pub fn next_part(&self, request: &FileRequest) -> Option<FileRequest> {
        let bytes = self.piece[0].bytes() as u64;
        if bytes == 0 {
            return None;
        }
        let mut op = request.op.part(self.done as u64, bytes);
        if let FileOp::Write { durable, .. } = &mut op {
            let first_only = *durable && self.done == 0;
            let is_durable = mutated("fileio.bounce.part-not-durable", *durable, first_only);
            *durable = is_durable;
        }
        // SAFETY: the list and its memory are ours, and are not touched before `advance`.
        Some(FileRequest { op, memory: unsafe { MemoryList::new(&self.piece) }, ..*request })
    }

    /// Called when the first `moved` bytes of the part have been transferred: copies the data of a
    /// read, and prepares the next part. `FAULT` if the memory of its data is lost.
    pub fn advance(&mut self, request: &FileRequest, moved: usize) -> Result<(), Errno> {
        if matches!(request.op, FileOp::Read { .. }) {
            scatter(&self.buffer[..moved], request.memory.pieces(), self.done);
        }
        self.done += moved;
        self.prepare(request)
    }

    fn prepare(&mut self, request: &FileRequest) -> Result<(), Errno> {
        let bytes = (request.memory.bytes() as usize - self.done).min(self.buffer.len());
        if matches!(request.op, FileOp::Write { .. }) {
            gather(request.memory.pieces(), self.done, &mut self.buffer[..bytes]);
            if !is_whole(request.memory.pieces()) {
                return Err(Errno::FAULT);
            }
        }
        // SAFETY: as in `new`.
        self.piece = [unsafe { IoVec::of(&mut self.buffer[..bytes]) }];
        Ok(())
    }
}

/// The requests of a queue that need a bounce buffer: at most [`BOUNCES_MAX`] have one at a time,
/// the others wait. So a queue holds at most 4 MiB of such memory.
#[derive(Default)]
pub struct Bounces {
    started: usize,
    waiting: VecDeque<FileRequest>,
}

impl Bounces {
    /// Returns the request if it may start now; else keeps it until [`ended`](Self::ended) returns
    /// it.
    pub fn admit(&mut self, request: FileRequest) -> Option<FileRequest> {
        if self.started == BOUNCES_MAX {
            self.waiting.push_back(request);
            return None;
        }
        self.started += 1;
        Some(request)
    }

    /// Called when a started request has ended; returns the request that may start now.
    pub fn ended(&mut self) -> Option<FileRequest> {
        self.started -= 1;
        let next = self.waiting.pop_front()?;
        self.started += 1;
        Some(next)
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
            let request = FileRequest::new(op, unsafe { MemoryList::new(&list) }, 0);
            assert_eq!(Bounce::is_needed(Some(&LIMITS), &request), bounces, "{from} {bytes}");
            assert!(!Bounce::is_needed(None, &request), "the page cache takes anything");
        }
    }

    /// A bounce buffer was as large as the request, which a guest can make arbitrarily large.
    #[test]
    fn a_stand_in_is_small_and_moves_all_of_a_request_in_parts_that_may_come_up_short() {
        const BYTES: usize = 3 * BOUNCE_BYTES_MAX + 1536;
        let content: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
        for write in [true, false] {
            let mut guest = if write { content.clone() } else { vec![0; BYTES] };
            let mut file = if write { vec![0; BYTES] } else { content.clone() };
            let (first, rest) = guest.split_at_mut(1001);
            let (second, third) = rest.split_at_mut(BOUNCE_BYTES_MAX + 7);
            // SAFETY: the memory outlives the request.
            let list = [first, second, third].map(|part| unsafe { IoVec::of(part) });
            let (offset, bytes) = (FileOffset::new(512), BYTES as u64);
            let op = match write {
                true => FileOp::Write { offset, bytes, durable: true },
                false => FileOp::Read { offset, bytes },
            };
            // SAFETY: the list outlives the request.
            let request = FileRequest::new(op, unsafe { MemoryList::new(&list) }, 9);
            let mut bounce = Bounce::new(&request).unwrap();
            let mut parts = 0;
            while let Some(part) = bounce.next_part(&request) {
                let [piece] = *part.memory.pieces() else { panic!("one piece") };
                assert!(piece.bytes() <= BOUNCE_BYTES_MAX && LIMITS.admit(&[piece]));
                // Every other transfer is short.
                let moved = if parts % 2 == 0 { piece.bytes() } else { 4096.min(piece.bytes()) };
                let at = match part.op {
                    FileOp::Write { offset, durable: true, .. } | FileOp::Read { offset, .. } => {
                        offset.get() as usize - 512
                    }
                    other => panic!("{other:?}"),
                };
                let place = &mut file[at..at + moved];
                if write {
                    gather(&[piece.truncate(moved)], 0, place);
                } else {
                    scatter(place, &[piece.truncate(moved)], 0);
                }
                bounce.advance(&request, moved).unwrap();
                parts += 1;
            }
            assert!(parts > 4);
            assert!(file == content && guest == content, "write: {write}");
        }
    }

    /// Else zeroes would be written in place of the guest's data.
    #[test]
    fn data_whose_memory_is_lost_is_not_copied_for_a_write() {
        const PAGE: usize = 4096;
        let file = tempfile::tempfile().unwrap();
        file.set_len(PAGE as u64).unwrap();
        let protection = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        let flags = rustix::mm::MapFlags::SHARED;
        // SAFETY: a new mapping touches nothing of ours; it stays until the process ends.
        let (list, _guard) = unsafe {
            let start = rustix::mm::mmap(std::ptr::null_mut(), PAGE, protection, flags, &file, 0);
            let start = start.unwrap().cast::<u8>();
            let list = [IoVec::new(start.add(1), 512)];
            (list, flowstone_block::Guarded::new(start, PAGE, PAGE))
        };
        let (offset, bytes) = (FileOffset::new(0), 512);
        // SAFETY: the list outlives the requests.
        let memory = unsafe { MemoryList::new(&list) };
        let write = FileRequest::new(FileOp::Write { offset, bytes, durable: false }, memory, 0);
        let read = FileRequest::new(FileOp::Read { offset, bytes }, memory, 0);
        assert!(Bounce::new(&write).is_ok());
        file.set_len(0).unwrap();
        assert_eq!(Bounce::new(&write).err(), Some(Errno::FAULT));
        assert!(Bounce::new(&read).is_ok(), "what it reads is not shown");
    }

    #[test]
    fn few_requests_have_a_stand_in_at_a_time_and_the_others_come_in_their_order() {
        let request = |tag| FileRequest::new(FileOp::Datasync, MemoryList::EMPTY, tag);
        let mut bounces = Bounces::default();
        let started = (0..40).filter_map(|tag| bounces.admit(request(tag))).count();
        assert_eq!(started, BOUNCES_MAX);
        let later: Vec<usize> = (0..40).map_while(|_| bounces.ended()).map(|it| it.tag).collect();
        assert_eq!(later, (BOUNCES_MAX..40).collect::<Vec<_>>());
        assert_eq!(bounces.started, BOUNCES_MAX - 1);
    }

    #[test]
    fn a_device_with_large_sectors_does_not_take_small_ones() {
        assert!(LIMITS.take_any_sector());
        assert!(!DirectLimits { offset_bytes: 4096, memory_bytes: 4 }.take_any_sector());
    }
}
