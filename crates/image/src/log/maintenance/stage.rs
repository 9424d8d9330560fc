//! Live blocks of a victim that have been read and not copied yet: they are put in the order of
//! their LBAs, so that cleaning leaves what a guest reads in sequence in sequence.

use crate::log::address::{BLOCK_BYTES, MapEntry};
use crate::log::record::ENTRIES_MAX;

/// A copy on its way into the map.
#[derive(Clone, Copy, Debug)]
pub struct Move {
    pub lba: u64,
    pub old: MapEntry,
}

/// As many are sorted together. More would lie in longer runs, and takes memory of every image that
/// is being cleaned: this is 8 MiB, and as much for the victim after it, which is looked through
/// meanwhile.
const STAGE_BLOCKS: usize = 2048;

/// See the module.
#[derive(Default)]
pub struct Stage {
    moves: Vec<(Move, u32)>,
    /// In the order of their arrival.
    contents: Vec<u8>,
}

impl Stage {
    /// Whether there is room for the blocks of another record.
    pub const fn has_room(&self) -> bool {
        self.moves.len() + ENTRIES_MAX <= STAGE_BLOCKS
    }

    /// Takes a block in.
    pub fn push(&mut self, moved: Move, content: &[u8]) {
        self.moves.push((moved, self.moves.len() as u32));
        self.contents.extend_from_slice(content);
    }

    /// Forgets the blocks, and keeps the memory.
    pub fn clear(&mut self) {
        self.moves.clear();
        self.contents.clear();
    }

    /// All blocks, by LBA.
    pub fn in_order(&mut self) -> impl Iterator<Item = (Move, &[u8])> {
        self.moves.sort_unstable_by_key(|(moved, _)| moved.lba);
        self.moves.iter().map(|(moved, number)| {
            let start = *number as usize * BLOCK_BYTES;
            (*moved, &self.contents[start..start + BLOCK_BYTES])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::address::Address;

    #[test]
    fn blocks_come_out_by_their_lba_with_their_content() {
        let mut stage = Stage::default();
        for round in 0..2u8 {
            for lba in [7u64, 3, 900, 0] {
                let old = MapEntry::new(Address::new(lba as u32 + 1), 0);
                stage.push(Move { lba, old }, &[lba as u8 ^ round; BLOCK_BYTES]);
            }
            let out: Vec<(u64, u8)> =
                stage.in_order().map(|(moved, content)| (moved.lba, content[9])).collect();
            let expected = [0u64, 3, 7, 900].map(|lba| (lba, lba as u8 ^ round));
            assert_eq!(out, expected);
            stage.clear();
        }
    }

    #[test]
    fn there_is_an_end_to_what_it_takes() {
        let mut stage = Stage::default();
        let moved = Move { lba: 1, old: MapEntry::UNMAPPED };
        let taken = (0..).find(|_| {
            let has_room = stage.has_room();
            (0..ENTRIES_MAX).for_each(|_| stage.push(moved, &[0; BLOCK_BYTES]));
            !has_room
        });
        assert_eq!(taken, Some(STAGE_BLOCKS / ENTRIES_MAX));
    }
}
