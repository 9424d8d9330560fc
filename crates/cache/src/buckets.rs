//! A hash table of numbers, in buckets of one cache line: a lookup waits for memory once.
//!
//! A bucket has twelve slots, each with a number and eight bits of its block's hash. If the home
//! bucket of a block is full, its number goes to the next one, and each bucket passed over counts
//! it; a lookup ends at a bucket that none has passed. Buckets are filled to two thirds at most, so
//! few are passed.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;

use crate::names::BlockId;
use crate::prefetch::prefetch;

/// Three words of tags, one byte per slot, 0 if it is empty; the count of numbers that passed; the
/// numbers.
type Bucket = [u32; WORDS];

const WORDS: usize = 16;
const PASSED: usize = 3;
const NUMBERS: usize = 4;
const SLOTS: usize = WORDS - NUMBERS;
/// Average number of used slots per bucket at which the table grows.
const FILLED: usize = 8;

/// Of each tag of a bucket: the lowest bit, the highest one, and all but the highest.
const LOWEST: u128 = 0x0101_0101_0101_0101_0101_0101;
const HIGHEST: u128 = LOWEST << 7;
const OTHERS: u128 = HIGHEST - LOWEST;

/// A hash table of numbers, by block.
#[derive(Debug)]
pub struct Buckets {
    words: Vec<u32>,
    /// Offset of the first cache line.
    start: usize,
    count: usize,
    len: usize,
    /// Keyed at random: a guest that chose its block numbers could otherwise fill many buckets in a
    /// row.
    hasher: RandomState,
}

impl Buckets {
    /// Makes a table with room for `numbers`: moving a large table later would take milliseconds.
    pub fn with_capacity(numbers: usize) -> Self {
        let count = numbers.div_ceil(FILLED).max(1);
        // Zeroed pages, which the host allocates on first touch.
        let words = vec![0; (count + 1) * WORDS];
        let start = words.as_ptr().align_offset(size_of::<Bucket>());
        Self { words, start, count, len: 0, hasher: RandomState::default() }
    }

    /// Returns the home bucket of a block, and its tag: the low bits of its hash, of which the
    /// home, derived from the high bits, is nearly independent.
    fn home(&self, block: BlockId) -> (usize, u8) {
        let hash = self.hasher.hash_one(block.0);
        let at = (u128::from(hash) * self.count as u128) >> u64::BITS;
        (at as usize, (hash as u8).max(1))
    }

    fn after(&self, at: usize) -> usize {
        if at + 1 == self.count { 0 } else { at + 1 }
    }

    fn bucket(&self, at: usize) -> &Bucket {
        &self.words[self.start..].as_chunks().0[at]
    }

    fn bucket_mut(&mut self, at: usize) -> &mut Bucket {
        &mut self.words[self.start..].as_chunks_mut().0[at]
    }

    /// Prefetches the home bucket of a block.
    pub fn prefetch(&self, block: BlockId) {
        prefetch(self.bucket(self.home(block).0));
    }

    /// Returns the number of a block; `is_it` tells whether a number is that of the block.
    pub fn find(&self, block: BlockId, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let (mut at, tag) = self.home(block);
        for _ in 0..self.count {
            let bucket = self.bucket(at);
            let numbers = Slots::of(bucket, tag).map(|slot| bucket[NUMBERS + slot]);
            let found = numbers.into_iter().find(|number| is_it(*number));
            if found.is_some() || bucket[PASSED] == 0 {
                return found;
            }
            at = self.after(at);
        }
        None
    }

    /// Returns the number that a block most probably has, by its tag alone.
    pub fn guess(&self, block: BlockId) -> Option<u32> {
        let (at, tag) = self.home(block);
        let bucket = self.bucket(at);
        Some(bucket[NUMBERS + Slots::of(bucket, tag).next()?])
    }

    /// Adds the number of a block. `block_of` returns the blocks of the others, should the table
    /// grow.
    pub fn insert(&mut self, block: BlockId, number: u32, block_of: impl Fn(u32) -> BlockId) {
        if self.len == self.count * FILLED {
            self.grow(block_of);
        }
        self.len += 1;
        self.place(block, number);
    }

