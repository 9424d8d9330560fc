//! File systems whose metadata blocks are identified by their headers: btrfs.
//!
//! Source: Linux, include/uapi/linux/btrfs_tree.h (`btrfs_header`), little-endian.

use std::ops::Range;

use flowstone_block::{Extent, Request};

use crate::fields::{is_power_within, le32, le64};

const NODE_BYTES_MAX: u64 = 64 << 10;
/// The part of a node that is checked.
const HEADER_BYTES: usize = 101;
/// Greatest level of a tree.
const LEVEL_MAX: u8 = 7;
/// Smallest size of an entry.
const ENTRY_BYTES_MIN: u64 = 25;
/// The most nodes in one write.
const NODES_MAX: u64 = 256;

/// Header fields common to all nodes of a file system's trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nodes {
    pub uuid: [u8; 16],
    /// Addresses are multiples of this.
    pub sector_bytes: u64,
    /// Size of a node in bytes.
    pub node_bytes: u64,
}

/// The file systems of a disk with such trees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trees {
    /// Their pieces in sectors of the disk, sorted and disjoint.
    pieces: Box<[(Range<u64>, Nodes)]>,
}

impl Trees {
    /// Makes the set of these pieces.
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
    /// Returns whether the sizes are valid.
    pub fn are_plausible(&self) -> bool {
        is_power_within(self.sector_bytes, 4096, NODE_BYTES_MAX)
            && is_power_within(self.node_bytes, 4096, NODE_BYTES_MAX)
    }

    /// Returns the number of nodes in a write of `bytes` bytes; `None` if they are not whole nodes,
    /// or too many.
    fn count_in(&self, bytes: u64) -> Option<usize> {
        let count = bytes / self.node_bytes;
        let is_whole = bytes.is_multiple_of(self.node_bytes) && (1..=NODES_MAX).contains(&count);
        is_whole.then_some(usize::try_from(count).ok()?)
    }

    /// Returns whether this is the header of such a node.
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
