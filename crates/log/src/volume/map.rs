//! The map from LBA to address: two levels of flat arrays.
//!
//! A leaf maps 2048 blocks, 8 bytes each, and is allocated when its first block is mapped. A lookup
//! is two loads and takes no lock. Changes are made under the log's lock only, so there is one
//! writer at a time; leaves are never freed while the map lives, so a reader's pointer stays valid.

use std::ops::Range;

use flowstone_block::mutated;
use flowstone_block::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use flowstone_log_format::MapEntry;

/// Blocks mapped by one leaf. (Few in a loom model: there, each word has a history.)
pub const LEAF_BLOCKS: u64 =
    if cfg!(feature = "model") { 64 } else { flowstone_log_format::LEAF_BLOCKS };
/// Leaves of the largest disk, which has as many blocks as there are addresses.
const LEAVES_MAX: usize =
    if cfg!(feature = "model") { 2 } else { ((1u64 << 32) / LEAF_BLOCKS) as usize };

struct Leaf {
    entries: [AtomicU64; LEAF_BLOCKS as usize],
    /// Number of mapped entries: ranges without any are skipped whole.
    mapped: AtomicU32,
    /// Whether the leaf has changed since the last checkpoint took it.
    changed: AtomicBool,
}

/// The map of one disk.
pub struct BlockMap {
    /// Zeroed pages that the kernel backs only where a leaf exists.
    leaves: Box<[AtomicPtr<Leaf>]>,
    leaf_count: AtomicU32,
    changed_count: AtomicU32,
    mapped: AtomicU64,
}

impl Default for BlockMap {
    fn default() -> Self {
        Self {
            leaves: empty_leaves(),
            leaf_count: AtomicU32::new(0),
            changed_count: AtomicU32::new(0),
            mapped: AtomicU64::new(0),
        }
    }
}

impl Drop for BlockMap {
    fn drop(&mut self) {
        // Most slots were never used: stops after the last leaf.
        let mut left = self.leaf_count();
        let mut slots = self.leaves.iter();
        while left > 0 {
            let Some(slot) = slots.next() else { return };
            let leaf = slot.load(Ordering::Relaxed);
            if !leaf.is_null() {
                // SAFETY: made by Box::into_raw in `leaf_or_new`, and nothing refers to it any
                // more.
                drop(unsafe { Box::from_raw(leaf) });
                left -= 1;
            }
        }
    }
}

impl BlockMap {
    fn leaf(&self, index: u64) -> Option<&Leaf> {
        let leaf = self.leaves.get(index as usize)?.load(Ordering::Acquire);
        // SAFETY: null, or a leaf that lives as long as the map.
        unsafe { leaf.as_ref() }
    }

    fn leaf_or_new(&self, index: u64) -> &Leaf {
        if let Some(leaf) = self.leaf(index) {
            return leaf;
        }
        let made = Box::into_raw(empty_leaf());
        self.leaves[index as usize].store(made, Ordering::Release);
        self.leaf_count.fetch_add(1, Ordering::Relaxed);
        // SAFETY: just made, and freed only with the map.
        unsafe { &*made }
    }

