//! Live blocks of a victim that have been read and not copied yet, sorted by LBA, so that cleaning
//! keeps sequential data sequential.

use flowstone_log_format::{BLOCK_BYTES, ENTRIES_MAX};

use crate::maintenance::writer::Move;

/// See the module.
#[derive(Default)]
pub struct Stage {
    /// Maximum number of blocks sorted together.
    most: usize,
    moves: Vec<(Move, u32)>,
    /// In order of arrival.
    contents: Vec<u8>,
}

impl Stage {
    /// Empties the stage, and reserves room for `bytes` bytes of blocks, or fewer if the host has
    /// no memory: at least those of one record.
    pub fn begin(&mut self, bytes: u64) {
        self.clear();
        let mut most = (bytes as usize / BLOCK_BYTES).max(ENTRIES_MAX);
        while most > ENTRIES_MAX && self.contents.try_reserve_exact(most * BLOCK_BYTES).is_err() {
            most = (most / 2).max(ENTRIES_MAX);
        }
        self.most = most;
    }

    /// Returns whether there is room for the blocks of another record.
    pub const fn has_room(&self) -> bool {
        self.moves.len() + ENTRIES_MAX <= self.most
    }

    /// Adds a block.
    pub fn push(&mut self, moved: Move, content: &[u8]) {
        self.moves.push((moved, self.moves.len() as u32));
        self.contents.extend_from_slice(content);
    }

    /// Drops the blocks, and keeps the memory.
    pub fn clear(&mut self) {
        self.moves.clear();
        self.contents.clear();
    }

    /// Returns all blocks, by LBA.
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
    use flowstone_log_format::{Address, MapEntry};

    #[test]
    fn blocks_come_out_by_their_lba_with_their_content() {
        let mut stage = Stage::default();
        stage.begin(1 << 20);
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
    fn memory_that_the_host_has_not_got_makes_it_smaller() {
        let mut stage = Stage::default();
        stage.begin(1 << 62);
        assert!(stage.has_room() && stage.most < 1 << 50, "{}", stage.most);
        stage.begin(0);
        assert!(stage.has_room(), "a record always fits");
    }

    #[test]
    fn there_is_an_end_to_what_it_takes() {
        let mut stage = Stage::default();
        stage.begin(3 * (ENTRIES_MAX * BLOCK_BYTES) as u64);
        let moved = Move { lba: 1, old: MapEntry::UNMAPPED };
        let taken = (0..).find(|_| {
            let has_room = stage.has_room();
            (0..ENTRIES_MAX).for_each(|_| stage.push(moved, &[0; BLOCK_BYTES]));
            !has_room
        });
        assert_eq!(taken, Some(3));
    }
}
