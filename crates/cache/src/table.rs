//! Which blocks are held, and in which frames: what all queues of all disks share, under one lock.
//!
//! Three things keep what is held the same as what is on the disk:
//!
//! * A change drops what is held of its blocks before it goes down, and what it writes is held only
//!   when it has succeeded.
//! * A block is filled (by a read, or by what a write carried) only if no other change of it was on
//!   its way when the fill began, and none has begun since: each change raises a version, which a
//!   fill remembers.
//! * Versions are kept for 4,096 groups of blocks of each disk. Two blocks of one spoil fills only.

mod ahead;
mod forgetting;
mod sizing;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use flowstone_block::mutant;

use self::ahead::Ahead;
pub use self::forgetting::Forgetting;
pub use self::sizing::Target;
use crate::curve::Curve;
use crate::entries::Entries;
use crate::frames::{Frame, FreeFrames, Memory};
use crate::names::{BlockId, Place, random_key};
use crate::policy::{Kept, Outcome, Policy};
use crate::prefetch::prefetch;
use crate::vms::Vms;

/// Groups of a disk's blocks that share a version: a shorter request does not meet itself in one.
const GROUPS: u64 = 4096;
/// Blocks that are prefetched at once: what the CPU's first cache has room for.
pub const PREFETCHED_MAX: usize = 32;
/// Held blocks are marked in a map for each so many, so that large discards find them.
const REGION_BLOCKS: u64 = u64::BITS as u64;
/// Regions that a discard visits at a time.
const REGIONS_AT_ONCE: usize = 64;

/// Changes of a group of blocks.
#[derive(Clone, Copy, Default)]
struct Changes {
    /// How often one has begun.
    version: u32,
    /// How many are on their way.
    in_flight: u32,
}

/// A block on its way into a frame, which is its owner's until then.
#[derive(Debug)]
pub struct Fill {
    /// The block.
    pub block: BlockId,
    /// What it is filled into.
    pub frame: Frame,
    /// The version of its group that it belongs to.
    version: u32,
}

/// What a reader finds of a block.
pub enum Found {
    /// It is held, in a frame that has been pinned.
    Held(Frame),
    /// It is to be read into this frame.
    Fill(Fill),
    /// It is to be taken in, and cannot be now.
    Busy,
    /// The policy does not want it.
    Refused,
}

/// What the cache holds of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUse {
    /// Blocks held.
    pub blocks: u64,
    /// Blocks that the policy gave up for others.
    pub evictions: u64,
    /// Blocks that were read ahead, those of them that a guest has read since, and those that were
    /// given up before.
    pub prefetched: u64,
    /// See above.
    pub prefetch_used: u64,
    /// See above.
    pub prefetch_wasted: u64,
}

/// A disk.
#[derive(Default)]
struct Disk {
    counted: DiskUse,
    /// By group.
    changes: Vec<Changes>,
}

/// What is held.
pub struct Table {
    policy: Box<dyn Policy>,
    /// The frame of each place of the policy.
    frames: Vec<Frame>,
    ahead: Ahead,
    free: FreeFrames,
    /// Blocks held in each region that has some: a bit for each.
    regions: BTreeMap<u64, u64>,
    disks: Vec<Disk>,
    /// Of all disks, for caches of up to twice the size.
    pub curve: Curve,
    evicted: Vec<Kept>,
}

/// The region of a block, and its bit in that.
fn region_of(block: BlockId) -> (u64, u64) {
    (block.0 / REGION_BLOCKS, 1 << (block.0 % REGION_BLOCKS))
}

impl Table {
    /// For so many frames, of which `policy` uses a part, and blocks read ahead `ahead_max`.
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

    /// What is held of a disk.
    pub fn disk(&mut self, disk: u32) -> &mut DiskUse {
        &mut self.disk_of(disk).counted
    }

    /// These are the VMs from now on.
    pub fn set_vms(&mut self, vms: &Arc<Vms>) {
        self.policy.set_vms(vms);
    }

    /// So much time has passed since the last call.
    pub fn pass(&mut self, time: Duration) {
        self.policy.pass(time);
    }

    /// What so many blocks would answer, if that is known, where the policy weighs VMs.
    pub fn weighed_hit_ratio(&self, blocks: usize) -> Option<Option<f64>> {
        self.policy.floors().map(|floors| floors.hit_ratio(blocks))
    }

