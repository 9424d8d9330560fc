//! The miss-ratio curve: the hit ratio of LRU caches of each size.
//!
//! It is estimated from a sample of the blocks, chosen by a hash of their number (Waldspurger et
//! al., "Efficient MRC construction with SHARDS", FAST 2015): the number of distinct sampled blocks
//! used between two uses of a block, times the inverse of the sampling rate, is the size of cache
//! that would have had a hit (its reuse distance). Older uses count less. Since a few hot blocks
//! may be in the sample or not, the difference between the sample's accesses and its expected part
//! of all is counted as hits of the smallest size (SHARDS-adj).

use std::collections::HashMap;

use crate::names::{BlockId, spread};

/// Blocks of the sample that are remembered: those that a cache of the largest size would hold.
const SAMPLE_MAX: usize = 1024;
/// Resolution of the curve, in sizes.
const STEPS: usize = 64;
/// Sampled accesses after which all counts are halved.
const SAMPLED_MAX: f64 = 8192.0;
/// Sampled accesses below which the curve is unknown.
const ACCESSES_MIN: f64 = 100.0;

/// Hits by size of the cache.
#[derive(Debug)]
pub struct Curve {
    blocks_max: usize,
    /// Key of the hash that selects the sample.
    key: u64,
    /// Inverse of the sampling rate: a power of two.
    sampled_of: u64,
    /// Index in `uses` of the last use of each block.
    last_use: HashMap<BlockId, usize>,
    /// Whether a use is the last one of its block, as a Fenwick tree, for prefix sums in few steps.
    uses: Vec<u32>,
    next: usize,
    /// Hits by reuse distance, in steps of the largest size.
    hits: [f64; STEPS],
    /// Accesses of the sample, and of all blocks.
    sampled: f64,
    accesses: f64,
}

impl Curve {
    /// Makes the curve of caches of up to `blocks_max` blocks.
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

    /// Counts an access to a block.
    pub fn access(&mut self, block: BlockId) {
        self.accesses += 1.0;
        // Not remainder 0, which the first block has without a key.
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
            // Its position in LRU order, counted from 1.
            let place = (since as u64 + 1) * self.sampled_of;
            let step = (place - 1) as usize * STEPS / self.blocks_max;
            if let Some(hits) = self.hits.get_mut(step) {
                *hits += 1.0;
            }
        }
        self.mark(self.next, true);
        self.next += 1;
    }

    /// Returns how many blocks were last used at or before that use.
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

    /// Renumbers uses, dropping blocks that even the largest cache would not hold.
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

    /// Multiplies all counts by `factor`.
    pub fn fade(&mut self, factor: f64) {
        self.accesses *= factor;
        self.sampled *= factor;
        self.hits.iter_mut().for_each(|hits| *hits *= factor);
    }

    /// Returns the inverse of the sampling rate.
    pub fn sampled_of(&self) -> usize {
        self.sampled_of as usize
    }

    /// Returns whether there are enough samples for an estimate.
    pub fn is_known(&self) -> bool {
        self.sampled >= ACCESSES_MIN
    }

    /// Returns the estimated hit ratio of an LRU cache of this many blocks.
    pub fn hit_ratio(&self, blocks: usize) -> f64 {
        let steps = (blocks.min(self.blocks_max) * STEPS).div_ceil(self.blocks_max);
        if steps == 0 {
            return 0.0;
        }
        let hits = self.hits[..steps].iter().sum::<f64>() + self.expected() - self.sampled;
        hits.max(0.0) / self.expected().max(1.0)
    }

    /// Returns the accesses that the sample would have if it were representative.
    fn expected(&self) -> f64 {
        self.accesses / self.sampled_of as f64
    }

    /// Returns the size of the smallest cache with at least `part` of the hits of one of `blocks`
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
    /// Returns its memory use, without the hash table's own overhead.
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

    /// Compared with real caches of these sizes.
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

    /// Each VM has a curve: docs/cache.md states its memory use.
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

    /// Regression: it decayed as fast as it was learnt, so a cache that had been shrunk did not
    /// grow again.
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
