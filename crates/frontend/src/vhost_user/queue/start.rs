//! A chain that has been taken, on its way from one half of a queue to the other.

use flowstone_block::{IoVec, Op, Request, mutant};

use super::super::protocol::{FILLED_SECTORS_MAX, SEGMENTS_MAX, Status};

/// Pieces of memory that a slot keeps room for between requests: those of a request of a driver
/// that keeps to the limits.
pub(super) const PIECES_KEPT: usize = SEGMENTS_MAX as usize + 2;

/// What one range of a list weighs: its request here, and what becomes of it further down.
const PART_WEIGHT: u32 = 8;
/// Sectors that weigh as much as one piece of memory.
const SECTORS_PER_WEIGHT_LOG2: u32 = 3;

/// Where the status byte of a request goes, in guest memory that its queue keeps mapped.
#[derive(Clone, Copy)]
pub struct StatusPlace(pub(super) *mut u8);

// SAFETY: guest memory may be written from any thread; a half of the queue that is on another
// thread keeps it mapped, too.
unsafe impl Send for StatusPlace {}

/// A chain that has been taken, on its way to the used half.
pub struct Start {
    /// Its first descriptor: what names it until it is done.
    pub head: u16,
    /// Where its status goes.
    pub status: StatusPlace,
    /// What is to be done.
    pub work: Work,
}

/// What a chain asks for.
pub enum Work {
    /// One request for the disk.
    Submit(Box<Request>),
    /// Requests for the disk, one for each range, in any order.
    #[expect(clippy::vec_box, reason = "requests travel in boxes")]
    Ranges(Vec<Box<Request>>),
    /// An answer with so many bytes written, and nothing for the disk.
    Answer(Status, u32),
}

impl Work {
    /// How many completions of the disk it takes.
    pub fn parts(&self) -> usize {
        match self {
            Self::Submit(_) | Self::Answer(..) => 1,
            Self::Ranges(parts) => parts.len(),
        }
    }
}

/// One request for each range, the last of them the chain's own.
#[expect(clippy::vec_box, reason = "requests travel in boxes")]
pub(super) fn ranges(mut request: Box<Request>, first: Op, others: Vec<Op>) -> Vec<Box<Request>> {
    let part = |op| {
        let mut part = request.part(op);
        part.durable &= !mutant("frontend.queue.parts-are-not-durable");
        part
    };
    let mut parts: Vec<Box<Request>> = others.into_iter().map(part).collect();
    request.op = first;
    parts.push(request);
    parts
}

/// Lets go of a large list that holds few pieces. Not by shrinking it where it lies: what the
/// allocator cuts off is too small for the next large list, so it would take new memory for each.
pub(super) fn give_back_room(memory: &mut Vec<IoVec>) {
    if memory.capacity() > PIECES_KEPT && memory.len() <= PIECES_KEPT {
        *memory = memory.as_slice().to_vec();
    }
}

/// What a request makes the daemon hold while it is in flight, in units of a piece of memory (16
/// bytes here): its scatter list, and its size, since a disk whose data is scattered cuts it up. A
/// list of ranges weighs [`PART_WEIGHT`] for each.
pub(super) fn weight(request: &Request) -> u32 {
    // No more than REQUEST_BYTES_MAX, checked when the chain was read.
    let sectors = request.op.extent().map_or(0, |extent| extent.count().get() as u32);
    request.memory.len() as u32 + (sectors >> SECTORS_PER_WEIGHT_LOG2)
}

/// What a list of ranges weighs, of which `others` come after the first one. Where the host has no
/// call for zeroes they are filled: no more sectors than one range may have, which was checked when
/// the chain was read.
pub(super) fn weight_of_ranges(first: &Op, others: usize, zeroes_are_filled: bool) -> u32 {
    let filled = zeroes_are_filled && matches!(first, Op::WriteZeroes { .. });
    let sectors = if filled { FILLED_SECTORS_MAX >> SECTORS_PER_WEIGHT_LOG2 } else { 0 };
    (others as u32 + 1) * PART_WEIGHT + sectors
}
