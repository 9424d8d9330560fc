//! Least recently used: the reference for comparisons, and the order of eviction of MultiCache.

use super::{EVICTIONS_MAX, Kept, Outcome, Policy};
use crate::entries::Entries;
use crate::names::{BlockId, Place};

/// Keeps the most recently used blocks.
#[derive(Debug)]
pub struct Lru {
    capacity: usize,
    places: usize,
    entries: Entries,
}

impl Lru {
    /// Makes a policy that keeps up to `capacity` blocks, at least one.
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        Self { capacity, places: capacity, entries: Entries::with_capacity(capacity, 1) }
    }

    /// Returns the place of a block that is kept, and counts a use of it.
    pub fn touch(&mut self, block: BlockId) -> Option<Place> {
        let (place, _) = self.entries.find(block)?;
        self.entries.move_to_front(place, 0);
        Some(place)
    }

    /// Takes in a block that is not kept.
    pub fn take_in(&mut self, block: BlockId, evicted: &mut Vec<Kept>) -> Place {
        for _ in 0..EVICTIONS_MAX {
            if self.len() >= self.capacity {
                self.evict(evicted);
            }
        }
        self.entries.insert(block, 0)
    }

    fn evict(&mut self, evicted: &mut Vec<Kept>) {
        if let Some(place) = self.entries.back(0) {
            evicted.push(Kept { block: self.entries.block(place), place });
            self.entries.remove(place);
        }
    }
}

impl Policy for Lru {
    fn access(&mut self, block: BlockId, evicted: &mut Vec<Kept>) -> Outcome {
        match self.touch(block) {
            Some(place) => Outcome::Hit(place),
            None => Outcome::Inserted(self.take_in(block, evicted)),
        }
    }

    fn find(&self, block: BlockId) -> Option<Place> {
        self.entries.find(block).map(|(place, _)| place)
    }

    fn prefetch(&self, block: BlockId) {
        self.entries.prefetch(block);
    }

    fn guess(&self, block: BlockId) -> Option<Place> {
        self.entries.guess(block)
    }

    fn forget(&mut self, block: BlockId) -> Option<Place> {
        let (place, _) = self.entries.find(block)?;
        self.entries.remove(place);
        Some(place)
    }

    fn resize(&mut self, capacity: usize, evictions_max: usize, evicted: &mut Vec<Kept>) {
        self.capacity = capacity.clamp(1, self.places);
        let over = self.len().saturating_sub(self.capacity);
        (0..over.min(evictions_max)).for_each(|_| self.evict(evicted));
    }

    fn len(&self) -> usize {
        self.entries.len(0)
    }

    fn places(&self) -> usize {
        self.places
    }
}