    fn mark_changed(&self, leaf: &Leaf) {
        // Always a swap, never a load first: the thread that clears the mark must see the entry
        // that was stored before it, or the mark must be set again.
        let looks = mutated("log.map.looks-before-it-marks", false, true);
        if looks && leaf.changed.load(Ordering::Acquire) {
            return;
        }
        if !leaf.changed.swap(true, Ordering::AcqRel) {
            self.changed_count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the map entry of a block.
    pub fn get(&self, lba: u64) -> MapEntry {
        let Some(leaf) = self.leaf(lba / LEAF_BLOCKS) else {
            return MapEntry::UNMAPPED;
        };
        MapEntry::from_bits(leaf.entries[(lba % LEAF_BLOCKS) as usize].load(Ordering::Acquire))
    }

    /// Maps a block and returns its previous entry. One writer at a time.
    pub fn replace(&self, lba: u64, entry: MapEntry) -> MapEntry {
        let leaf = self.leaf_or_new(lba / LEAF_BLOCKS);
        let old = set(leaf, lba, entry);
        if !old.is_mapped() {
            // The counts never decrease here: `entry` is mapped; `unmap` decreases them.
            leaf.mapped.store(leaf.mapped.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            self.mapped.store(self.mapped() + 1, Ordering::Relaxed);
        }
        self.mark_changed(leaf);
        old
    }

    /// Maps a block if its entry is still `expected`. One writer at a time.
    pub fn replace_if(&self, lba: u64, expected: MapEntry, entry: MapEntry) -> bool {
        if !expected.is_mapped() || self.get(lba) != expected {
            return false;
        }
        self.replace(lba, entry);
        true
    }

    /// Unmaps every block of the range and calls `gone` with their former entries. One writer at a
    /// time.
    pub fn unmap(&self, range: Range<u64>, mut gone: impl FnMut(MapEntry)) {
        let mut at = range.start;
        while let Some(lba) = self.next_mapped(at..range.end) {
            let Some(leaf) = self.leaf(lba / LEAF_BLOCKS) else { return };
            gone(set(leaf, lba, MapEntry::UNMAPPED));
            leaf.mapped.store(leaf.mapped.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
            self.mapped.store(self.mapped() - 1, Ordering::Relaxed);
            self.mark_changed(leaf);
            at = lba + 1;
        }
    }

    /// Returns the first mapped block of the range. Leaves that map nothing are skipped at once.
    pub fn next_mapped(&self, range: Range<u64>) -> Option<u64> {
        self.find(range, true)
    }

    /// Iterates over the mapped blocks of a disk of `blocks` blocks.
    pub fn all_mapped(&self, blocks: u64) -> impl Iterator<Item = (u64, MapEntry)> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let lba = self.next_mapped(next..blocks)?;
            next = lba + 1;
            Some((lba, self.get(lba)))
        })
    }

    /// Returns the first block of the range that is not mapped.
    pub fn next_unmapped(&self, range: Range<u64>) -> Option<u64> {
        self.find(range, false)
    }

    fn find(&self, range: Range<u64>, mapped: bool) -> Option<u64> {
        let mut lba = range.start;
        while lba < range.end {
            let leaf_end = (lba / LEAF_BLOCKS + 1) * LEAF_BLOCKS;
            let stop = leaf_end.min(range.end);
            let leaf = self.leaf(lba / LEAF_BLOCKS);
            match leaf.filter(|leaf| leaf.mapped.load(Ordering::Relaxed) > 0) {
                None if !mapped => return Some(lba),
                None => {}
                Some(leaf) => {
                    let entries =
                        &leaf.entries[(lba % LEAF_BLOCKS) as usize..][..(stop - lba) as usize];
                    let found = entries.iter().position(|entry| {
                        MapEntry::from_bits(entry.load(Ordering::Relaxed)).is_mapped() == mapped
                    });
                    if let Some(index) = found {
                        return Some(lba + index as u64);
                    }
                }
            }
            lba = stop;
        }
        None
    }

    /// Returns the number of mapped blocks.
    pub fn mapped(&self) -> u64 {
        self.mapped.load(Ordering::Relaxed)
    }

    /// Returns the number of leaves in memory.
    pub fn leaf_count(&self) -> u32 {
        self.leaf_count.load(Ordering::Relaxed)
    }

    /// Returns the number of leaves that the next checkpoint must write.
    pub fn changed_count(&self) -> u32 {
        self.changed_count.load(Ordering::Relaxed)
    }

    /// Returns the bytes of memory that the map of a disk of `blocks` blocks takes now.
    pub fn memory_bytes(&self, blocks: u64) -> u64 {
        u64::from(self.leaf_count()) * size_of::<Leaf>() as u64
            + blocks.div_ceil(LEAF_BLOCKS) * size_of::<AtomicPtr<Leaf>>() as u64
    }

    /// Clears the mark of every changed leaf of the disk and returns their numbers, lowest first.
    /// Later changes mark a leaf again.
    pub fn take_changed(&self, blocks: u64) -> Vec<u32> {
        let leaves = 0..blocks.div_ceil(LEAF_BLOCKS) as u32;
        let is_changed = |index: &u32| {
            self.leaf(u64::from(*index))
                .is_some_and(|leaf| leaf.changed.swap(false, Ordering::AcqRel))
        };
        let changed: Vec<u32> = leaves.filter(is_changed).collect();
        self.changed_count.fetch_sub(changed.len() as u32, Ordering::Relaxed);
        changed
    }

    /// Marks a leaf as changed, so that the next checkpoint writes it to a new address.
    pub fn touch(&self, index: u32) {
        if let Some(leaf) = self.leaf(u64::from(index)) {
            self.mark_changed(leaf);
        }
    }

    /// Copies a leaf in its on-disk form, and returns the number of its mapped blocks. Each entry
    /// that changes meanwhile is copied either old or new.
    pub fn copy_leaf(&self, index: u32, target: &mut [u8]) -> u32 {
        let Some(leaf) = self.leaf(u64::from(index)) else {
            target.fill(0);
            return 0;
        };
        let mut mapped = 0;
        for (bytes, entry) in target.chunks_exact_mut(8).zip(&leaf.entries) {
            let entry = MapEntry::from_bits(entry.load(Ordering::Relaxed));
            mapped += u32::from(entry.is_mapped());
            bytes.copy_from_slice(&entry.bits().to_le_bytes());
        }
        mapped
    }

    /// Loads a leaf from its on-disk form; it does not count as changed.
    pub fn load_leaf(&self, index: u32, source: &[u8]) {
        let leaf = self.leaf_or_new(u64::from(index));
        let mut mapped = 0;
        for (bytes, entry) in source.chunks_exact(8).zip(&leaf.entries) {
            let bits = u64::from_le_bytes(bytes.try_into().expect("chunks of 8 bytes"));
            mapped += u32::from(MapEntry::from_bits(bits).is_mapped());
            entry.store(bits, Ordering::Relaxed);
        }
        let before = leaf.mapped.swap(mapped, Ordering::Relaxed);
        self.mapped.store(self.mapped() + u64::from(mapped) - u64::from(before), Ordering::Relaxed);
    }
}

#[cfg(not(feature = "model"))]
fn empty_leaves() -> Box<[AtomicPtr<Leaf>]> {
    // SAFETY: a null AtomicPtr is all zero bits.
    unsafe { Box::new_zeroed_slice(LEAVES_MAX).assume_init() }
}

/// A leaf whose entries are unmapped, and that is not changed.
#[cfg(not(feature = "model"))]
fn empty_leaf() -> Box<Leaf> {
    // SAFETY: all-zero bits are such a leaf.
    unsafe { Box::new_zeroed().assume_init() }
}

/// Loom's atomics are no plain bits, so they are constructed one by one.
#[cfg(feature = "model")]
fn empty_leaves() -> Box<[AtomicPtr<Leaf>]> {
    (0..LEAVES_MAX).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect()
}

#[cfg(feature = "model")]
fn empty_leaf() -> Box<Leaf> {
    let entries = std::array::from_fn(|_| AtomicU64::new(MapEntry::UNMAPPED.bits()));
    Box::new(Leaf { entries, mapped: AtomicU32::new(0), changed: AtomicBool::new(false) })
}

fn set(leaf: &Leaf, lba: u64, entry: MapEntry) -> MapEntry {
    let slot = &leaf.entries[(lba % LEAF_BLOCKS) as usize];
    let old = slot.load(Ordering::Relaxed);
    // Release: a thread that sees the entry also sees that its block has been written.
    slot.store(entry.bits(), Ordering::Release);
    MapEntry::from_bits(old)
}

#[cfg(feature = "model")]
#[cfg(test)]
mod models;
#[cfg(test)]
mod tests {
    use super::*;
    use flowstone_log_format::Address;

