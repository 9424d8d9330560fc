//! What the layout knows of a journal whose lists are read.

use std::ops::Range;

use flowstone_block::{Extent, SECTOR_BYTES};

use super::jbd2;
use crate::volume::Volume;

/// A journal inside of a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Journal {
    /// UUID of the file system: a new one has another one.
    pub uuid: [u8; 16],
    /// What the file system lies on; addresses in the journal are relative to it.
    pub volume: Volume,
    /// Size of a block of the file system.
    pub block_bytes: u64,
    /// How it is written.
    pub kind: Kind,
    /// Where it is on the disk, in sectors and in its own order; each piece begins with a block.
    pub pieces: Box<[Range<u64>]>,
}

/// The kind of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Of ext3 and ext4. Its superblock, if it could be read, says how its tags are written.
    Jbd2(Option<jbd2::Format>),
    /// Of XFS.
    Xfs {
        /// Blocks of an allocation group.
        group_blocks: u64,
    },
}

impl Journal {
    /// Returns whether it is the same one, in whatever format.
    pub fn is_same(&self, other: &Self) -> bool {
        let kind = |it: &Self| match it.kind {
            Kind::Jbd2(_) => Kind::Jbd2(None),
            Kind::Xfs { group_blocks } => Kind::Xfs { group_blocks },
        };
        let fields = |it: &Self| (it.uuid, it.block_bytes);
        fields(self) == fields(other)
            && kind(self) == kind(other)
            && (&self.volume, &self.pieces) == (&other.volume, &other.pieces)
    }

    /// Returns whether all of this is in it, in whole blocks if blocks are what it consists of.
    pub fn holds(&self, extent: Extent) -> bool {
        let unit = match self.kind {
            Kind::Jbd2(_) => self.block_bytes / SECTOR_BYTES,
            Kind::Xfs { .. } => 1,
        };
        let (start, end) = (extent.start().get(), extent.end().get());
        self.pieces.iter().any(|piece| {
            let is_within = piece.start <= start && end <= piece.end;
            is_within
                && (start - piece.start).is_multiple_of(unit)
                && (end - start).is_multiple_of(unit)
        })
    }

    /// The sector that follows after one of the journal's has been written last.
    pub fn after(&self, end: u64) -> u64 {
        let ended = self.pieces.iter().position(|piece| piece.end == end);
        ended.map_or(end, |piece| self.pieces[(piece + 1) % self.pieces.len()].start)
    }
}
