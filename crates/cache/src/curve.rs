//! The miss-ratio curve: how many hits a cache of each size would have.
//!
//! The curve is LRU's, found from a sample of the blocks, chosen by a hash of their number
//! (Waldspurger et al., "Efficient MRC construction with SHARDS", FAST 2015): between two uses of a
//! block, so many others of the sample were used; that many, times the factor by which the sample
//! is smaller, is the size of cache that would have had a hit. Older uses count less. A few blocks
//! that are used all the time may be in the sample or not: what it has more or less of accesses
//! than its part of all is taken for hits of the smallest size (SHARDS-adj).

use std::collections::HashMap;

use crate::names::{BlockId, spread};

/// Blocks of the sample that are remembered: those that a cache of the largest size would hold.
const SAMPLE_MAX: usize = 1024;
/// Sizes that are told apart.
const STEPS: usize = 64;
/// After so many accesses of the sample, they count half.
const SAMPLED_MAX: f64 = 8192.0;
/// Fewer accesses of the sample say nothing.
const ACCESSES_MIN: f64 = 100.0;

/// Hits by size of the cache.
#[derive(Debug)]
pub struct Curve {
    blocks_max: usize,
    /// Decides which blocks are looked at.
    key: u64,
    /// One block of so many is looked at: a power of two.
    sampled_of: u64,
    /// Where in `uses` each block was used last.
    last_use: HashMap<BlockId, usize>,
    /// Whether a use is the last one of its block, as a Fenwick tree: sums of any prefix in few
    /// steps.
    uses: Vec<u32>,
    next: usize,
    /// By what part of the largest size would have had them.
    hits: [f64; STEPS],
    /// Of the sample, and of all.
    sampled: f64,
    accesses: f64,
}

impl Curve {
    /// For caches of up to so many blocks.
    pub fn new(blocks_max: usize, key: u64) -> Self {
        let blocks_max = blocks_max.max(1);
        let sampled_of = blocks_max.div_ceil(SAMPLE_MAX).next_power_of_two() as u64;
        Self {
            blocks_max,
            key,
            sampled_of,
            last_use: HashMap::new(),
            uses: vec![0; 2 * SAMPLE_MAX + 1],
            next: 1,
            hits: [0.0; STEPS],
            sampled: 0.0,
            accesses: 0.0,
        }
    }

    /// A block is read or written.
    pub fn access(&mut self, block: BlockId) {
        self.accesses += 1.0;
        // Another remainder than 0, which the first block has without a key.
        if spread(block, self.key) & (self.sampled_of - 1) != self.sampled_of / 2 {
            return;
        }
        self.sampled += 1.0;
        if self.sampled > SAMPLED_MAX {
            self.fade(0.5);
        }
        if self.next == self.uses.len() {
            self.forget_oldest();
        }
        if let Some(before) = self.last_use.insert(block, self.next) {
            let since = self.last_use.len() - self.used_until(before);
            self.mark(before, false);
            // It would be at this place, counted from 1, of all that were used last.
            let place = (since as u64 + 1) * self.sampled_of;
            let step = (place - 1) as usize * STEPS / self.blocks_max;
            if let Some(hits) = self.hits.get_mut(step) {
                *hits += 1.0;
            }
        }
        self.mark(self.next, true);
        self.next += 1;
    }

    /// How many blocks were used last up to that use.
    fn used_until(&self, use_: usize) -> usize {
        let mut at = use_;
        let mut sum = 0;
        while at > 0 {
            sum += self.uses[at];
            at &= at - 1;
        }
        sum as usize
    }

    fn mark(&mut self, use_: usize, is_last: bool) {
        let mut at = use_;
        while at < self.uses.len() {
            let sum = &mut self.uses[at];
            *sum = if is_last { *sum + 1 } else { *sum - 1 };
            at += at & at.wrapping_neg();
        }
    }

    /// Numbers uses anew, without those of blocks that no cache would hold any more.
    fn forget_oldest(&mut self) {
        let mut order: Vec<_> = self.last_use.drain().map(|(block, at)| (at, block)).collect();
        order.sort_unstable();
        let forgotten = order.len().saturating_sub(SAMPLE_MAX);
        self.uses.fill(0);
        self.next = 1;
        for (_, block) in &order[forgotten..] {
            self.last_use.insert(*block, self.next);
            self.mark(self.next, true);
            self.next += 1;
        }
    }

    /// What has been counted weighs this much less from now on.
    pub fn fade(&mut self, factor: f64) {
        self.accesses *= factor;
        self.sampled *= factor;
        self.hits.iter_mut().for_each(|hits| *hits *= factor);
    }

    /// One access of so many is of its sample, or nearly.
    pub fn sampled_of(&self) -> usize {
        self.sampled_of as usize
    }

