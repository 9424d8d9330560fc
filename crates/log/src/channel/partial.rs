//! Content of partial blocks: the rest of a block of which a guest writes only a part.

use flowstone_block::{AlignedBuf, IoVec};
use flowstone_log_format::{BLOCK_BYTES, MapEntry};

/// A block of which a request changes a part.
pub struct PartialBlock {
    pub lba: u64,
    /// Map entry with which `content` was read; `None` until then.
    pub expected: Option<MapEntry>,
    /// The block before the write; all zeroes where it was not mapped.
    pub content: AlignedBuf,
    pub memory: [IoVec; 1],
    /// Map entry with which the read in flight was started.
    pub reading: MapEntry,
    pub tries: u32,
}

impl PartialBlock {
    pub fn new(lba: u64) -> Box<Self> {
        let mut content = AlignedBuf::zeroed(BLOCK_BYTES);
        // SAFETY: the buffer lives beside the piece, and its memory does not move.
        let memory = [unsafe { IoVec::of(&mut content) }];
        let reading = MapEntry::UNMAPPED;
        Box::new(Self { lba, expected: None, content, memory, reading, tries: 0 })
    }
}

/// Recently written partial blocks. A guest that writes less than a block at a time returns to the
/// same block, and need not wait for a read.
///
/// An entry is valid as long as the map holds the map entry that it was stored with.
#[derive(Default)]
pub struct PartialCache {
    entries: Vec<(u64, MapEntry, Box<[u8; BLOCK_BYTES]>)>,
    next: usize,
}

/// Number of cached blocks: a megabyte per queue would help little more.
const ENTRIES_MAX: usize = 32;

impl PartialCache {
    pub fn get(&self, lba: u64, map_entry: MapEntry) -> Option<&[u8; BLOCK_BYTES]> {
        let is_it = |entry: &&(u64, MapEntry, Box<[u8; BLOCK_BYTES]>)| {
            entry.0 == lba && entry.1 == map_entry
        };
        self.entries.iter().find(is_it).map(|(_, _, content)| &**content)
    }

    pub fn put(&mut self, lba: u64, map_entry: MapEntry, content: &[u8]) {
        let slot = match self.entries.iter().position(|entry| entry.0 == lba) {
            Some(slot) => slot,
            None if self.entries.len() < ENTRIES_MAX => {
                self.entries.push((lba, map_entry, Box::new([0; BLOCK_BYTES])));
                self.entries.len() - 1
            }
            None => {
                self.next = (self.next + 1) % ENTRIES_MAX;
                self.next
            }
        };
        let entry = &mut self.entries[slot];
        (entry.0, entry.1) = (lba, map_entry);
        entry.2.copy_from_slice(content);
    }
}
