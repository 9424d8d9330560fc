//! A request and its completion: moved down the stack, moved back up, exactly once.

use std::ops::Range;
use std::ptr;

use crate::buffer::for_each_piece;
use crate::{Class, Errno, Extent, IoPriority, IoVec, Origin, Token, gather, scatter};

/// Chunk of the test for zeroes: a few vector instructions.
const ZERO_TEST_BYTES: usize = 256;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Fill the request's memory from the disk.
    Read(Extent),
    /// Put the request's memory on the disk.
    Write(Extent),
    /// Make every write that completed before this request was submitted durable.
    Flush,
    /// Discard the range: it reads as zeroes afterwards, and its space may be freed.
    Discard(Extent),
    /// Make the range read as zeroes.
    WriteZeroes {
        /// The range.
        extent: Extent,
        /// The range's space may be freed.
        unmap: bool,
    },
}

named! {
    /// [`Op`] without its operands, for counters and filters.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[repr(usize)]
    pub enum OpKind {
        /// [`Op::Read`]
        Read = "read",
        /// [`Op::Write`]
        Write = "write",
        /// [`Op::Flush`]
        Flush = "flush",
        /// [`Op::Discard`]
        Discard = "discard",
        /// [`Op::WriteZeroes`]
        WriteZeroes = "write_zeroes",
    }
}

impl Op {
    /// Returns its range; `None` for a flush.
    pub const fn extent(self) -> Option<Extent> {
        match self {
            Self::Read(extent) | Self::Write(extent) | Self::Discard(extent) => Some(extent),
            Self::WriteZeroes { extent, .. } => Some(extent),
            Self::Flush => None,
        }
    }

    /// Returns the length of its range in bytes; 0 for a flush.
    pub fn bytes(self) -> u64 {
        self.extent().map_or(0, Extent::bytes)
    }

    /// Returns its kind.
    pub const fn kind(self) -> OpKind {
        match self {
            Self::Read(_) => OpKind::Read,
            Self::Write(_) => OpKind::Write,
            Self::Flush => OpKind::Flush,
            Self::Discard(_) => OpKind::Discard,
            Self::WriteZeroes { .. } => OpKind::WriteZeroes,
        }
    }

    /// Returns whether it changes the content of the disk.
    pub const fn modifies(self) -> bool {
        matches!(self, Self::Write(_) | Self::Discard(_) | Self::WriteZeroes { .. })
    }
}

/// One request on its way through the stack.
///
/// It travels as `Box<Request>` so that a move is a pointer and the memory list stays at its
/// address, which may have been passed to the kernel. The front end owns a fixed set of boxes and
/// reuses them, so the steady state allocates nothing.
#[derive(Debug)]
pub struct Request {
    /// The operation.
    pub op: Op,
    /// The memory to read into or write from: as long as the operation's extent for reads and
    /// writes, empty otherwise.
    pub memory: Vec<IoVec>,
    /// The change must be durable before it completes (write-through disks).
    pub durable: bool,
    /// The kind of data.
    pub class: Class,
    /// The guest's I/O priority hint.
    pub priority: IoPriority,
    /// The queue it comes from.
    pub origin: Origin,
    /// The submitter's tag, returned unchanged.
    pub tag: u32,
    /// The token of a layer that has made or changed it, returned unchanged.
    pub token: Token,
}

impl Request {
    /// Makes a request without memory.
    pub fn new(op: Op, tag: u32) -> Box<Self> {
        Box::new(Self {
            op,
            memory: Vec::new(),
            durable: false,
            class: Class::default(),
            priority: IoPriority::default(),
            origin: Origin::default(),
            tag,
            token: Token::default(),
        })
    }

    /// Resets a used request for its submitter. Only origin, tag and the capacity of the memory
    /// list are kept.
    pub fn reset(&mut self) {
        // Names all fields, so that a new one cannot be forgotten here.
        let Self { op, memory, durable, class, priority, origin: _, tag: _, token } = self;
        memory.clear();
        (*op, *durable) = (Op::Flush, false);
        (*class, *priority, *token) = (Class::default(), IoPriority::default(), Token::default());
    }

    /// Makes a part of a guest's request: all fields but the operation and the memory are copied.
    pub fn part(&self, op: Op) -> Box<Self> {
        let mut part = Self::new(op, self.tag);
        part.inherit(self, op);
        part
    }

    /// Makes a used request such a part. Its memory list is kept.
    pub fn inherit(&mut self, whole: &Self, op: Op) {
        let Self { op: _, memory: _, durable, class, priority, origin, tag, token } = *whole;
        let memory = std::mem::take(&mut self.memory);
        *self = Self { op, memory, durable, class, priority, origin, tag, token };
    }

