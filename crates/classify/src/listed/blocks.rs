//! The blocks that journals have listed: a hash table of fixed size with concurrent readers and one
//! writer at a time.
//!
//! An entry is one word, so that it is never seen half written: the block's start (48 bits, in
//! sectors), its size (3 bits), a mark of revocation, and the number of the list that it belongs to
//! (12 bits). The table is cleared by starting a list of another number. A block may be in any of
//! the eight entries of one cache line.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use flowstone_block::Extent;

/// 256 KiB: 32,768 blocks.
const LINES: usize = 4096;
const ENTRIES_PER_LINE: usize = 8;
/// The most blocks of a request.
const BLOCKS_MAX: u32 = 256;

const SECTOR_BITS: u32 = 48;
const SECTOR_MASK: u64 = (1 << SECTOR_BITS) - 1;
/// Size of a block: log2 in units of 512 bytes.
const ORDER_MASK: u64 = 7;
const TAKEN_BACK: u64 = 1 << 51;
const LIST_SHIFT: u32 = 52;

#[repr(align(64))]
#[derive(Default)]
struct Line([AtomicU64; ENTRIES_PER_LINE]);

/// The listed blocks of a disk.
pub struct Blocks {
    lines: Box<[Line]>,
    /// The number of the current list, at its bit position in an entry; never 0.
    list: AtomicU64,
}

/// A block of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its first sector.
    pub sector: u64,
    /// Log2 of its size in sectors.
    pub order: u32,
}

impl Default for Blocks {
    fn default() -> Self {
        let lines = (0..LINES).map(|_| Line::default()).collect();
        Self { lines, list: AtomicU64::new(1 << LIST_SHIFT) }
    }
}

impl Blocks {
    /// Returns whether all of `extent` consists of listed blocks.
    pub fn contain(&self, extent: Extent) -> bool {
        let (mut at, end) = (extent.start().get(), extent.end().get());
        for _ in 0..BLOCKS_MAX {
            let Some((_, entry)) = self.find(at).filter(|(_, it)| it & TAKEN_BACK == 0) else {
                return false;
            };
            at += 1 << (entry >> SECTOR_BITS & ORDER_MASK);
            if at >= end {
                return at == end;
            }
        }
        false
    }

    /// Lists a block.
    pub fn add(&self, block: Block) {
        self.put(block, 0);
    }

    /// Lists a block unless it is marked as revoked.
    pub fn mention(&self, block: Block) {
        if self.find(block.sector).is_none_or(|(_, entry)| entry & TAKEN_BACK == 0) {
            self.put(block, 0);
        }
    }

    /// Removes a block and marks it as revoked, so that a mention does not list it again.
    pub fn take_back(&self, block: Block) {
        self.put(block, TAKEN_BACK);
    }

    /// Removes a block.
    pub fn remove(&self, block: Block) {
        if let Some((slot, _)) = self.find(block.sector) {
            slot.store(0, Relaxed);
        }
    }

    /// Removes all blocks.
    pub fn forget(&self) {
        let next = self.list.load(Relaxed).wrapping_add(1 << LIST_SHIFT);
        if next == 0 {
            // The numbers wrap around: entries of the old lists must be erased.
            self.lines.iter().flat_map(|line| &line.0).for_each(|entry| entry.store(0, Relaxed));
        }
        self.list.store(next.max(1 << LIST_SHIFT), Relaxed);
    }

    fn put(&self, block: Block, mark: u64) {
        if block.sector > SECTOR_MASK || u64::from(block.order) > ORDER_MASK {
            return;
        }
        let list = self.list.load(Relaxed);
        let entry = list | mark | u64::from(block.order) << SECTOR_BITS | block.sector;
        let line = self.line(block.sector);
        let is_free = |it: &&AtomicU64| it.load(Relaxed) >> LIST_SHIFT != list >> LIST_SHIFT;
        let slot = self.find(block.sector).map(|(slot, _)| slot);
        let slot = slot.or_else(|| line.iter().find(is_free));
        // Any other entry may be evicted: unlisted blocks count as data.
        let slot = slot.unwrap_or(&line[hash(block.sector) as usize % ENTRIES_PER_LINE]);
        slot.store(entry, Relaxed);
    }

