//! Requests sent below: frames replace part of the guest's memory in a request, which is restored
//! when it completes.

use std::ops::Range;

use flowstone_block::{
    AlignedBuf, Completion, Extent, IoVec, Op, Request, Sector, SectorCount, Token, count,
    is_whole, mutated,
};

use super::{CachedChannel, copy_in, overlap};
use crate::BLOCK_SECTORS;
use crate::names::BlockId;
use crate::table::Fill;

/// Reusable lists.
#[derive(Default)]
pub struct Lists {
    /// Fills of the request, in order.
    pub fills: Vec<Fill>,
    /// If there are fills: the guest's memory, part of which is replaced by frames in the request.
    pub memory: Vec<IoVec>,
}

/// A request below, with what is restored when it completes.
pub struct InFlight {
    pub op: Op,
    pub token: Token,
    pub lists: Lists,
    pub purpose: Purpose,
}

/// Purpose of a request below.
pub enum Purpose {
    /// A guest's read.
    Read,
    /// A guest's change of these blocks.
    Change(Range<BlockId>),
    /// Read-ahead of these blocks, into this buffer if there is one.
    Ahead(Range<BlockId>, Option<AlignedBuf>),
}

impl CachedChannel {
    /// Sends a request below, with frames in place of the guest's memory for its fills.
    pub(super) fn send(
        &mut self,
        mut request: Box<Request>,
        extent: Extent,
        mut lists: Lists,
        purpose: Purpose,
    ) {
        let op = request.op;
        let changes = matches!(purpose, Purpose::Change(_));
        if !lists.fills.is_empty() {
            let whole = self.put_frames(&request, extent, &mut lists);
            if let Op::Read(_) = op {
                request.op = Op::Read(whole);
            }
            let swaps = mutated("cache.write.disk-reads-guest-memory-again", true, !changes);
            if swaps {
                std::mem::swap(&mut request.memory, &mut lists.memory);
            }
        }
        let entry = self.in_flight.vacant_entry();
        let token = std::mem::replace(&mut request.token, self.tokens.token(entry.key()));
        entry.insert(InFlight { op, token, lists, purpose });
        self.base.submit(request);
    }

    /// Makes a memory list in which frames stand for the filled blocks. Returns the extent that it
    /// covers: that of the request, extended to whole blocks at its ends if these are filled.
    fn put_frames(&self, request: &Request, extent: Extent, lists: &mut Lists) -> Extent {
        let Lists { fills, memory: list } = lists;
        let (mut start, mut end) = (extent.start().get(), extent.end().get());
        let mut at = 0;
        for run in fills.chunk_by(Fill::is_followed_by) {
            let (first, last) = (run[0].block.number(), run[run.len() - 1].block.number());
            let before = at..overlap(extent, first).start;
            request.for_each_piece(before, |piece| list.push(piece));
            // SAFETY: the frames were taken for these fills, kept until the request is back.
            list.push(unsafe { self.disk.cache.memory.piece(run[0].frame, run.len()) });
            at = overlap(extent, last).end;
            start = start.min(first * BLOCK_SECTORS);
            end = end.max((last + 1) * BLOCK_SECTORS);
        }
        request.for_each_piece(at..extent.bytes() as usize, |piece| list.push(piece));
        let count = SectorCount::new(end - start);
        Extent::new(Sector::new(start), count).expect("it holds the extent of the request")
    }

    /// Processes a completion. Returns the request as submitted; `None` if other requests were sent
    /// below instead.
    pub(super) fn finish(&mut self, index: usize, completion: Completion) -> Option<Completion> {
        let InFlight { op, token, mut lists, purpose } = self.in_flight.remove(index);
        let Completion { mut request, outcome } = completion;
        if let Purpose::Ahead(blocks, buffer) = purpose {
            self.finish_ahead(request, lists, &blocks, buffer, outcome);
            return None;
        }
        // The error may be in a sector that the guest has not requested.
        let is_larger = mutated("cache.read.fails-for-a-neighbour", request.op != op, false);
        let once_more = outcome.is_err() && is_larger;
        (request.op, request.token) = (op, token);
        if !lists.fills.is_empty() {
            let changes = matches!(purpose, Purpose::Change(_));
            let swaps = mutated("cache.write.disk-reads-guest-memory-again", true, !changes);
            if swaps {
                std::mem::swap(&mut request.memory, &mut lists.memory);
            }
            lists.memory.clear();
        }
        let memory = &self.disk.cache.memory;
        if let (Op::Read(extent), Ok(())) = (op, outcome) {
            for fill in &lists.fills {
                // SAFETY: the frame was taken for this fill, and is not held yet.
                let bytes = unsafe { memory.bytes(fill.frame) };
                copy_in(&mut request, extent, fill.block.number(), bytes);
            }
        }
        let mut table = self.disk.cache.table();
        if let Purpose::Change(blocks) = purpose {
            table.end_change(blocks);
        }
        // If a write's memory has vanished, the copy may differ from what the disk has written.
        let succeeded = outcome.is_ok() && is_whole(&request.memory);
        let ends = lists.fills.drain(..);
        let held = ends.filter_map(|fill| table.end_fill(memory, fill, succeeded).then_some(()));
        let held = held.count() as u64;
        drop(table);
        if let Some(counters) = &self.counters {
            count(&counters.insertions, held);
        }
        self.spare.push(lists);
        if once_more {
            self.base.submit(request);
            return None;
        }
        Some(Completion { request, outcome })
    }
}
