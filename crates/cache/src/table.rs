//! The map from blocks to frames, shared by all queues of all disks under one lock.
//!
//! Three rules keep held blocks equal to the disk:
//!
//! * A change drops its blocks before it is sent below, and the data that it writes is held only
//!   when it has succeeded.
//! * A fill (by a read, or with a write's data) takes effect only if no other change of the block
//!   was in flight when it began, and none has begun since: each change increments a version, which
//!   a fill remembers.
//! * Versions are kept for 4,096 groups of blocks per disk. A collision only spoils fills.

mod ahead;
mod forgetting;
mod sizing;

use std::collections::BTreeMap;
use std::ops::Range;

use flowstone_block::mutated;

use self::ahead::Ahead;
pub use self::forgetting::Forgetting;
pub use self::sizing::Target;
use crate::curve::Curve;
use crate::entries::Entries;
use crate::frames::{Frame, FreeFrames, Memory};
use crate::names::{BlockId, Place, random_key};
use crate::policy::{Kept, Outcome, Policy};
use crate::prefetch::prefetch;

/// Groups of a disk's blocks that share a version: no two blocks of a shorter request are in one.
const GROUPS: u64 = 4096;
/// Blocks that are prefetched at once: as many as the CPU's first-level cache has room for.
pub const PREFETCHED_MAX: usize = 32;
/// Blocks per region; a map has a bit for each held block, so that large discards find them.
const REGION_BLOCKS: u64 = u64::BITS as u64;
/// Regions that a discard visits per hold of the lock.
const REGIONS_AT_ONCE: usize = 64;

/// Changes of a group of blocks.
#[derive(Clone, Copy, Default)]
struct Changes {
    /// Number of changes begun.
    version: u32,
    /// Changes in flight.
    in_flight: u32,
}

/// A block on its way into a frame, which belongs to the owner of the fill.
#[derive(Debug)]
pub struct Fill {
    /// The block.
    pub block: BlockId,
    /// The frame to be filled.
    pub frame: Frame,
    /// Version of the block's group when the fill began.
    version: u32,
}

/// Result of looking up a block.
pub enum Found {
    /// It is held, in a frame that has been pinned.
    Held(Frame),
    /// It is to be read into this frame.
    Fill(Fill),
    /// It is to be taken in, but cannot be now.
    Busy,
    /// The policy refuses it.
    Refused,
}

/// A disk's use of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUse {
    /// Blocks held.
    pub blocks: u64,
    /// Blocks evicted by the policy.
    pub evictions: u64,
    /// Blocks read ahead; of these, blocks that a guest has read since, and blocks that were
    /// dropped unused.
    pub prefetched: u64,
    /// See above.
    pub prefetch_used: u64,
    /// See above.
    pub prefetch_wasted: u64,
}

/// The state of a disk.
#[derive(Default)]
struct Disk {
    counted: DiskUse,
    /// By group.
    changes: Vec<Changes>,
}

/// The map from blocks to frames.
pub struct Table {
    /// Only the table accesses blocks, and changes its size.
    pub policy: Box<dyn Policy>,
    /// Frame of each place of the policy.
    frames: Vec<Frame>,
    ahead: Ahead,
    free: FreeFrames,
    /// Held blocks as a bitmap per region; empty regions are absent.
    regions: BTreeMap<u64, u64>,
    disks: Vec<Disk>,
    /// Miss-ratio curve of all disks, for caches of up to twice the size.
    pub curve: Curve,
    evicted: Vec<Kept>,
}

/// Returns the region of a block, and its bit in it.
fn region_of(block: BlockId) -> (u64, u64) {
    (block.0 / REGION_BLOCKS, 1 << (block.0 % REGION_BLOCKS))
}

impl Table {
    /// Makes a table of `frames` frames: `policy` uses a part, and read-ahead `ahead_max`.
    pub fn new(policy: Box<dyn Policy>, frames: usize, ahead_max: usize) -> Self {
        let ahead = Ahead {
            blocks: Entries::with_capacity(ahead_max, 1),
            frames: vec![Frame::NONE; ahead_max.max(1) + 1],
            blocks_max: ahead_max.max(1),
        };
        Self {
            frames: Vec::with_capacity(policy.places()),
            ahead,
            policy,
            free: FreeFrames::new(frames),
            regions: BTreeMap::new(),
            disks: Vec::new(),
            curve: Curve::new(2 * frames, random_key()),
            evicted: Vec::new(),
        }
    }

    /// Returns a disk's use of the cache.
    pub fn disk(&mut self, disk: u32) -> &mut DiskUse {
        &mut self.disk_of(disk).counted
    }

