//! Dropping the blocks of a large range, in steps, so that others get the lock in between.

use std::ops::Range;

use flowstone_block::mutated;

use super::{Disk, Table};
use crate::frames::Memory;
use crate::names::BlockId;

/// A change of a range of which nothing is to be held.
pub struct Forgetting {
    blocks: Range<BlockId>,
    /// Whether the change has begun, which spoils fills of the range. Before anything is dropped:
    /// otherwise a read in between would fill a block with the content before the change.
    begun: bool,
    /// The block to continue at.
    from: Option<BlockId>,
}

impl Forgetting {
    pub fn of(blocks: Range<BlockId>) -> Self {
        let from = mutated("cache.discard.forgets-nothing", Some(blocks.start), None);
        Self { blocks, begun: false, from }
    }

    /// Does the work of one hold of the lock. Returns whether something is left to do. When nothing
    /// is, the change has [begun](Table::begin_change).
    pub fn step(&mut self, table: &mut Table, memory: &Memory) -> bool {
        let has_dropped = self.from.is_none();
        let begins = mutated("cache.discard.drops-before-it-raises-the-version", true, has_dropped);
        if !self.begun && begins {
            table.begin_change(self.blocks.clone());
            self.begun = true;
        }
        if let Some(start) = self.from {
            self.from = table.forget_some(memory, start..self.blocks.end);
        }
        !self.begun || self.from.is_some()
    }
}

impl Table {
    /// Drops the state of a disk.
    pub fn forget_disk(&mut self, disk: u32) {
        if let Some(known) = self.disks.get_mut(disk as usize) {
            *known = Disk::default();
        }
    }
}
