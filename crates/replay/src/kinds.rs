//! The writes of a log image by their kind: how many blocks, and how many of them the drive copies.

use flowstone_fileio::FileOffset;
use flowstone_log::Written;
use flowstone_ssd::{LABELS, Tally};
use serde::Serialize;

use crate::load::BLOCK_BYTES;

/// Label of what an aged drive held before; the others are the numbers of [`Written`].
const EARLIER: u8 = 0;

/// Blocks of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct KindBlocks {
    /// Blocks written to the file.
    pub host_blocks: f64,
    /// Blocks copied by the drive: its WAF is one and the sum of all kinds, over the host's blocks.
    pub copied_blocks: f64,
}

/// The blocks of a log image by their kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Kinds {
    /// Data of guests.
    pub data: KindBlocks,
    /// Headers of records: of guests' data, of copies, and of maps.
    pub headers: KindBlocks,
    /// Copies made by the image's cleaner.
    pub copies: KindBlocks,
    /// Leaves and roots of the map.
    pub maps: KindBlocks,
    /// Superblocks.
    pub superblocks: KindBlocks,
    /// Records that end a segment.
    pub seals: KindBlocks,
    /// What an aged drive held before.
    pub earlier: KindBlocks,
}

/// Labels a block of a write to a log image.
pub fn label(block: usize, offset: FileOffset, bytes: &[u8]) -> u8 {
    Written::of(block, offset, bytes).map_or(EARLIER, |it| it as u8)
}

impl Kinds {
    /// Returns the blocks from one count to a later one, of a drive with units of this size.
    pub fn between(earlier: &Tally, now: &Tally, unit_bytes: u64) -> Self {
        let host: [u64; LABELS] = now.host_bytes_since(earlier);
        let copied = now.flash_since(earlier).copied_of;
        let of = |label: u8| {
            let label = usize::from(label);
            let blocks = |bytes: u64| bytes as f64 / BLOCK_BYTES as f64;
            let copied_blocks = blocks(copied[label] * unit_bytes);
            KindBlocks { host_blocks: blocks(host[label]), copied_blocks }
        };
        Self {
            data: of(Written::Data as u8),
            headers: of(Written::Header as u8),
            copies: of(Written::Copy as u8),
            maps: of(Written::Map as u8),
            superblocks: of(Written::Superblock as u8),
            seals: of(Written::Seal as u8),
            earlier: of(EARLIER),
        }
    }

    /// Returns all of them with their names.
    pub const fn named(&self) -> [(&'static str, KindBlocks); 7] {
        [
            ("guests' data", self.data),
            ("headers", self.headers),
            ("copies", self.copies),
            ("maps", self.maps),
            ("superblocks", self.superblocks),
            ("seals", self.seals),
            ("earlier data", self.earlier),
        ]
    }
}