    fn entry(address: u32) -> MapEntry {
        MapEntry::new(Address::new(address), !address)
    }

    #[test]
    fn an_empty_map_of_a_tebibyte_takes_a_mebibyte_at_most() {
        let map = BlockMap::default();
        assert!(map.memory_bytes((1 << 40) / 4096) <= 1 << 20);
    }

    #[test]
    fn counts_follow_every_change() {
        let map = BlockMap::default();
        assert_eq!(map.replace(5000, entry(1)), MapEntry::UNMAPPED);
        assert_eq!(map.replace(5000, entry(2)), entry(1));
        assert!(!map.replace_if(5000, entry(1), entry(3)));
        assert!(map.replace_if(5000, entry(2), entry(3)));
        assert!(!map.replace_if(9, MapEntry::UNMAPPED, entry(4)), "a trimmed block is not moved");
        map.replace(1, entry(7));
        assert_eq!((map.mapped(), map.leaf_count(), map.changed_count()), (2, 2, 2));
        let mut gone = Vec::new();
        map.unmap(0..1 << 32, |entry| gone.push(entry));
        assert_eq!(gone, [entry(7), entry(3)]);
        assert_eq!((map.mapped(), map.next_mapped(0..1 << 32)), (0, None));
    }

    #[test]
    fn runs_are_found_across_leaves() {
        let map = BlockMap::default();
        for lba in 2040..2060 {
            map.replace(lba, entry(lba as u32));
        }
        assert_eq!(map.next_mapped(0..9000), Some(2040));
        assert_eq!(map.next_unmapped(2040..9000), Some(2060));
        assert_eq!(map.next_mapped(2060..9000), None);
        assert_eq!(map.next_unmapped(2041..2050), None);
    }

    #[test]
    fn leaves_go_to_disk_and_come_back() {
        let map = BlockMap::default();
        map.replace(4096, entry(1));
        map.replace(4100, entry(2));
        assert_eq!(map.take_changed(1 << 20), [2]);
        assert_eq!(map.take_changed(1 << 20), [0u32; 0]);
        let mut bytes = vec![0; 16384];
        assert_eq!(map.copy_leaf(2, &mut bytes), 2);
        let other = BlockMap::default();
        other.load_leaf(2, &bytes);
        assert_eq!((other.get(4096), other.get(4100)), (entry(1), entry(2)));
        assert_eq!((other.mapped(), other.changed_count()), (2, 0));
    }
}
