//! A disk as the cache knows it.

use std::ops::Range;
use std::sync::Arc;

use flowstone_block::{Class, Extent, Request, count};

use crate::counters::{Counters, QueueCounters};
use crate::names::{BlockId, numbers};
use crate::shared::Cache;
use crate::table::DiskUse;

/// A disk as the cache knows it.
pub struct CachedDisk {
    pub(crate) cache: Arc<Cache>,
    /// No other disk of the cache has it while this one is there.
    pub(crate) number: u32,
    pub(crate) holds_journals: bool,
    pub(crate) counters: Counters,
}

/// Requests of more blocks pass by: few are read again.
const BLOCKS_MAX: u64 = 256;
/// Most pieces of memory of a request: what one call takes (`UIO_MAXIOV`).
const PIECES_MAX: u64 = 1024;

impl CachedDisk {
    /// One of its blocks; a number too large is that of the last one that can be held, which none
    /// is.
    pub(crate) fn block(&self, number: u64) -> BlockId {
        BlockId::of_disk(self.number, number.min(BlockId::NUMBER_MAX))
    }

    /// The blocks that share a sector with `extent`, of those that can be held.
    pub(crate) fn blocks(&self, extent: Extent) -> Range<BlockId> {
        let numbers = numbers(extent);
        self.block(numbers.start)..self.block(numbers.end)
    }

    /// Whether the cache may hold what this request of a queue carries. The daemon's own, which
    /// nobody counts, say nothing of what its guest will read.
    pub(crate) fn may_hold(
        &self,
        request: &Request,
        blocks: &Range<BlockId>,
        counters: Option<&QueueCounters>,
    ) -> bool {
        let is_journal = request.class == Class::Journal && !self.holds_journals;
        let count_of_blocks = blocks.end.0 - blocks.start.0;
        let is_numbered = blocks.end.number() < BlockId::NUMBER_MAX;
        // Each frame may cut a piece of the guest's memory in two.
        let is_whole = request.memory.len() as u64 + 2 * count_of_blocks <= PIECES_MAX;
        let is_small = count_of_blocks <= BLOCKS_MAX;
        let Some(counters) = counters else { return false };
        let may = !is_journal && is_small && is_numbered && is_whole;
        if !may {
            count(&counters.bypassed, count_of_blocks);
        }
        may
    }

    /// What has been counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What is held of it.
    pub fn held(&self) -> DiskUse {
        self.cache.disk(self.number)
    }
}

impl Drop for CachedDisk {
    /// Another disk may have the number from now on.
    fn drop(&mut self) {
        self.cache.forget_disk(self.number);
    }
}
