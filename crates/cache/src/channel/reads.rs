//! Reads: those of a batch are looked up together, under one lock, and answered by copies, or sent
//! below.
//!
//! Finding a block reads memory that is in no cache of the CPU. So it is prefetched, step by step
//! for all blocks, and the waits overlap.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use flowstone_block::{Completion, Extent, Request, SectorCount, count, mutated};

use super::below::{Lists, Purpose};
use super::{CachedChannel, copy_in, len};
use crate::BLOCK_SECTORS;
use crate::frames::{Frame, Memory};
use crate::names::{BlockId, numbers};
use crate::table::{Fill, Found, PREFETCHED_MAX, Table};

/// One batch in this many is timed.
const TIMED_OF: u32 = 64;

/// Reads of a queue that are not below.
#[derive(Default)]
pub struct Reads {
    /// Reads to be looked up at the kick, or before a change.
    pub pending: VecDeque<Pending>,
    /// Reads to be answered from the cache, and the pinned frames of all of their blocks.
    answers: Vec<(Box<Request>, Extent)>,
    held: Vec<Frame>,
    /// Reads to be sent below.
    missed: Vec<Missed>,
    batches: u32,
}

/// A read to be looked up.
pub struct Pending {
    pub request: Box<Request>,
    pub extent: Extent,
    /// Whether it has waited for read-ahead: then streams have seen it.
    pub has_waited: bool,
}

/// A read to be sent below, with its fills.
struct Missed {
    request: Box<Request>,
    extent: Extent,
    lists: Lists,
}

impl Reads {
    /// Looks up the blocks of a read. If all are held, their pinned frames are appended to `held`;
    /// otherwise `fills` are to be read. A block that is not whole on the disk is never held.
    fn look_up(
        &mut self,
        table: &mut Table,
        memory: &Memory,
        blocks: Range<BlockId>,
        is_whole: impl Fn(BlockId) -> bool,
        fills: &mut Vec<Fill>,
    ) -> LookedUp {
        let before = self.held.len();
        let mut looked_up = LookedUp { all_held: true, refused: 0 };
        for block in (blocks.start.0..blocks.end.0).map(BlockId) {
            let found = if is_whole(block) { table.read(memory, block) } else { Found::Busy };
            match found {
                Found::Held(frame) => {
                    self.held.push(frame);
                    continue;
                }
                Found::Fill(fill) => fills.push(fill),
                Found::Busy => {}
                Found::Refused => looked_up.refused += 1,
            }
            looked_up.all_held = false;
        }
        if !looked_up.all_held {
            self.held.drain(before..).for_each(|frame| memory.unpin(frame));
        }
        looked_up
    }
}

/// Result of looking up a read's blocks.
struct LookedUp {
    all_held: bool,
    /// Blocks refused by the policy.
    refused: u64,
}

/// Returns the number of whole blocks of a disk.
fn whole_blocks(capacity: SectorCount) -> u64 {
    (capacity.get() / BLOCK_SECTORS).min(BlockId::NUMBER_MAX)
}

impl CachedChannel {
    /// Looks up pending reads, in order.
    pub(super) fn read_pending(&mut self) {
        while !self.reads.pending.is_empty() {
            self.look_at_capacity();
            self.reads.batches = self.reads.batches.wrapping_add(1);
            let begin = self.reads.batches.is_multiple_of(TIMED_OF).then(Instant::now);
            let ahead = self.look_up_some();
            self.answer();
            if let (Some(begin), Some(counters)) = (begin, &self.counters) {
                let ns = begin.elapsed().as_nanos() as u64;
                count(&counters.busy_ns, ns * u64::from(TIMED_OF));
            }
            let mut missed = std::mem::take(&mut self.reads.missed);
            for Missed { request, extent, lists } in missed.drain(..) {
                if lists.fills.is_empty() {
                    self.spare.push(lists);
                    self.base.submit(request);
                } else {
                    self.send(request, extent, lists, Purpose::Read);
                }
            }
            self.reads.missed = missed;
            if let Some(numbers) = ahead {
                self.read_ahead(numbers);
            }
        }
    }

    /// Checks whether the disk has grown. Outside the lock, since it may ask the image.
    fn look_at_capacity(&mut self) {
        let ends = self.reads.pending.iter().map(|it| numbers(it.extent).end * BLOCK_SECTORS);
        if ends.max() > Some(self.capacity.get()) {
            self.capacity = self.layer.geometry().capacity;
        }
    }

    /// Looks up some reads, until they have enough blocks for one hold of the lock, or need
    /// read-ahead, which the reads after them may profit from. Returns the range to read ahead.
    fn look_up_some(&mut self) -> Option<Range<u64>> {
        let mut reads = std::mem::take(&mut self.reads);
        let Self { disk, ahead, counters, spare, capacity, .. } = self;
        let cache = &disk.cache;
        let mut table = cache.table();
        let ids = |extent: Extent| numbers(extent).map(|number| disk.block(number));
        let blocks = reads.pending.iter().flat_map(|it| ids(it.extent)).take(PREFETCHED_MAX);
        table.prefetch(&cache.memory, blocks);
        let (mut looked_up, mut to_come) = (0, None);
        while looked_up < PREFETCHED_MAX as u64
            && to_come.is_none()
            && let Some(Pending { request, extent, has_waited }) = reads.pending.pop_front()
        {
            let blocks = disk.blocks(extent);
            let mut lists = spare.pop().unwrap_or_default();
            if !disk.may_hold(&request, &blocks, counters.as_deref()) {
                reads.missed.push(Missed { request, extent, lists });
                continue;
            }
            if !has_waited {
                let sectors = extent.start().get()..extent.end().get();
                to_come = ahead.streams.read(sectors, whole_blocks(*capacity), cache.window_max());
            }
            if ahead.is_reading(&blocks) && !table.are_held(blocks.clone()) {
                spare.push(lists);
                ahead.waiting.push((request, extent));
                continue;
            }
            looked_up += len(&blocks);
            let is_whole = |block: BlockId| {
                let is_whole = block.number() < whole_blocks(*capacity);
                mutated("cache.read.past-the-end", is_whole, true)
            };
            let (memory, fills) = (&cache.memory, &mut lists.fills);
            let LookedUp { all_held, refused } =
                reads.look_up(&mut table, memory, blocks.clone(), is_whole, fills);
            if let Some(counters) = counters {
                let counter = if all_held { &counters.hits } else { &counters.misses };
                count(&counter[request.class as usize], len(&blocks));
                count(&counters.refusals, refused);
            }
            if all_held {
                spare.push(lists);
                reads.answers.push((request, extent));
            } else {
                reads.missed.push(Missed { request, extent, lists });
            }
        }
        drop(table);
        self.reads = reads;
        to_come
    }

    /// Copies held blocks to the reads that have found them.
    fn answer(&mut self) {
        let memory = &self.disk.cache.memory;
        let Reads { answers, held, .. } = &mut self.reads;
        let mut held = held.drain(..);
        for (mut request, extent) in answers.drain(..) {
            for (number, frame) in numbers(extent).zip(held.by_ref()) {
                // SAFETY: it is pinned.
                copy_in(&mut request, extent, number, unsafe { memory.bytes(frame) });
                memory.unpin(frame);
            }
            self.done.push(Completion { request, outcome: Ok(()) });
        }
    }
}
