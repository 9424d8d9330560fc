//! The kinds of blocks that a log image writes, for statistics.

use flowstone_fileio::FileOffset;
use flowstone_log_format::{Kind, SUPERBLOCK_AREA_BYTES};

/// The kind of a written block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Data of guests.
    Data = 1,
    /// The header of a record: of guests' data, of copies, or of the map.
    Header = 2,
    /// A copy made by the cleaner.
    Copy = 3,
    /// Part of a leaf or a root of the map.
    Map = 4,
    /// A superblock.
    Superblock = 5,
    /// A record that ends a segment.
    Seal = 6,
}

impl Written {
    /// Returns the kind of a block of a write at this offset of the file: each write of the log is
    /// a whole record. `None` if it is no write of a log image.
    pub fn of(block: usize, offset: FileOffset, write: &[u8]) -> Option<Self> {
        if offset.get() < SUPERBLOCK_AREA_BYTES {
            return Some(Self::Superblock);
        }
        Some(match (Kind::of_header(write)?, block) {
            (Kind::Seal, _) => Self::Seal,
            (_, 0) => Self::Header,
            (Kind::Writes, _) => Self::Data,
            (Kind::Relocated, _) => Self::Copy,
            (Kind::Map, _) => Self::Map,
        })
    }
}