    fn disk_of(&mut self, disk: u32) -> &mut Disk {
        let index = disk as usize;
        if index >= self.disks.len() {
            self.disks.resize_with(index + 1, Disk::default);
        }
        &mut self.disks[index]
    }

    /// Blocks held of all disks.
    pub fn blocks(&self) -> u64 {
        self.disks.iter().map(|disk| disk.counted.blocks).sum()
    }

    /// Blocks that the policy remembers without their data.
    pub fn ghosts(&self) -> u64 {
        self.policy.ghosts() as u64
    }

    /// The changes of each group of blocks of a disk.
    fn groups(&mut self, disk: u32) -> &mut [Changes] {
        let groups = &mut self.disk_of(disk).changes;
        if groups.is_empty() {
            groups.resize(GROUPS as usize, Changes::default());
        }
        groups
    }

    fn changes(&mut self, block: BlockId) -> &mut Changes {
        // Blocks that follow each other are in different groups.
        &mut self.groups(block.disk())[(block.number() % GROUPS) as usize]
    }

    fn frame(&mut self, place: Place) -> &mut Frame {
        let index = place.0 as usize;
        if index >= self.frames.len() {
            self.frames.resize(index + 1, Frame::NONE);
        }
        &mut self.frames[index]
    }

    /// Drops what is held of a block; its place is the policy's business.
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
        let mut evicted = std::mem::take(&mut self.evicted);
        for gone in evicted.drain(..) {
            self.disk(gone.block.disk()).evictions += 1;
            self.drop_data(memory, gone);
        }
        self.evicted = evicted;
        outcome
    }

    /// A fill of a block that the policy wants, of the version of now.
    fn begin_fill(&mut self, memory: &Memory, block: BlockId) -> Option<Fill> {
        let version = self.changes(block).version;
        let frame = self.free.take(memory)?;
        Some(Fill { block, frame, version })
    }

    /// Prefetches what finding these blocks takes, so that the waits for memory are one.
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

    /// A block is about to be read. What is found is to be unpinned, or [ended](Self::end_fill).
    pub fn read(&mut self, memory: &Memory, block: BlockId) -> Found {
        let place = match self.access(memory, block, false) {
            Outcome::Hit(place) => Some(place),
            Outcome::Inserted(place) => {
                // Its last user has taken its frame away.
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
        if self.changes(block).in_flight > 0 && !mutant("cache.read.fills-during-a-change") {
            return Found::Busy;
        }
        self.begin_fill(memory, block).map_or(Found::Busy, Found::Fill)
    }

    /// A block is about to be written: all of it or, if not `is_whole`, a part. What is held of it
    /// is dropped. What is found is never held, and a fill is what the block is written from.
    pub fn begin_write(&mut self, memory: &Memory, block: BlockId, is_whole: bool) -> Found {
        let changes = self.changes(block);
        changes.version = changes.version.wrapping_add(1);
        changes.in_flight += 1;
        let alone = changes.in_flight == 1 || mutant("cache.write.fills-beside-another-change");
        if !mutant("cache.write.keeps-what-was-read-ahead") {
            self.drop_ahead(memory, block);
        }
        let (Outcome::Hit(place) | Outcome::Inserted(place)) = self.access(memory, block, true)
        else {
            return Found::Refused;
        };
        if !mutant("cache.write.keeps-what-was-held") {
            self.drop_data(memory, Kept { block, place });
        }
        if !is_whole || !alone {
            return Found::Busy;
        }
        self.begin_fill(memory, block).map_or(Found::Busy, Found::Fill)
    }

    /// A range of blocks is about to be changed, and none of them is to be kept.
    pub fn begin_change(&mut self, blocks: Range<BlockId>) {
        self.each_group(blocks, |changes| {
            changes.version = changes.version.wrapping_add(1);
            changes.in_flight += 1;
        });
    }

    /// A change of a range of blocks has come back.
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

    /// Drops and forgets what is held of a range, some regions at a time: returns where to go on,
    /// so that others may have the lock in between. A change of the range has begun.
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

    /// A fill has ended: the block is held from now on if what was read or written is still what
    /// the disk holds. Returns whether it is.
    pub fn end_fill(&mut self, memory: &Memory, fill: Fill, succeeded: bool) -> bool {
        let Fill { block, frame, version } = fill;
        let succeeded = succeeded || mutant("cache.fill.holds-what-failed");
        let is_current = self.changes(block).version == version;
        if succeeded
            && (is_current || mutant("cache.fill.ignores-changes"))
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