    /// Returns the entry of the block that begins at `sector`.
    fn find(&self, sector: u64) -> Option<(&AtomicU64, u64)> {
        let list = self.list.load(Relaxed);
        let is_it =
            |entry: u64| entry & SECTOR_MASK == sector && entry >> LIST_SHIFT == list >> LIST_SHIFT;
        let entries = self.line(sector).iter().map(|slot| (slot, slot.load(Relaxed)));
        entries.into_iter().find(|(_, entry)| is_it(*entry))
    }

    fn line(&self, sector: u64) -> &[AtomicU64; ENTRIES_PER_LINE] {
        &self.lines[(hash(sector) >> 32) as usize % LINES].0
    }
}

/// Spreads neighbouring blocks over all lines (Fibonacci hashing).
fn hash(sector: u64) -> u64 {
    let product = sector.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    product ^ product >> 29
}

#[cfg(test)]
mod tests {
    use flowstone_block::{Sector, SectorCount};

    use super::*;

    fn extent(start: u64, count: u64) -> Extent {
        Extent::new(Sector::new(start), SectorCount::new(count)).unwrap()
    }

    fn block(sector: u64) -> Block {
        Block { sector, order: 3 }
    }

    #[test]
    fn a_request_is_listed_if_it_consists_of_blocks_that_are() {
        let blocks = Blocks::default();
        [800, 808, 824].into_iter().for_each(|sector| blocks.add(block(sector)));
        blocks.add(Block { sector: 816, order: 1 });
        assert!(blocks.contain(extent(800, 8)) && blocks.contain(extent(800, 16)));
        assert!(blocks.contain(extent(800, 18)), "blocks of two sizes");
        assert!(!blocks.contain(extent(800, 32)), "there is a hole");
        assert!(!blocks.contain(extent(800, 4)) && !blocks.contain(extent(804, 4)), "a part");
        assert!(!blocks.contain(extent(0, 8)));
    }

    #[test]
    fn what_is_taken_back_is_not_listed_because_it_is_mentioned() {
        let blocks = Blocks::default();
        blocks.mention(block(8));
        assert!(blocks.contain(extent(8, 8)));
        blocks.take_back(block(8));
        blocks.mention(block(8));
        assert!(!blocks.contain(extent(8, 8)));
        blocks.add(block(8));
        assert!(blocks.contain(extent(8, 8)));
        blocks.remove(block(8));
        assert!(!blocks.contain(extent(8, 8)));
        blocks.mention(block(8));
        assert!(blocks.contain(extent(8, 8)));
    }

    #[test]
    fn a_list_that_is_forgotten_never_comes_back() {
        let blocks = Blocks::default();
        for nth in 0..3 * 4096 {
            blocks.add(block(8 * (nth % 4000)));
            blocks.forget();
            assert!(!blocks.contain(extent(8 * (nth % 4000), 8)));
            assert!(!blocks.contain(extent(8 * (nth * 7 % 4000), 8)));
        }
    }

    #[test]
    fn a_full_table_holds_most_of_what_came_last() {
        let blocks = Blocks::default();
        (0..1_000_000).for_each(|nth| blocks.add(block(8 * nth)));
        let last = (990_000..1_000_000).filter(|nth| blocks.contain(extent(8 * nth, 8))).count();
        assert!(last > 7500, "{last}");
        assert!(!blocks.contain(extent(0, 8)) || !blocks.contain(extent(8, 8)));
        blocks.add(Block { sector: 1 << 48, order: 3 });
        blocks.add(Block { sector: 1 << 40, order: 8 });
        assert!(!blocks.contain(extent(1 << 48, 8)) && !blocks.contain(extent(1 << 40, 256)));
    }
}
