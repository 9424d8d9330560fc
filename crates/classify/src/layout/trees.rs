//! File systems whose metadata is known by the header of each of its blocks: btrfs.
//!
//! Source: Linux, include/uapi/linux/btrfs_tree.h (`btrfs_header`), little-endian.

use std::ops::Range;

use flowstone_block::{Extent, Request};

use crate::fields::{le32, le64};

const NODE_BYTES_MAX: u64 = 64 << 10;
/// As much of a node as tells what it is.
const HEADER_BYTES: usize = 101;
/// A tree has no more levels.
const LEVEL_MAX: u8 = 7;
/// An entry takes that much at least.
const ENTRY_BYTES_MIN: u64 = 25;
/// The most nodes that a write may consist of.
const NODES_MAX: u64 = 256;

/// What each node of a file system's trees has in its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nodes {
    pub uuid: [u8; 16],
    /// Addresses are multiples of it.
    pub sector_bytes: u64,
    /// Size of a node.
    pub node_bytes: u64,
}

/// Such file systems.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trees {
    /// By start, without overlaps: pieces of file systems on the disk, in sectors.
    pieces: Box<[(Range<u64>, Nodes)]>,
}

impl Trees {
    /// Made of these pieces.
    pub fn new(mut pieces: Vec<(Range<u64>, Nodes)>) -> Self {
        pieces.sort_by_key(|(piece, _)| piece.start);
        pieces.dedup_by(|next, piece| next.0.start < piece.0.end);
        Self { pieces: pieces.into() }
    }

    /// Returns whether a write consists of whole nodes of a tree.
    pub fn are_written(&self, extent: Extent, request: &Request) -> bool {
        let (start, end) = (extent.start().get(), extent.end().get());
        let next = self.pieces.partition_point(|(piece, _)| piece.end <= start);
        let piece = self.pieces.get(next);
        let Some((_, nodes)) = piece.filter(|(it, _)| it.start <= start && end <= it.end) else {
            return false;
        };
        let Some(count) = nodes.count_in(extent.bytes()) else { return false };
        let mut header = [0; HEADER_BYTES];
        (0..count).all(|nth| {
            request.copy_out(nth * nodes.node_bytes as usize, &mut header);
            nodes.begin_with(&header)
        })
    }
}

impl Nodes {
    /// Returns whether sizes are such as there are.
    pub fn are_plausible(&self) -> bool {
        let power =
            |value: u64| value.is_power_of_two() && (4096..=NODE_BYTES_MAX).contains(&value);
        power(self.sector_bytes) && power(self.node_bytes)
    }

    /// How many nodes a write of so many bytes may consist of.
    fn count_in(&self, bytes: u64) -> Option<usize> {
        let count = bytes / self.node_bytes;
        let is_whole = bytes.is_multiple_of(self.node_bytes) && (1..=NODES_MAX).contains(&count);
        is_whole.then_some(usize::try_from(count).ok()?)
    }

    /// Returns whether this is the header of one of them.
    fn begin_with(&self, header: &[u8; HEADER_BYTES]) -> bool {
        let (address, generation) = (le64(header, 48), le64(header, 80));
        let (entries, level) = (u64::from(le32(header, 96)), header[100]);
        header[32..48] == self.uuid
            && address.is_multiple_of(self.sector_bytes)
            && header[64..80] != [0; 16]
            && generation > 0
            && level <= LEVEL_MAX
            && entries <= self.node_bytes / ENTRY_BYTES_MIN
    }
}
