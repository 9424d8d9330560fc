//! Claims of the map on addresses in the file, sorted by address.

use std::ops::Range;

use flowstone_log_format::{Address, LEAF_ON_DISK_BLOCKS, LeafPlace, blocks_of_sectors};

use super::Findings;
use crate::load::Loaded;

/// States that a guest block is at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    pub address: u32,
    pub lba: u32,
}

/// States that a piece of the map is at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Piece {
    pub address: u32,
    pub blocks: u32,
    /// The leaf; `None` for the root.
    pub leaf: Option<u32>,
    pub found: bool,
}

/// All claims of an image, by address.
pub struct Claims {
    pub blocks: Vec<Claim>,
    /// For each claim, whether a record confirms it.
    pub found: Vec<bool>,
    pub pieces: Vec<Piece>,
}

impl Claims {
    pub fn of(loaded: &Loaded) -> Self {
        let end = blocks_of_sectors(loaded.superblock.capacity_sectors);
        let mut blocks = Vec::with_capacity(loaded.map.mapped() as usize);
        for (lba, map_entry) in loaded.map.all_mapped(end) {
            // No disk has more blocks than there are addresses.
            blocks.push(Claim { address: map_entry.address().get(), lba: lba as u32 });
        }
        blocks.sort_unstable();
        let found = vec![false; blocks.len()];
        let leaf = |place: &LeafPlace| Piece {
            address: place.address.get(),
            blocks: LEAF_ON_DISK_BLOCKS,
            leaf: Some(place.leaf),
            found: false,
        };
        let root = loaded.superblock.root;
        let root = (root.blocks > 0).then_some(Piece {
            address: root.address.get(),
            blocks: root.blocks,
            leaf: None,
            found: false,
        });
        let mut pieces: Vec<Piece> = loaded.leaves.values().map(leaf).chain(root).collect();
        pieces.sort_unstable();
        Self { blocks, found, pieces }
    }

    /// Reports addresses that are claimed twice.
    pub(super) fn report_conflicts(&self, loaded: &Loaded, findings: &mut Findings<'_>) {
        for pair in self.blocks.windows(2).filter(|pair| pair[0].address == pair[1].address) {
            let lba = u64::from(pair[1].lba);
            let what = format!("LBA {} is mapped there too", pair[0].lba);
            findings.block_error(lba, loaded.map.get(lba), what);
        }
        for piece in &self.pieces {
            for claim in &self.blocks[self.blocks_in(piece.address..piece.address + piece.blocks)] {
                let lba = u64::from(claim.lba);
                findings.block_error(lba, loaded.map.get(lba), "the map itself is there");
            }
        }
        for pair in self.pieces.windows(2) {
            if pair[0].address + pair[0].blocks > pair[1].address {
                let offset = Address::new(pair[1].address).offset().get();
                findings.error(format!("the map overlaps itself at file offset {offset}"));
            }
        }
    }

    /// Returns the indices of the claims to these addresses.
    pub fn blocks_in(&self, addresses: Range<u32>) -> Range<usize> {
        let start = self.blocks.partition_point(|claim| claim.address < addresses.start);
        let end = self.blocks.partition_point(|claim| claim.address < addresses.end);
        start..end
    }

    /// Returns the indices of the pieces that begin at these addresses.
    pub fn pieces_in(&self, addresses: Range<u32>) -> Range<usize> {
        let start = self.pieces.partition_point(|piece| piece.address < addresses.start);
        let end = self.pieces.partition_point(|piece| piece.address < addresses.end);
        start..end
    }
}
