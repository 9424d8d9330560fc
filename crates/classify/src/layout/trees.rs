//! File systems whose metadata is known by the header of each of its blocks.

use std::ops::Range;

use flowstone_block::{Extent, Request, SECTOR_BYTES};

use crate::btrfs;

/// Such file systems.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trees {
    /// By start, without overlaps: pieces of file systems on the disk, in sectors.
    pieces: Box<[(Range<u64>, btrfs::Nodes)]>,
}

impl Trees {
    /// Made of these pieces.
    pub fn new(mut pieces: Vec<(Range<u64>, btrfs::Nodes)>) -> Self {
        pieces.sort_by_key(|(piece, _)| piece.start);
        pieces.dedup_by(|next, piece| next.0.start < piece.0.end);
        Self { pieces: pieces.into() }
    }

    /// Whether a write consists of whole nodes of a tree.
    pub fn are_written(&self, extent: Extent, request: &Request) -> bool {
        let (start, end) = (extent.start().get(), extent.end().get());
        let next = self.pieces.partition_point(|(piece, _)| piece.end <= start);
        let piece = self.pieces.get(next);
        let Some((_, nodes)) = piece.filter(|(it, _)| it.start <= start && end <= it.end) else {
            return false;
        };
        let Some(count) = nodes.count_in(extent.bytes()) else { return false };
        let mut header = [0; btrfs::HEADER_BYTES];
        (0..count).all(|nth| {
            request.copy_out(nth * nodes.node_bytes as usize, &mut header);
            nodes.begin_with(&header)
        })
    }
}

/// A range of the disk in bytes, as far as whole sectors are concerned.
pub fn whole_sectors(bytes: &Range<u64>) -> Range<u64> {
    bytes.start.div_ceil(SECTOR_BYTES)..bytes.end / SECTOR_BYTES
}