    fn disk_of(&mut self, disk: u32) -> &mut Disk {
        let index = disk as usize;
        if index >= self.disks.len() {
            self.disks.resize_with(index + 1, Disk::default);
        }
        &mut self.disks[index]
    }

    /// Returns the blocks held, of all disks.
    pub fn blocks(&self) -> u64 {
        self.disks.iter().map(|disk| disk.counted.blocks).sum()
    }

    /// Returns the changes of each group of blocks of a disk.
    fn groups(&mut self, disk: u32) -> &mut [Changes] {
        let groups = &mut self.disk_of(disk).changes;
        if groups.is_empty() {
            groups.resize(GROUPS as usize, Changes::default());
        }
        groups
    }

    fn changes(&mut self, block: BlockId) -> &mut Changes {
        // Consecutive blocks are in different groups.
        &mut self.groups(block.disk())[(block.number() % GROUPS) as usize]
    }

    fn frame(&mut self, place: Place) -> &mut Frame {
        let index = place.0 as usize;
        if index >= self.frames.len() {
            self.frames.resize(index + 1, Frame::NONE);
        }
        &mut self.frames[index]
    }

    /// Drops the data of a block; its place is up to the policy.
    fn drop_data(&mut self, memory: &Memory, kept: Kept) {
        let frame = std::mem::replace(self.frame(kept.place), Frame::NONE);
        if !frame.is_some() {
            return;
        }
        self.free.give_back(memory, frame);
        self.count_out(kept.block);
    }

    fn count_in(&mut self, block: BlockId) {
        self.disk(block.disk()).blocks += 1;
        let (region, bit) = region_of(block);
        *self.regions.entry(region).or_default() |= bit;
    }

    fn count_out(&mut self, block: BlockId) {
        self.disk(block.disk()).blocks -= 1;
        let (region, bit) = region_of(block);
        if let Some(held) = self.regions.get_mut(&region) {
            *held &= !bit;
            if *held == 0 {
                self.regions.remove(&region);
            }
        }
    }

    fn access(&mut self, memory: &Memory, block: BlockId, is_write: bool) -> Outcome {
        self.curve.access(block);
        let Self { policy, evicted, .. } = self;
        let outcome =
            if is_write { policy.write(block, evicted) } else { policy.access(block, evicted) };
        self.drop_evicted(memory);
        outcome
    }

    /// Drops the data of the blocks that the policy has evicted.
    fn drop_evicted(&mut self, memory: &Memory) {
        let mut evicted = std::mem::take(&mut self.evicted);
        for gone in evicted.drain(..) {
            self.disk(gone.block.disk()).evictions += 1;
            self.drop_data(memory, gone);
        }
        self.evicted = evicted;
    }

    /// Begins a fill of a block that the policy keeps, with the current version.
    fn begin_fill(&mut self, memory: &Memory, block: BlockId) -> Option<Fill> {
        let version = self.changes(block).version;
        let frame = self.free.take(memory)?;
        Some(Fill { block, frame, version })
    }

    /// Prefetches what finding these blocks reads, so that the waits for memory overlap.
    pub fn prefetch(&self, memory: &Memory, blocks: impl Iterator<Item = BlockId> + Clone) {
        blocks.clone().for_each(|block| self.policy.prefetch(block));
        let mut guesses = [Place(u32::MAX); PREFETCHED_MAX];
        for (block, guess) in blocks.zip(&mut guesses) {
            if let Some(place) = self.policy.guess(block)
                && let Some(frame) = self.frames.get(place.0 as usize)
            {
                prefetch(&raw const *frame);
                *guess = place;
            }
        }
        for place in guesses {
            if let Some(frame) = self.frames.get(place.0 as usize)
                && frame.is_some()
            {
                memory.prefetch(*frame);
            }
        }
    }

    /// Looks up a block to read. The caller unpins its frame, or [ends](Self::end_fill) the fill.
    pub fn read(&mut self, memory: &Memory, block: BlockId) -> Found {
        let place = match self.access(memory, block, false) {
            Outcome::Hit(place) => Some(place),
            Outcome::Inserted(place) => {
                // The last user of the place has taken its frame away.
                debug_assert!(!self.frame(place).is_some());
                Some(place)
            }
            Outcome::Refused => None,
        };
        if let Some(place) = place {
            let frame = *self.frame(place);
            if frame.is_some() {
                memory.pin(frame);
                return Found::Held(frame);
            }
        }
        if let Some(frame) = self.take_ahead(block) {
            memory.pin(frame);
            self.disk(block.disk()).prefetch_used += 1;
            match place {
                Some(place) => {
                    *self.frame(place) = frame;
                    self.count_in(block);
                }
                None => self.free.give_back(memory, frame),
            }
            return Found::Held(frame);
        }
        if place.is_none() {
            return Found::Refused;
        }
        let changes = self.changes(block).in_flight > 0;
        let changes = mutated("cache.read.fills-during-a-change", changes, false);
        if changes {
            return Found::Busy;
        }
        self.begin_fill(memory, block).map_or(Found::Busy, Found::Fill)
    }