    /// Whether it rests on enough to say something.
    pub fn is_known(&self) -> bool {
        self.sampled >= ACCESSES_MIN
    }

    /// The part of the accesses that a cache of so many blocks would have answered.
    pub fn hit_ratio(&self, blocks: usize) -> f64 {
        let steps = (blocks.min(self.blocks_max) * STEPS).div_ceil(self.blocks_max);
        if steps == 0 {
            return 0.0;
        }
        let hits = self.hits[..steps].iter().sum::<f64>() + self.expected() - self.sampled;
        hits.max(0.0) / self.expected().max(1.0)
    }

    /// How many accesses the sample would have if it were like all blocks.
    fn expected(&self) -> f64 {
        self.accesses / self.sampled_of as f64
    }

    /// The smallest cache that would have had at least this part of the hits of one of so many
    /// blocks.
    pub fn enough(&self, part: f64, blocks: usize) -> usize {
        let wanted = self.hit_ratio(blocks) * part * self.expected();
        let mut hits = self.expected() - self.sampled;
        let enough = self.hits.iter().take_while(|of_step| {
            let before = hits.max(0.0);
            hits += **of_step;
            before < wanted
        });
        let steps = if wanted > 0.0 { enough.count() } else { 0 };
        (steps * self.blocks_max / STEPS).min(blocks)
    }
}

#[cfg(test)]
impl Curve {
    /// What it takes, the table's own bookkeeping not counted.
    pub fn memory_bytes(&self) -> usize {
        self.last_use.capacity() * size_of::<(BlockId, usize)>()
            + self.uses.len() * 4
            + size_of::<Self>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Outcome, Policy as _, lru::Lru};

    /// Against caches of these sizes.
    #[test]
    fn the_curve_is_that_of_lru() {
        for blocks_max in [640, 64_000] {
            let mut curve = Curve::new(blocks_max, 3);
            let sizes = [1, 2, 4, 8].map(|eighths| blocks_max * eighths / 8);
            let mut caches = sizes.map(Lru::new);
            let mut hits = [0; 4];
            let mut random = fastrand::Rng::with_seed(7);
            let accesses = 20 * blocks_max;
            for _ in 0..accesses {
                // Small numbers are more frequent, up to one and a half times the largest cache.
                let block = (1.5 * blocks_max as f64 * random.f64().powi(3)) as u64;
                curve.access(BlockId(block));
                for (cache, hits) in caches.iter_mut().zip(&mut hits) {
                    let outcome = cache.access(BlockId(block), &mut Vec::new());
                    *hits += usize::from(matches!(outcome, Outcome::Hit(_)));
                }
            }
            for (size, hits) in sizes.into_iter().zip(hits) {
                let (real, ours) = (hits as f64 / accesses as f64, curve.hit_ratio(size));
                assert!(
                    (real - ours).abs() < 0.03,
                    "{size} of {blocks_max}: {ours:.3} for {real:.3}"
                );
            }
            assert!(
                curve.is_known() && curve.hit_ratio(blocks_max * 2) == curve.hit_ratio(blocks_max)
            );
            assert!(curve.last_use.len() <= 2 * SAMPLE_MAX);
        }
    }

    #[test]
    fn enough_is_where_the_curve_becomes_flat() {
        let mut curve = Curve::new(1000, 0);
        assert_eq!(
            (curve.is_known(), curve.hit_ratio(1000), curve.enough(0.9, 500)),
            (false, 0.0, 0)
        );
        for _ in 0..10 {
            (0..300).for_each(|block| curve.access(BlockId(block)));
        }
        let enough = curve.enough(0.95, 1000);
        assert!((290..=330).contains(&enough), "{enough}");
        assert_eq!(curve.enough(0.95, 100), 0, "no hits are had with none");
        let before = curve.hit_ratio(1000);
        (0..100).for_each(|_| curve.fade(0.9));
        assert!(curve.hit_ratio(1000) <= before && !curve.is_known());
    }

    /// Each VM has one: docs/cache.md says how much it takes.
    #[test]
    fn a_curve_takes_40_kb_at_most() {
        let mut curve = Curve::new(1 << 18, 1);
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..4_000_000u64 {
            curve.access(BlockId(random.u64(0..1 << 20)));
        }
        let bytes = curve.memory_bytes();
        println!("{bytes} bytes");
        assert!(bytes < 40_000, "{bytes} bytes each");
    }

    /// It was forgotten as fast as it was learnt, so a cache that had become smaller did not grow
    /// again.
    #[test]
    fn the_curve_of_a_cache_of_4_gib_is_known_at_2000_accesses_a_second() {
        let mut curve = Curve::new(2 << 20, 1);
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..2 * 600 {
            for _ in 0..1000 {
                curve.access(BlockId(random.u64(0..500_000)));
            }
        }
        assert!(curve.is_known(), "in ten minutes");
    }
}
