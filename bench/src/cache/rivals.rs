//! Replacement policies of the literature, to compare ours with: LIRS (Jiang and Zhang, SIGMETRICS
//! 2002) and SIEVE (Zhang et al., NSDI 2024). Simulated: a map keeps their order.

use std::collections::{BTreeMap, HashMap, HashSet};

use flowstone_cache::BlockId;

/// Part of the cache for blocks that LIRS has seen once or seldom, as its authors have it.
const RESIDENT_HIR: f64 = 0.01;
/// Most blocks that LIRS remembers without keeping them, per block of the cache.
const GHOSTS: usize = 2;

/// Blocks, the latest in front.
#[derive(Debug, Default)]
struct Order {
    stamps: HashMap<BlockId, u64>,
    blocks: BTreeMap<u64, BlockId>,
    clock: u64,
}

impl Order {
    fn has(&self, block: BlockId) -> bool {
        self.stamps.contains_key(&block)
    }

    fn len(&self) -> usize {
        self.blocks.len()
    }

    fn put_in_front(&mut self, block: BlockId) {
        self.remove(block);
        self.clock += 1;
        self.stamps.insert(block, self.clock);
        self.blocks.insert(self.clock, block);
    }

    fn remove(&mut self, block: BlockId) {
        if let Some(stamp) = self.stamps.remove(&block) {
            self.blocks.remove(&stamp);
        }
    }

    fn back(&self) -> Option<BlockId> {
        self.blocks.first_key_value().map(|(_, block)| *block)
    }

    fn take_back(&mut self) -> Option<BlockId> {
        let (_, block) = self.blocks.pop_first()?;
        self.stamps.remove(&block);
        Some(block)
    }
}

/// A simulated cache.
pub trait Rival {
    /// Accesses a block. Returns whether it was kept.
    fn hits(&mut self, block: BlockId) -> bool;
}

/// SIEVE: a queue, and a hand that evicts the first block that was not used since it passed.
#[derive(Debug)]
pub struct Sieve {
    capacity: usize,
    queue: Order,
    used: HashSet<BlockId>,
    hand: u64,
}

impl Sieve {
    pub fn new(capacity: usize) -> Self {
        Self { capacity, queue: Order::default(), used: HashSet::new(), hand: 0 }
    }

    fn evict(&mut self) {
        loop {
            let next = self.queue.blocks.range(self.hand..).next();
            let Some((stamp, block)) = next.or_else(|| self.queue.blocks.first_key_value()) else {
                return;
            };
            let (stamp, block) = (*stamp, *block);
            self.hand = stamp + 1;
            if !self.used.remove(&block) {
                self.queue.remove(block);
                // Behind the front it begins at the back again, not at what comes next.
                if self.queue.blocks.range(self.hand..).next().is_none() {
                    self.hand = 0;
                }
                return;
            }
        }
    }
}

impl Rival for Sieve {
    fn hits(&mut self, block: BlockId) -> bool {
        if self.queue.has(block) {
            self.used.insert(block);
            return true;
        }
        if self.queue.len() >= self.capacity {
            self.evict();
        }
        self.queue.put_in_front(block);
        false
    }
}

/// LIRS: keeps the blocks whose last two uses are closest to each other.
#[derive(Debug)]
pub struct Lirs {
    capacity: usize,
    lir_max: usize,
    /// All blocks used since the least recently used block of low inter-reference recency (LIR),
    /// which is its end.
    stack: Order,
    lir: HashSet<BlockId>,
    /// Kept blocks of high inter-reference recency (HIR): the next to be evicted.
    resident: Order,
    /// Blocks of the stack that are not kept.
    ghosts: Order,
}

impl Lirs {
    pub fn new(capacity: usize) -> Self {
        let resident = ((capacity as f64 * RESIDENT_HIR) as usize).max(1);
        Self {
            capacity,
            lir_max: capacity.saturating_sub(resident).max(1),
            stack: Order::default(),
            lir: HashSet::new(),
            resident: Order::default(),
            ghosts: Order::default(),
        }
    }

    /// Drops HIR blocks from the end of the stack.
    fn prune(&mut self) {
        while let Some(block) = self.stack.back().filter(|block| !self.lir.contains(block)) {
            self.stack.remove(block);
            self.ghosts.remove(block);
        }
    }

    fn promote(&mut self, block: BlockId) {
        self.resident.remove(block);
        self.stack.put_in_front(block);
        self.lir.insert(block);
        if self.lir.len() > self.lir_max
            && let Some(last) = self.stack.take_back()
        {
            self.lir.remove(&last);
            self.resident.put_in_front(last);
            self.prune();
        }
    }

    fn evict(&mut self) {
        let Some(gone) = self.resident.take_back() else { return };
        if self.stack.has(gone) {
            self.ghosts.put_in_front(gone);
        }
        if self.ghosts.len() > GHOSTS * self.capacity
            && let Some(oldest) = self.ghosts.take_back()
        {
            self.stack.remove(oldest);
        }
    }
}

impl Rival for Lirs {
    fn hits(&mut self, block: BlockId) -> bool {
        if self.lir.contains(&block) {
            self.stack.put_in_front(block);
            self.prune();
            return true;
        }
        let (is_hit, in_stack) = (self.resident.has(block), self.stack.has(block));
        self.ghosts.remove(block);
        if !is_hit && self.lir.len() + self.resident.len() >= self.capacity {
            self.evict();
        }
        if in_stack || (!is_hit && self.lir.len() < self.lir_max) {
            self.promote(block);
        } else {
            self.stack.put_in_front(block);
            self.resident.put_in_front(block);
        }
        is_hit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(rival: &mut dyn Rival, blocks: impl IntoIterator<Item = u64>) -> Vec<bool> {
        blocks.into_iter().map(|block| rival.hits(BlockId::of_disk(0, block))).collect()
    }

    #[test]
    fn sieve_evicts_the_first_that_was_not_used_since_the_hand_passed() {
        let mut sieve = Sieve::new(3);
        assert_eq!(hits(&mut sieve, [1, 2, 3, 1, 4]), [false, false, false, true, false]);
        // The hand has passed 1 and taken 2, and takes 3 now.
        assert_eq!(hits(&mut sieve, [1, 5, 4, 3]), [true, false, true, false]);
    }

    #[test]
    fn sieves_hand_begins_at_the_back_when_it_has_evicted_the_front() {
        let mut sieve = Sieve::new(3);
        let last = hits(&mut sieve, [1, 2, 3, 1, 2, 4, 5, 1, 4]).split_off(7);
        assert_eq!(last, [false, true]);
    }

    #[test]
    fn lirs_keeps_most_of_a_loop_that_is_longer_than_the_cache() {
        let mut lirs = Lirs::new(100);
        let second = hits(&mut lirs, (0..150).chain(0..150)).split_off(150);
        assert_eq!(second.iter().filter(|hit| **hit).count(), 99);
        assert!(second[..99].iter().all(|hit| *hit), "the first that filled it");
    }

    #[test]
    fn lirs_prefers_what_came_back_soon() {
        let mut lirs = Lirs::new(3);
        // 3 comes back after a shorter time than 1, the least recently used one.
        assert_eq!(hits(&mut lirs, [1, 2, 3, 3, 4, 3, 1]).last(), Some(&false));
        assert!(hits(&mut lirs, [3]).pop().unwrap());
    }
}
