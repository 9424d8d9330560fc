//! A taken chain, on its way from one half of a queue to the other.

use flowstone_block::{IoVec, Op, Request, mutated};

use super::super::protocol::{FILLED_SECTORS_MAX, SEGMENTS_MAX, Status};

/// Scatter-list entries that a slot keeps room for between requests: those of a request within the
/// limits.
pub(super) const PIECES_KEPT: usize = SEGMENTS_MAX as usize + 2;

/// Weight of one range of a list: its request here and its state in the layers below.
const PART_WEIGHT: u32 = 8;
/// Log2 of the sectors whose weight equals that of one piece of memory.
const SECTORS_PER_WEIGHT_LOG2: u32 = 3;

/// Address of a request's status byte, in guest memory that its queue keeps mapped.
#[derive(Clone, Copy)]
pub struct StatusPlace(pub(super) *mut u8);

// SAFETY: guest memory may be written from any thread; a half of the queue that is on another
// thread keeps it mapped, too.
unsafe impl Send for StatusPlace {}

/// A taken chain, on its way to the used half.
pub struct Start {
    /// The index of its first descriptor, which names it until it is done.
    pub head: u16,
    /// The address of its status.
    pub status: StatusPlace,
    /// Its work.
    pub work: Work,
}

/// The work of a chain.
pub enum Work {
    /// One request for the disk.
    Submit(Box<Request>),
    /// Requests for the disk, one for each range, in any order.
    #[expect(clippy::vec_box, reason = "requests travel in boxes")]
    Ranges(Vec<Box<Request>>),
    /// An answer with this number of bytes written, and nothing for the disk.
    Answer(Status, u32),
}

impl Work {
    /// Returns the number of completions that it needs.
    pub fn parts(&self) -> usize {
        match self {
            Self::Submit(_) | Self::Answer(..) => 1,
            Self::Ranges(parts) => parts.len(),
        }
    }
}

/// Makes one request per range; the chain's own request is the last.
#[expect(clippy::vec_box, reason = "requests travel in boxes")]
pub(super) fn ranges(mut request: Box<Request>, first: Op, others: Vec<Op>) -> Vec<Box<Request>> {
    let part = |op| {
        let mut part = request.part(op);
        let is_durable = mutated("frontend.queue.parts-are-not-durable", part.durable, false);
        part.durable = is_durable;
        part
    };
    let mut parts: Vec<Box<Request>> = others.into_iter().map(part).collect();
    request.op = first;
    parts.push(request);
    parts
}

/// Frees a large list that holds few pieces. It is not shrunk in place: the remainder would be too
/// small for the next large list, so the heap would grow with each.
pub(super) fn give_back_room(memory: &mut Vec<IoVec>) {
    if memory.capacity() > PIECES_KEPT && memory.len() <= PIECES_KEPT {
        *memory = memory.as_slice().to_vec();
    }
}

/// Returns the weight of a request: the memory that the daemon holds while it is in flight, in
/// units of a piece of memory (16 bytes here). It counts its scatter list, and its size, since a
/// disk with scattered data splits it. Each range of a list weighs [`PART_WEIGHT`].
pub(super) fn weight(request: &Request) -> u32 {
    // At most REQUEST_BYTES_MAX, checked when the chain was read.
    let sectors = request.op.extent().map_or(0, |extent| extent.count().get() as u32);
    request.memory.len() as u32 + (sectors >> SECTORS_PER_WEIGHT_LOG2)
}

/// Returns the weight of a list of ranges: the first one and `others` more. On a host without a
/// call for zeroes they are written: at most the sectors of one range, checked when the chain was
/// read.
pub(super) fn weight_of_ranges(first: &Op, others: usize, zeroes_are_filled: bool) -> u32 {
    let filled = zeroes_are_filled && matches!(first, Op::WriteZeroes { .. });
    let sectors = if filled { FILLED_SECTORS_MAX >> SECTORS_PER_WEIGHT_LOG2 } else { 0 };
    (others as u32 + 1) * PART_WEIGHT + sectors
}