    /// Prepares a write of a block: of all of it or, if not `is_whole`, of a part. Drops its held
    /// data. Never returns `Held`; a fill is the frame that the block is written from.
    pub fn begin_write(&mut self, memory: &Memory, block: BlockId, is_whole: bool) -> Found {
        let changes = self.changes(block);
        changes.version = changes.version.wrapping_add(1);
        changes.in_flight += 1;
        let alone = changes.in_flight == 1;
        let alone = mutated("cache.write.fills-beside-another-change", alone, true);
        let drops = mutated("cache.write.keeps-what-was-read-ahead", true, false);
        if drops {
            self.drop_ahead(memory, block);
        }
        let (Outcome::Hit(place) | Outcome::Inserted(place)) = self.access(memory, block, true)
        else {
            return Found::Refused;
        };
        let drops = mutated("cache.write.keeps-what-was-held", true, false);
        if drops {
            self.drop_data(memory, Kept { block, place });
        }
        if !is_whole || !alone {
            return Found::Busy;
        }
        self.begin_fill(memory, block).map_or(Found::Busy, Found::Fill)
    }

    /// Begins a change of a range of blocks, none of which will be held.
    pub fn begin_change(&mut self, blocks: Range<BlockId>) {
        self.each_group(blocks, |changes| {
            changes.version = changes.version.wrapping_add(1);
            changes.in_flight += 1;
        });
    }

    /// Ends a change of a range of blocks.
    pub fn end_change(&mut self, blocks: Range<BlockId>) {
        self.each_group(blocks, |changes| changes.in_flight -= 1);
    }

    fn each_group(&mut self, blocks: Range<BlockId>, mut visit: impl FnMut(&mut Changes)) {
        if blocks.end.0 - blocks.start.0 >= GROUPS {
            self.groups(blocks.start.disk()).iter_mut().for_each(visit);
            return;
        }
        for block in blocks.start.0..blocks.end.0 {
            visit(self.changes(BlockId(block)));
        }
    }

    /// Drops the blocks of a range, some regions at a time, after a change of the range has begun.
    /// Returns where to continue, so that others get the lock in between.
    pub fn forget_some(&mut self, memory: &Memory, blocks: Range<BlockId>) -> Option<BlockId> {
        let (first, _) = region_of(blocks.start);
        let (last, _) = region_of(BlockId(blocks.end.0 - 1));
        let mut next = first;
        for _ in 0..REGIONS_AT_ONCE {
            let (&region, &held) = self.regions.range(next..last + 1).next()?;
            let mut bits = held;
            while bits != 0 {
                let block = BlockId(region * REGION_BLOCKS + u64::from(bits.trailing_zeros()));
                bits &= bits - 1;
                if (blocks.start.0..blocks.end.0).contains(&block.0) {
                    if let Some(place) = self.policy.forget(block) {
                        self.drop_data(memory, Kept { block, place });
                    }
                    self.drop_ahead(memory, block);
                }
            }
            next = region + 1;
            if next > last {
                return None;
            }
        }
        Some(BlockId(next * REGION_BLOCKS))
    }

    /// Ends a fill: the block is held if the fill succeeded and the block has not changed since.
    /// Returns whether it is.
    pub fn end_fill(&mut self, memory: &Memory, fill: Fill, succeeded: bool) -> bool {
        let Fill { block, frame, version } = fill;
        let succeeded = mutated("cache.fill.holds-what-failed", succeeded, true);
        let is_current = self.changes(block).version == version;
        let is_current = mutated("cache.fill.ignores-changes", is_current, true);
        if succeeded
            && is_current
            && let Some(place) = self.policy.find(block)
            && !self.frame(place).is_some()
        {
            self.drop_ahead(memory, block); // First: a block is marked once.
            *self.frame(place) = frame;
            self.count_in(block);
            return true;
        }
        self.free.give_back(memory, frame);
        false
    }
}

#[cfg(test)]
mod tests;
