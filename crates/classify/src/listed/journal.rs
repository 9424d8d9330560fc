//! The description of a journal whose lists are read.

use std::ops::Range;

use flowstone_block::{Extent, SECTOR_BYTES};

use super::jbd2;
use crate::volume::Volume;

/// An internal journal of a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Journal {
    /// UUID of the file system: mkfs makes a new one.
    pub uuid: [u8; 16],
    /// The volume of the file system, which addresses in the journal refer to.
    pub volume: Volume,
    /// Size of a block of the file system.
    pub block_bytes: u64,
    /// Its format.
    pub kind: Kind,
    /// Its place on the disk, in sectors and in its own order; each piece begins with a block.
    pub pieces: Box<[Range<u64>]>,
}

/// The kind of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Of ext3 and ext4, with the tag format of its superblock if that could be read.
    Jbd2(Option<jbd2::Format>),
    /// Of XFS.
    Xfs {
        /// Blocks of an allocation group.
        group_blocks: u64,
    },
}

impl Journal {
    /// Returns whether it is the same journal, in whatever format.
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

    /// Returns whether `extent` is in the journal, in whole blocks for jbd2.
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

    /// Returns the sector that continues the journal after `end`.
    pub fn after(&self, end: u64) -> u64 {
        let ended = self.pieces.iter().position(|piece| piece.end == end);
        ended.map_or(end, |piece| self.pieces[(piece + 1) % self.pieces.len()].start)
    }
}
