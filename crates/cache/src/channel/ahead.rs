//! Read-ahead for the streams of a queue, by requests of the channel's own.

use std::ops::Range;

use flowstone_block::{
    AlignedBuf, Extent, IoVec, Op, Origin, Outcome, Request, Sector, SectorCount, Token, mutated,
};

use super::reads::Pending;
use super::{CachedChannel, InFlight, Lists, Purpose};
use crate::names::BlockId;
use crate::readahead::Streams;
use crate::table::Fill;
use crate::{BLOCK_BYTES, BLOCK_SECTORS};

/// Read-ahead requests in flight at once.
pub const REQUESTS_MAX: usize = 8;
/// Longest run of held blocks that is read along with the blocks around it, which would be two
/// requests otherwise.
const GAP_MAX: u64 = 16;

/// Read-ahead of a channel.
pub struct AheadReads {
    pub streams: Streams,
    /// Origin of the queue.
    pub origin: Origin,
    /// Ranges in flight.
    pub in_flight: Vec<Range<BlockId>>,
    /// Guests' reads that wait for one of these.
    pub waiting: Vec<(Box<Request>, Extent)>,
    /// Completed requests, for reuse.
    #[expect(clippy::vec_box, reason = "requests travel in their boxes")]
    spare: Vec<Box<Request>>,
}

impl AheadReads {
    pub fn new(origin: Origin) -> Self {
        Self {
            streams: Streams::default(),
            origin,
            in_flight: Vec::new(),
            waiting: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// Returns whether some of these blocks are being read ahead.
    pub fn is_reading(&self, blocks: &Range<BlockId>) -> bool {
        let meets = |it: &Range<BlockId>| it.start < blocks.end && blocks.start < it.end;
        self.in_flight.iter().any(meets)
    }
}

impl CachedChannel {
    /// Reads the blocks of a range that are not held.
    pub(super) fn read_ahead(&mut self, numbers: Range<u64>) {
        let id = |number| BlockId::of_disk(self.disk.number, number);
        let wanted = id(numbers.start)..id(numbers.end);
        if self.ahead.in_flight.len() == REQUESTS_MAX || self.ahead.is_reading(&wanted) {
            self.ahead.streams.came_to(&numbers, numbers.start);
            return;
        }
        let mut lists = self.spare.pop().unwrap_or_default();
        let cache = &self.disk.cache;
        let mut buffer = cache.staging.take();
        let gap = if buffer.is_some() { GAP_MAX } else { 0 };
        let reached = cache.table().begin_ahead(&cache.memory, wanted, gap, &mut lists.fills);
        self.ahead.streams.came_to(&numbers, reached.number());
        let (Some(first), Some(last)) = (lists.fills.first(), lists.fills.last()) else {
            buffer.into_iter().for_each(|buffer| cache.staging.give_back(buffer));
            self.spare.push(lists);
            return;
        };
        let blocks = first.block..BlockId(last.block.0 + 1);
        let count = SectorCount::new((blocks.end.0 - blocks.start.0) * BLOCK_SECTORS);
        let start = Sector::new(blocks.start.number() * BLOCK_SECTORS);
        let op = Op::Read(Extent::new(start, count).expect("blocks of a disk"));
        let mut request = self.ahead.spare.pop().unwrap_or_else(|| Request::new(op, 0));
        request.op = op;
        request.origin = self.ahead.origin;
        if let Some(buffer) = &mut buffer {
            let bytes = (blocks.end.0 - blocks.start.0) as usize * BLOCK_BYTES;
            // SAFETY: the buffer is kept until the request is back.
            request.memory.push(unsafe { IoVec::of(&mut buffer[..bytes]) });
        } else {
            for run in lists.fills.chunk_by(Fill::is_followed_by) {
                // SAFETY: the frames were taken for these fills, kept until the request is back.
                request.memory.push(unsafe { cache.memory.piece(run[0].frame, run.len()) });
            }
        }
        let purpose = Purpose::Ahead(blocks.clone(), buffer);
        self.ahead.in_flight.push(blocks);
        let in_flight = InFlight { op, token: Token::default(), lists, purpose };
        request.token = self.tokens.token(self.in_flight.insert(in_flight));
        self.base.submit(request);
    }

    /// Completes a read-ahead. Reads that waited for it are looked up again.
    pub(super) fn finish_ahead(
        &mut self,
        mut request: Box<Request>,
        mut lists: Lists,
        blocks: &Range<BlockId>,
        buffer: Option<AlignedBuf>,
        outcome: Outcome,
    ) {
        let cache = &self.disk.cache;
        if let Some(buffer) = buffer {
            let copied = if outcome.is_ok() { &lists.fills[..] } else { &[] };
            for (index, Fill { block, frame, .. }) in (0..).zip(copied) {
                let number = block.0 - blocks.start.0;
                let number = mutated("cache.ahead.forgets-gaps", number, index);
                let at = number as usize * BLOCK_BYTES;
                // SAFETY: the frame was taken for this fill.
                let bytes = unsafe { cache.memory.bytes_mut(*frame) };
                bytes.copy_from_slice(&buffer[at..at + BLOCK_BYTES]);
            }
            cache.staging.give_back(buffer);
        }
        let mut table = cache.table();
        for fill in lists.fills.drain(..) {
            table.end_ahead(&cache.memory, fill, outcome.is_ok());
        }
        drop(table);
        self.spare.push(lists);
        request.reset();
        self.ahead.spare.push(request);
        // Ranges in flight do not overlap.
        self.ahead.in_flight.retain(|it| it != blocks);
        // They may have to wait for another one.
        let waiting = self.ahead.waiting.drain(..);
        let again = waiting.map(|(request, extent)| Pending { request, extent, has_waited: true });
        self.reads.pending.extend(again);
    }
}