    fn place(&mut self, block: BlockId, number: u32) {
        let (mut at, tag) = self.home(block);
        loop {
            let bucket = self.bucket_mut(at);
            if let Some(slot) = Slots::of(bucket, 0).next() {
                set_tag(bucket, slot, tag);
                bucket[NUMBERS + slot] = number;
                return;
            }
            bucket[PASSED] += 1;
            at = self.after(at);
        }
    }

    /// Removes the number of a block, which must be present.
    pub fn remove(&mut self, block: BlockId, number: u32) {
        self.len -= 1;
        let (mut at, tag) = self.home(block);
        loop {
            let bucket = self.bucket_mut(at);
            let is_it = |slot: &usize| bucket[NUMBERS + slot] == number;
            if let Some(slot) = Slots::of(bucket, tag).find(is_it) {
                return set_tag(bucket, slot, 0);
            }
            bucket[PASSED] -= 1;
            at = self.after(at);
        }
    }

    fn grow(&mut self, block_of: impl Fn(u32) -> BlockId) {
        let larger = Self::with_capacity(2 * self.count * FILLED);
        let smaller = std::mem::replace(self, larger);
        self.len = smaller.len;
        for at in 0..smaller.count {
            let bucket = smaller.bucket(at);
            for slot in (0..SLOTS).filter(|slot| tags(bucket).to_le_bytes()[*slot] != 0) {
                let number = bucket[NUMBERS + slot];
                self.place(block_of(number), number);
            }
        }
    }
}

fn tags(bucket: &Bucket) -> u128 {
    u128::from(bucket[0]) | u128::from(bucket[1]) << 32 | u128::from(bucket[2]) << 64
}

fn set_tag(bucket: &mut Bucket, slot: usize, tag: u8) {
    let shift = slot % 4 * 8;
    let word = &mut bucket[slot / 4];
    *word = *word & !(0xff << shift) | u32::from(tag) << shift;
}

/// Iterates over the slots with a tag, by the highest bit of their byte.
struct Slots(u128);

impl Slots {
    fn of(bucket: &Bucket, tag: u8) -> Self {
        let differing = tags(bucket) ^ (LOWEST * u128::from(tag));
        // The sum carries into the highest bit of every byte that is not 0, and never out of it.
        let is_other = ((differing & OTHERS) + OTHERS) | differing;
        Self(!is_other & HIGHEST)
    }
}

impl Iterator for Slots {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let slot = self.0.trailing_zeros() as usize / 8;
        self.0 &= self.0 - 1;
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Filled until many numbers are outside their home buckets, and emptied again.
    #[test]
    fn numbers_are_found_as_in_a_map() {
        const ROOM: usize = 10 * SLOTS;
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let mut buckets = Buckets::with_capacity(10 * FILLED);
        let mut model: HashMap<u64, u32> = HashMap::new();
        let mut passed = 0;
        for step in 0..100_000 {
            let block = random.u64(0..1000);
            let known = model.get(&block).copied();
            let is_it = |number: u32| model.get(&block) == Some(&number);
            assert_eq!(buckets.find(BlockId(block), is_it), known);
            assert!(known.is_none() || buckets.guess(BlockId(block)).is_some() || passed > 0);
            if let Some(number) = known {
                buckets.remove(BlockId(block), number);
                model.remove(&block);
            } else if model.len() < ROOM {
                // Beyond the capacity, but not beyond the slots.
                buckets.place(BlockId(block), step);
                buckets.len += 1;
                model.insert(block, step);
            }
            passed = passed.max((0..10).map(|at| buckets.bucket(at)[PASSED]).max().unwrap());
        }
        assert!(passed > 10, "{passed}");
        for (block, number) in model {
            buckets.remove(BlockId(block), number);
        }
        assert!((0..10).all(|at| buckets.bucket(at)[..NUMBERS] == [0; NUMBERS]));
    }

    #[test]
    fn more_than_there_is_room_for_makes_room() {
        let mut buckets = Buckets::with_capacity(0);
        let block_of = |number| BlockId(u64::from(number) * 7);
        for number in 0..1000 {
            buckets.insert(block_of(number), number, block_of);
        }
        for number in 0..1000 {
            let found = buckets.find(block_of(number), |it| it == number);
            assert_eq!(found, Some(number));
        }
        assert_eq!(buckets.find(BlockId(1), |number| block_of(number) == BlockId(1)), None);
    }
}
