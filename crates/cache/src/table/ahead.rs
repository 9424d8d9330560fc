//! Blocks read ahead and not yet read by a guest.

use std::ops::Range;

use flowstone_block::mutated;

use super::{Fill, Table, region_of};
use crate::entries::Entries;
use crate::frames::{Frame, Memory};
use crate::names::BlockId;

/// Blocks read ahead. The policy learns of them when a guest reads them.
pub(super) struct Ahead {
    pub(super) blocks: Entries,
    /// Frames by the places of `blocks`.
    pub(super) frames: Vec<Frame>,
    pub(super) blocks_max: usize,
}

impl Fill {
    /// Returns whether block and frame of `next` follow those of this fill.
    pub const fn is_followed_by(&self, next: &Self) -> bool {
        self.block.0 + 1 == next.block.0 && self.frame.is_followed_by(next.frame)
    }
}

impl Table {
    /// Removes a block read ahead and returns its frame.
    pub(super) fn take_ahead(&mut self, block: BlockId) -> Option<Frame> {
        let (place, _) = self.ahead.blocks.find(block)?;
        self.ahead.blocks.remove(place);
        self.count_out(block);
        Some(std::mem::replace(&mut self.ahead.frames[place.0 as usize], Frame::NONE))
    }

    pub(super) fn drop_ahead(&mut self, memory: &Memory, block: BlockId) {
        if let Some(frame) = self.take_ahead(block) {
            self.free.give_back(memory, frame);
            self.disk(block.disk()).prefetch_wasted += 1;
        }
    }

    pub(super) fn drop_oldest_ahead(&mut self, memory: &Memory) {
        if let Some(oldest) = self.ahead.blocks.back(0) {
            let oldest = self.ahead.blocks.block(oldest);
            self.drop_ahead(memory, oldest);
        }
    }

    /// Returns whether a block is held, so that reading it ahead would gain nothing.
    fn is_held(&self, block: BlockId) -> bool {
        let (region, bit) = region_of(block);
        self.regions.get(&region).is_some_and(|held| held & bit != 0)
    }

    /// Returns whether all of these blocks are held.
    pub fn are_held(&self, blocks: Range<BlockId>) -> bool {
        (blocks.start.0..blocks.end.0).all(|number| self.is_held(BlockId(number)))
    }

    /// Begins a read-ahead of a range. Puts into `fills`, which is empty, fills for the first run
    /// of blocks in it that are not held, and returns the first block that was not processed. A run
    /// goes on over up to `gap` held blocks at a time, and over no more than it has others.
    pub fn begin_ahead(
        &mut self,
        memory: &Memory,
        blocks: Range<BlockId>,
        gap: u64,
        fills: &mut Vec<Fill>,
    ) -> BlockId {
        let reached = self.take_run(memory, blocks, gap, fills);
        // In the order of the blocks: adjacent frames are one piece of memory for the kernel.
        let mut frames: Vec<Frame> = fills.iter().map(|fill| fill.frame).collect();
        frames.sort_unstable();
        fills.iter_mut().zip(frames).for_each(|(fill, frame)| fill.frame = frame);
        reached
    }

    fn take_run(
        &mut self,
        memory: &Memory,
        blocks: Range<BlockId>,
        gap: u64,
        fills: &mut Vec<Fill>,
    ) -> BlockId {
        for number in blocks.start.0..blocks.end.0 {
            let block = BlockId(number);
            let is_still = self.changes(block).in_flight == 0;
            let is_still = mutated("cache.ahead.begins-during-a-change", is_still, true);
            let is_held = self.is_held(block) || !is_still;
            if is_held {
                let (Some(first), Some(last)) = (fills.first(), fills.last()) else { continue };
                let held = number + 1 - first.block.0 - fills.len() as u64;
                if number - last.block.0 > gap || held > fills.len() as u64 {
                    return block;
                }
                continue;
            }
            let Some(fill) = self.begin_fill(memory, block) else { return block };
            fills.push(fill);
        }
        blocks.end
    }

    /// Ends a fill of a read-ahead: the block is held until it is read, if it has not changed
    /// since.
    pub fn end_ahead(&mut self, memory: &Memory, fill: Fill, succeeded: bool) {
        let Fill { block, frame, version } = fill;
        let is_current = self.changes(block).version == version;
        let is_current = mutated("cache.ahead.ignores-changes", is_current, true);
        if !succeeded || !is_current || self.is_held(block) {
            return self.free.give_back(memory, frame);
        }
        self.disk(block.disk()).prefetched += 1;
        if self.ahead.blocks.len(0) >= self.ahead.blocks_max {
            self.drop_oldest_ahead(memory);
        }
        let place = self.ahead.blocks.insert(block, 0);
        self.ahead.frames[place.0 as usize] = frame;
        self.count_in(block);
    }
}
