//! Decides which kinds of records may open a segment; no other code does. Why the cleaner then
//! always has room to make progress, and a trim always finds a place: docs/format.md section 9,
//! "Reserves".
//!
//! Pure: numbers in, numbers out. `reserve/tests.rs` holds the model that tries to refute it.

use flowstone_block::mutated;
use flowstone_log_format::{self, Shape};

#[cfg(test)]
mod tests;

/// Kind of record that a segment is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opener {
    /// A record of a guest with data.
    Write,
    /// A record of a guest that only unmaps blocks.
    Trim,
    /// Copies of live blocks.
    Copy,
    /// Leaves and roots of the map, and the heads that replace those ended by a crash or a failure.
    Map,
}

/// Segments reserved for the cleaner: one for the copies that do not fit into its open stream, and
/// one so that it need not wait for the sync that frees its victim.
const CLEANING_SEGMENTS: u32 = 2;

/// Inputs of the size of the reserves.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    pub shape: Shape,
    /// Leaves that the next checkpoint writes, if nothing else changes.
    pub changed_leaves: u64,
    /// Leaves of the map in memory.
    pub leaves: u64,
    /// Leaves of the map when every block of the disk is mapped.
    pub disk_leaves: u64,
    /// Segments that blocks of guests are appended to, plus the one about to be opened if it
    /// replaces none of them. Each of their blocks may change another leaf.
    pub open_for_data: u32,
    /// Entries of records that are placed and have not committed.
    pub in_flight: u64,
    /// Segments in use.
    pub used: u32,
    /// Segments in use that hold maps.
    pub map_segments: u32,
}

/// Segments reserved for each kind of record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// For new heads after a failure, the next checkpoint, and the growth of the map.
    pub checkpoints: u32,
    /// For records that only trim: a head for each stream, and one to continue in.
    pub trims: u32,
    /// For copies.
    pub cleaning: u32,
    /// Maximum number of segments of the map when none of them can be cleaned, including the open
    /// one.
    pub map_full: u32,
    /// Leaves that the next checkpoint may write.
    pub leaves: u64,
}

impl Reserve {
    pub fn of(demand: &Demand) -> Self {
        let Demand { shape, disk_leaves, .. } = *demand;
        let open = u64::from(demand.open_for_data) * u64::from(shape.segment_blocks);
        let coming = open + demand.in_flight;
        let leaves = (demand.changed_leaves + coming).min(disk_leaves);
        let leaves_most = (demand.leaves + coming).min(disk_leaves);
        let root = flowstone_log_format::root_blocks(leaves_most, u64::from(demand.used) + 1);
        let next = shape.checkpoint_segments(leaves, root) as u32;
        let map_full = shape.map_segments_full(leaves_most, root) as u32 + 1;
        let growth = map_full.saturating_sub(demand.map_segments);
        Self {
            checkpoints: shape.streams + 1 + next + growth,
            trims: shape.streams + 1,
            cleaning: CLEANING_SEGMENTS,
            map_full,
            leaves,
        }
    }

    /// Returns the number of segments that must remain, besides the heads that only trims use, when
    /// one is opened for `opener`.
    pub const fn left_by(&self, opener: Opener) -> u32 {
        match opener {
            Opener::Map => 0,
            Opener::Trim => self.checkpoints,
            Opener::Copy => self.checkpoints + self.trims,
            Opener::Write => self.checkpoints + self.trims + self.cleaning,
        }
    }

    /// Returns whether one of `available` segments may be opened. `trim_heads` are the heads that
    /// only trims use: they count towards the segments reserved for trims.
    pub const fn may_open(&self, opener: Opener, available: u32, trim_heads: u32) -> bool {
        let kept = match opener {
            Opener::Write | Opener::Copy => trim_heads,
            Opener::Trim | Opener::Map => 0,
        };
        available > 0 && available + kept > self.left_by(opener)
    }
}

