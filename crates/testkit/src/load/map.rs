//! The expected content of the disk, block by block.
//!
//! A block is unknown, zero, or holds a generation. The map outlives a run, so that a later run can
//! verify the writes of an earlier one. In a run every queue owns a part of the map.

/// The content of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Not written by us, or a write failed.
    Unknown,
    /// Zeroed.
    Zero,
    /// Written, as this generation.
    Written(u32),
}

const UNKNOWN: u32 = u32::MAX;
const ZERO: u32 = 0;

/// The contents of the blocks of a span, as far as they are known.
#[derive(Clone, Debug, Default)]
pub struct VerifyMap {
    block_bytes: u64,
    offset_bytes: u64,
    entries: Vec<u32>,
    generation: u32,
}

impl VerifyMap {
    /// Makes a map of `blocks` unknown blocks from `offset_bytes` on.
    pub(super) fn new(block_bytes: u64, offset_bytes: u64, blocks: u64) -> Self {
        let entries = vec![UNKNOWN; blocks as usize];
        VerifyMap { block_bytes, offset_bytes, entries, generation: 0 }
    }

    /// Returns the number of blocks of known content.
    pub fn known(&self) -> u64 {
        self.entries.iter().filter(|&&entry| entry != UNKNOWN).count() as u64
    }

    /// Returns the number of blocks, known or not.
    pub(super) fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Returns whether it was made for the same blocks.
    pub(super) fn fits(&self, block_bytes: u64, offset_bytes: u64, blocks: u64) -> bool {
        let same = self.block_bytes == block_bytes && self.offset_bytes == offset_bytes;
        same && self.len() == blocks
    }

    pub(super) fn get(&self, block: u64) -> Content {
        match self.entries[block as usize] {
            UNKNOWN => Content::Unknown,
            ZERO => Content::Zero,
            generation => Content::Written(generation),
        }
    }

    pub(super) fn set(&mut self, block: u64, content: Content) {
        self.entries[block as usize] = match content {
            Content::Unknown => UNKNOWN,
            Content::Zero => ZERO,
            Content::Written(generation) => generation,
        };
    }

    /// Returns an unused generation.
    pub(super) fn next_generation(&mut self) -> u32 {
        self.generation += 1;
        assert!(self.generation < UNKNOWN, "four billion writes in one map");
        self.generation
    }

    /// Returns the first known block at or after `block`.
    pub(super) fn next_known(&self, block: u64) -> Option<u64> {
        let rest = &self.entries[block.min(self.entries.len() as u64) as usize..];
        rest.iter().position(|&entry| entry != UNKNOWN).map(|at| block + at as u64)
    }

    /// Splits the map into `parts` of nearly equal length, in order.
    pub(super) fn split(mut self, parts: u64) -> Vec<VerifyMap> {
        let blocks = self.entries.len() as u64;
        let mut maps = Vec::new();
        for part in (0..parts).rev() {
            let first = part * blocks / parts;
            let entries = self.entries.split_off(first as usize);
            let offset_bytes = self.offset_bytes + first * self.block_bytes;
            maps.push(VerifyMap { entries, offset_bytes, ..self });
        }
        maps.reverse();
        maps
    }

    /// Joins parts.
    pub(super) fn join(parts: impl IntoIterator<Item = VerifyMap>) -> VerifyMap {
        let mut parts = parts.into_iter();
        let mut whole = parts.next().unwrap_or_default();
        for part in parts {
            whole.entries.extend(part.entries);
            whole.generation = whole.generation.max(part.generation);
        }
        whole
    }
}