    /// Calls `visit` with the pieces of memory of `range`, a range of the request's bytes, in
    /// order.
    ///
    /// # Panics
    /// If the memory is shorter than the range.
    pub fn for_each_piece(&self, range: Range<usize>, visit: impl FnMut(IoVec)) {
        for_each_piece(&self.memory, range, visit);
    }

    /// Fills a part of the request's memory with zeroes.
    pub fn fill_zero(&mut self, range: Range<usize>) {
        self.for_each_piece(range, |piece| {
            // SAFETY: the piece is valid while the request is alive (IoVec::new).
            unsafe { ptr::write_bytes(piece.address(), 0, piece.bytes()) };
        });
    }

    /// Returns whether the request's memory is all zeroes; for other data the first bytes mostly
    /// decide. Each byte is read once, into a copy that the guest cannot change.
    pub fn is_zero(&self) -> bool {
        self.memory.iter().all(|piece| {
            let mut rest = *piece;
            let mut chunk = [0; ZERO_TEST_BYTES];
            while rest.bytes() > 0 {
                let part = rest.truncate(ZERO_TEST_BYTES);
                let copy = &mut chunk[..part.bytes()];
                // SAFETY: `copy` has the part's length, and our memory is never guest memory.
                unsafe {
                    ptr::copy_nonoverlapping(part.address(), copy.as_mut_ptr(), copy.len());
                }
                // Without a branch per byte, so that the compiler vectorises it.
                if copy.iter().fold(0, |all, byte| all | byte) != 0 {
                    return false;
                }
                rest = rest.skip(part.bytes());
            }
            true
        })
    }

    /// Copies `source` into the request's memory from the request's byte `at` on.
    pub fn copy_in(&mut self, at: usize, source: &[u8]) {
        scatter(source, &self.memory, at);
    }

    /// Fills `target` from the request's memory, from the request's byte `at` on.
    pub fn copy_out(&self, at: usize, target: &mut [u8]) {
        gather(&self.memory, at, target);
    }
}

/// The outcome of a request: success, or the host's error number.
pub type Outcome = Result<(), Errno>;

/// A completed request on its way back up the stack.
#[derive(Debug)]
pub struct Completion {
    /// The request, given back to its submitter.
    pub request: Box<Request>,
    /// Its outcome.
    pub outcome: Outcome,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Sector, SectorCount};

    fn telling(op: Op) -> Box<Request> {
        let mut request = Request::new(op, 7);
        request.durable = true;
        request.class = Class::Journal;
        request.priority = IoPriority(3);
        request.origin = Origin::Queue { disk: 2, queue: 5 };
        request.token = crate::TokenSource::new().token(4);
        request
    }

    /// Fields set for a request's first use leaked into the next one.
    #[test]
    fn a_request_that_is_used_again_remembers_its_submitter_only() {
        let mut request = telling(Op::Flush);
        // SAFETY: nothing is read or written there.
        request.memory.push(unsafe { IoVec::of(&mut [0; 16]) });
        request.reset();
        let mut fresh = Request::new(Op::Flush, 7);
        fresh.origin = Origin::Queue { disk: 2, queue: 5 };
        assert_eq!(format!("{request:?}"), format!("{fresh:?}"));
    }

    #[test]
    fn a_part_has_everything_of_the_whole_but_what_to_do() {
        let extent = Extent::new(Sector::new(0), SectorCount::new(2)).unwrap();
        let whole = telling(Op::Flush);
        let mut part = whole.part(Op::Discard(extent));
        assert_eq!(part.op, Op::Discard(extent));
        part.op = Op::Flush;
        assert_eq!(format!("{part:?}"), format!("{whole:?}"));
    }

    #[test]
    fn memory_that_is_cut_at_odd_places_is_copied_in_order() {
        let mut bytes: Vec<u8> = (0..1024u32).map(|i| (i % 251) as u8).collect();
        let original = bytes.clone();
        let extent = Extent::new(Sector::new(0), SectorCount::new(2)).unwrap();
        let mut request = Request::new(Op::Write(extent), 0);
        for range in [0..1, 1..700, 700..1024] {
            // SAFETY: `bytes` outlives the request.
            request.memory.push(unsafe { IoVec::of(&mut bytes[range]) });
        }
        let mut seen = vec![0; 1024];
        request.copy_out(0, &mut seen);
        assert_eq!(seen, original);
    }
}