/// Cleaning begins when writes have this many segments left.
pub const SLACK_SEGMENTS: u32 = 4;
/// Dead segments are freed together, at most this many blocks and segments: each time costs an
/// fdatasync, and unfreed segments are room that cleaning lacks.
const FREED_TOGETHER_BLOCKS: u32 = (16 << 20) / 4096;
pub const FREED_TOGETHER: u32 = 3;
/// Inverse of the share of an image in dead segments of which the drive is told, although the
/// image has room: until then it copies them.
const UNTOLD_SHARE: u32 = 100;
/// Images with fewer segments tell the drive when they need room, or when guests pause.
const TOLD_SEGMENTS_MIN: u32 = 64;
/// A checkpoint to free dead segments must cost this factor less per block than cleaning: it only
/// frees earlier what the next one would free, and cleaning frees space that nothing else frees.
const CHECKPOINT_FACTOR: u64 = 2;

/// Inputs of the next step of the maintenance worker.
#[derive(Clone, Copy, Debug)]
pub struct View {
    pub reserve: Reserve,
    pub available: u32,
    pub trim_heads: u32,
    /// Segments without live blocks, and the number of those that need no checkpoint.
    pub dead: u32,
    pub freeable: u32,
    pub map_segments: u32,
    pub segment_blocks: u32,
    /// Number of freeable segments from which the drive is told of them although there is room;
    /// `None` if it is not told at once.
    pub told_from: Option<u32>,
}

/// A step of the maintenance worker to free space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is enough room.
    Nothing,
    /// A sync frees dead segments.
    SyncAndFree,
    /// A checkpoint frees dead segments.
    Checkpoint,
    /// Clean segments of the map first: they have taken segments reserved for other records.
    CleanMap,
    /// Clean any segment that is worth it.
    Clean,
}

/// Returns [`View::told_from`] of an image of so many segments.
pub fn told_from(limit: u32, is_telling: bool) -> Option<u32> {
    let is_told = is_telling && limit >= TOLD_SEGMENTS_MIN;
    let is_told = mutated("log.tell.waits-for-need", is_told, false);
    is_told.then_some(limit.div_ceil(UNTOLD_SHARE))
}

impl View {
    /// Returns the number of segments that writes may still open.
    pub const fn left_for_writes(&self) -> u32 {
        (self.available + self.trim_heads).saturating_sub(self.reserve.left_by(Opener::Write))
    }

    /// Returns whether writes have to wait, or soon will.
    pub const fn is_urgent(&self) -> bool {
        self.left_for_writes() <= 1
    }

    /// Returns whether freeing `segments` segments is worth a sync.
    const fn is_worth_sync(&self, segments: u32) -> bool {
        segments >= FREED_TOGETHER || segments * self.segment_blocks >= FREED_TOGETHER_BLOCKS
    }

    const fn is_sync_due(&self) -> bool {
        self.is_worth_sync(self.freeable) || self.is_urgent() && self.freeable > 0
    }

    /// Returns whether a checkpoint of `checkpoint` blocks frees the dead segments at a lower cost
    /// than copying the live blocks of the best victim.
    pub fn checkpoint_is_cheaper(&self, checkpoint: u64, victim_live: Option<u32>) -> bool {
        let Some(live) = victim_live else { return self.dead > 0 };
        let segment = u64::from(self.segment_blocks);
        let won = u64::from(self.dead) * segment;
        let won_by_cleaning = segment.saturating_sub(live.into());
        self.is_worth_sync(self.dead)
            && checkpoint * CHECKPOINT_FACTOR * won_by_cleaning < u64::from(live) * won
    }

    /// Returns whether copies can have at most one more segment: then they share one.
    pub const fn is_tight(&self) -> bool {
        self.available + self.trim_heads <= self.reserve.left_by(Opener::Copy) + 1
    }

    pub const fn next_step(&self) -> Step {
        if self.left_for_writes() >= SLACK_SEGMENTS {
            match self.told_from {
                Some(enough) if self.freeable >= enough && self.is_worth_sync(self.freeable) => {
                    Step::SyncAndFree
                }
                _ => Step::Nothing,
            }
        } else if self.is_sync_due() {
            Step::SyncAndFree
        } else if self.left_for_writes() + self.freeable >= SLACK_SEGMENTS {
            Step::Nothing
        } else if self.left_for_writes() == 0 && self.dead > 0 {
            Step::Checkpoint
        } else if self.is_urgent() && self.map_segments > self.reserve.map_full {
            Step::CleanMap
        } else {
            Step::Clean
        }
    }
}
