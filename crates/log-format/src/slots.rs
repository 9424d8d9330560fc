//! The two superblock slots: selects the valid one, and checks its numbers.

use std::collections::BTreeSet;

use super::{
    BLOCK_BYTES, HeadPlace, LEAF_BLOCKS, RESERVE_PERCENT, RootPlace, SEGMENT_BYTES, SegmentId,
    Superblock, SuperblockError, blocks_of_sectors, root_blocks,
};

/// Maximum number of streams of guest data.
pub const STREAMS_MAX: usize = 2;
/// Far above any real counter, and far from where sums overflow.
const COUNTERS_MAX: u64 = 1 << 62;
/// Incarnations have this many bits for the session.
const SESSIONS_MAX: u64 = (1 << 32) - 1;

/// Content of the two superblock slots.
pub type Slots = [Result<Superblock, SuperblockError>; 2];

/// Returns the newest valid superblock, if its numbers are plausible.
pub fn newest(slots: &Slots) -> Result<&Superblock, SuperblockError> {
    let refusals = || slots.iter().filter_map(|slot| slot.as_ref().err());
    if let Some(future) = refusals().find(|it| matches!(it, SuperblockError::Future(_))) {
        return Err(future.clone());
    }
    let whole = slots.iter().filter_map(|slot| slot.as_ref().ok());
    if let Some(superblock) = whole.max_by_key(|superblock| superblock.generation) {
        superblock.check()?;
        return Ok(superblock);
    }
    let is_broken =
        |it: &&_| matches!(it, SuperblockError::Damaged(_)) && **it != SuperblockError::SHORT;
    Err(refusals().find(is_broken).cloned().unwrap_or(SuperblockError::Foreign))
}

/// Returns the slot, `A` or `B`, that held a superblock and does not any more.
pub fn lost_slot(slots: &Slots) -> Option<char> {
    match slots {
        [Ok(other), Err(refusal)] if is_lost(other, refusal) => Some('B'),
        [Err(refusal), Ok(other)] if is_lost(other, refusal) => Some('A'),
        _ => None,
    }
}

/// Only an image that has never been opened for writing has a single superblock.
fn is_lost(other: &Superblock, refusal: &SuperblockError) -> bool {
    other.generation > 1 || *refusal != SuperblockError::Foreign
}

impl Superblock {
    /// Refuses a superblock with implausible numbers: its checksum proves only that it is complete.
    pub fn check(&self) -> Result<(), SuperblockError> {
        let segment_bytes = u64::from(self.segment_blocks) * BLOCK_BYTES as u64;
        let blocks = blocks_of_sectors(self.capacity_sectors);
        let sound = self.segment_blocks.is_power_of_two()
            && (SEGMENT_BYTES.contains(&segment_bytes) || segment_bytes == SEGMENT_BYTES.end)
            && RESERVE_PERCENT.contains(&self.reserve_percent)
            && (1..=STREAMS_MAX as u32).contains(&self.streams)
            && self.capacity_sectors > 0
            && self.capacity_sectors <= 1 << 35
            && self.segments > 1
            && u64::from(self.segments) * u64::from(self.segment_blocks) <= 1 << 32;
        if !sound {
            return damaged("the superblock has sizes that cannot be");
        }
        let counters = [self.generation, self.next_sequence.get(), self.clock];
        if counters.iter().any(|count| *count >= COUNTERS_MAX) || self.session >= SESSIONS_MAX {
            return damaged("the superblock has numbers that cannot be");
        }
        // All that a root may name must fit in one record.
        let leaves = blocks.div_ceil(LEAF_BLOCKS);
        let root_max = root_blocks(leaves, u64::from(self.segments));
        if root_max + 2 > u64::from(self.segment_blocks) {
            return damaged("the superblock has segments too small for its disk");
        }
        self.check_heads()?;
        let RootPlace { address, blocks, bytes, .. } = self.root;
        let root_end = u64::from(address.get()) + u64::from(blocks);
        let image_end = u64::from(self.segments) * u64::from(self.segment_blocks);
        let root_sound = blocks == 0
            || address.get() > self.segment_blocks
                && root_end <= image_end
                && u64::from(blocks) <= root_max
                && bytes <= u64::from(blocks) * BLOCK_BYTES as u64;
        if root_sound { Ok(()) } else { damaged("the superblock names a map root that cannot be") }
    }

    /// Checks that every stream of guest data has a head, and every head a segment of its own.
    fn check_heads(&self) -> Result<(), SuperblockError> {
        let heads = || self.heads.iter().filter(|head| !head.incarnation.is_none());
        let inside = |head: &HeadPlace| {
            (1..self.segments).contains(&head.segment.get()) && head.block < self.segment_blocks
        };
        if !heads().all(inside) {
            return damaged("the superblock names a head outside the image");
        }
        let distinct: BTreeSet<SegmentId> = heads().map(|head| head.segment).collect();
        let streams = &self.heads[..self.streams as usize];
        if distinct.len() < heads().count() || streams.iter().any(|head| head.incarnation.is_none())
        {
            return damaged("the superblock names heads that cannot be");
        }
        Ok(())
    }
}

const fn damaged(why: &'static str) -> Result<(), SuperblockError> {
    Err(SuperblockError::Damaged(why))
}
