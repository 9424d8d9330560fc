//! A disk as the cache sees it.

use std::ops::Range;
use std::sync::Arc;

use flowstone_block::{Class, Extent, PerQueue, Request, count};

use crate::counters::{CacheCount, QueueCounters};
use crate::names::{BlockId, numbers};
use crate::shared::Cache;
use crate::table::DiskUse;

/// A disk as the cache sees it.
pub struct CachedDisk {
    pub(crate) cache: Arc<Cache>,
    /// Unique among the disks of the cache while this one exists.
    pub(crate) number: u32,
    pub(crate) holds_journals: bool,
    pub(crate) counters: PerQueue<QueueCounters>,
}

/// Largest request that is cached, in blocks: blocks of larger ones are rarely read again.
const BLOCKS_MAX: u64 = 256;
/// Most pieces of memory in a request: the limit of one system call (`UIO_MAXIOV`).
const PIECES_MAX: u64 = 1024;

impl CachedDisk {
    /// Returns the id of one of its blocks; a number too large gives the last one, which no block
    /// has.
    pub(crate) fn block(&self, number: u64) -> BlockId {
        BlockId::of_disk(self.number, number.min(BlockId::NUMBER_MAX))
    }

    /// Returns the blocks that share a sector with `extent`, limited to those that can be held.
    pub(crate) fn blocks(&self, extent: Extent) -> Range<BlockId> {
        let numbers = numbers(extent);
        self.block(numbers.start)..self.block(numbers.end)
    }

    /// Returns whether the cache may hold the blocks of this request. Requests of the daemon
    /// itself, which have no counters, are not cached: they say nothing about the guest's reads.
    pub(crate) fn may_hold(
        &self,
        request: &Request,
        blocks: &Range<BlockId>,
        counters: Option<&QueueCounters>,
    ) -> bool {
        let is_journal = request.class == Class::Journal && !self.holds_journals;
        let count_of_blocks = blocks.end.0 - blocks.start.0;
        let is_numbered = blocks.end.number() < BlockId::NUMBER_MAX;
        // Each frame may split a piece of the guest's memory in two.
        let is_whole = request.memory.len() as u64 + 2 * count_of_blocks <= PIECES_MAX;
        let is_small = count_of_blocks <= BLOCKS_MAX;
        let Some(counters) = counters else { return false };
        let may = !is_journal && is_small && is_numbered && is_whole;
        if !may {
            count(&counters.bypassed, count_of_blocks);
        }
        may
    }

    /// Returns the counters of its queues.
    pub fn counters(&self) -> &PerQueue<QueueCounters> {
        &self.counters
    }

    /// Returns the blocks read of a class.
    pub fn of_class(&self, class: Class) -> CacheCount {
        CacheCount {
            hits: self.counters.sum(|queue| &queue.hits[class as usize]),
            misses: self.counters.sum(|queue| &queue.misses[class as usize]),
        }
    }

    /// Returns its use of the cache.
    pub fn held(&self) -> DiskUse {
        self.cache.disk(self.number)
    }
}

impl Drop for CachedDisk {
    /// Its number may be reused from now on.
    fn drop(&mut self) {
        self.cache.forget_disk(self.number);
    }
}
