//! The default policy: S3-FIFO with a shape that adapts to the load.
//!
//! No shape of S3-FIFO suits all loads: with a large small queue that promotes every block used
//! again it is nearly LRU, with a tiny one a filter against scans, and with LIRS's rule for ghosts
//! it keeps its part of a loop. So several shapes run in parallel, each on a miniature cache that
//! sees only a sample of the blocks, chosen by a hash of their number, and is smaller by the same
//! factor (miniature simulation: Waldspurger et al., "Cache modeling and optimization using
//! miniature simulations", ATC 2017). The cache itself takes a shape that has clearly more hits
//! lately. A change of shape evicts nothing: what is above the part of the small queue goes on to
//! the main queue as blocks come and go.

use std::sync::Arc;
use std::time::Duration;

use super::floors::Floors;
use super::s3fifo::{S3Fifo, Shape};
use super::{Kept, Outcome, Policy};
use crate::names::{BlockId, Place, spread};
use crate::vms::Vms;

/// The candidates: from nearly LIRS over filters against scans to nearly LRU.
const SHAPES: [Shape; 5] = [
    Shape { by_recency: true, ..shape(0.01, 1) },
    shape(0.01, 2),
    shape(0.1, 2),
    Shape { by_recency: true, ..shape(0.5, 1) },
    shape(0.9, 2),
];
/// Index of the initial shape: between LIRS and LRU, it loses least until there is evidence.
const FIRST: usize = 3;
/// Least size of a miniature cache, so that its hits are significant.
const SAMPLE_BLOCKS_MIN: usize = 2048;
/// Greatest inverse of the sampling rate.
const SAMPLED_OF_MAX: u64 = 256;
/// Choices of the shape per as many accesses as the capacity has blocks.
const CHOICES_PER_CAPACITY: usize = 8;
/// Greatest factor by which hits decay with each choice: half after as many accesses as 8
/// capacities.
const DECAY_MAX: f64 = 0.989;
/// Power with which the hits of a young cache decay: of its first n choices, those at the k-th
/// count (k / n)^3. The first hits tell little: they are those of a cache that was just filled.
const DECAY_POWER: f64 = 3.0;
/// Part by which a shape must have more hits than the chosen one, beside the standard deviation of
/// these. Each change costs hits: the cache lacks what the other shape would have kept.
const MARGIN: f64 = 0.01;

const fn shape(small: f64, promote: u32) -> Shape {
    Shape { small, promote, ghosts: 1.0, by_recency: false }
}

/// S3-FIFO with the shape chosen last.
#[derive(Debug)]
pub struct Adaptive {
    key: u64,
    cache: S3Fifo,
    trials: Vec<Trial>,
    chosen: usize,
    /// Inverse of the sampling rate: a power of two.
    sampled_of: u64,
    choose_every: usize,
    since_choice: usize,
    /// Choices at which the cache was full; before the first one, hits are discarded.
    choices: u32,
    /// Evictions of the miniature caches, which are ignored.
    lost: Vec<Kept>,
}

/// A candidate shape.
#[derive(Debug)]
struct Trial {
    cache: S3Fifo,
    hits: f64,
}

impl Adaptive {
    /// Makes a policy that keeps up to `capacity` blocks; `key` selects the sample.
    pub fn new(capacity: usize, key: u64) -> Self {
        let mut sampled_of = 1;
        while sampled_of < SAMPLED_OF_MAX
            && capacity / (2 * sampled_of as usize) >= SAMPLE_BLOCKS_MIN
        {
            sampled_of *= 2;
        }
        let sample = sample_of(capacity, sampled_of);
        let trial = |shape| Trial { cache: S3Fifo::new(sample, shape), hits: 0.0 };
        Self {
            key,
            cache: S3Fifo::new(capacity, SHAPES[FIRST]).with_floors(key),
            trials: SHAPES.into_iter().map(trial).collect(),
            chosen: FIRST,
            sampled_of,
            choose_every: choose_every(capacity),
            since_choice: 0,
            choices: 0,
            lost: Vec::new(),
        }
    }

    fn is_sampled(&self, block: BlockId) -> bool {
        spread(block, self.key) & (self.sampled_of - 1) == 0
    }

    fn try_shapes(&mut self, block: BlockId) {
        for trial in &mut self.trials {
            if let Outcome::Hit(_) = trial.cache.access(block, &mut self.lost) {
                trial.hits += 1.0;
            }
        }
        self.lost.clear();
    }

    fn choose(&mut self) {
        self.since_choice = 0;
        for (index, trial) in self.trials.iter().enumerate() {
            if are_more(trial.hits, self.trials[self.chosen].hits) {
                self.chosen = index;
            }
        }
        self.cache.reshape(SHAPES[self.chosen]);
        self.choices = self.choices.saturating_add(u32::from(self.cache.is_full()));
        let decay = decay_after(self.choices);
        self.trials.iter_mut().for_each(|trial| trial.hits *= decay);
    }
}

/// Returns whether hits are more than those of the chosen shape, and not by chance.
fn are_more(hits: f64, chosen: f64) -> bool {
    hits > chosen * (1.0 + MARGIN) + chosen.sqrt()
}

fn decay_after(choices: u32) -> f64 {
    let choices = f64::from(choices);
    (choices / (choices + DECAY_POWER)).min(DECAY_MAX)
}

/// Returns the size of the miniature caches.
fn sample_of(capacity: usize, sampled_of: u64) -> usize {
    capacity / sampled_of as usize
}

fn choose_every(capacity: usize) -> usize {
    (capacity / CHOICES_PER_CAPACITY).max(64)
}

impl Policy for Adaptive {
    fn access(&mut self, block: BlockId, evicted: &mut Vec<Kept>) -> Outcome {
        if self.is_sampled(block) {
            self.try_shapes(block);
        }
        self.since_choice += 1;
        if self.since_choice >= self.choose_every {
            self.choose();
        }
        self.cache.access(block, evicted)
    }

    fn find(&self, block: BlockId) -> Option<Place> {
        self.cache.find(block)
    }

    fn prefetch(&self, block: BlockId) {
        self.cache.prefetch(block);
    }

    fn guess(&self, block: BlockId) -> Option<Place> {
        self.cache.guess(block)
    }

    fn forget(&mut self, block: BlockId) -> Option<Place> {
        if self.is_sampled(block) {
            for trial in &mut self.trials {
                trial.cache.forget(block);
            }
        }
        self.cache.forget(block)
    }

    fn resize(&mut self, capacity: usize, evictions_max: usize, evicted: &mut Vec<Kept>) {
        let sample = sample_of(capacity, self.sampled_of);
        for trial in &mut self.trials {
            trial.cache.resize(sample, evictions_max, &mut self.lost);
        }
        self.lost.clear();
        self.choose_every = choose_every(capacity);
        self.cache.resize(capacity, evictions_max, evicted);
    }

    fn set_vms(&mut self, vms: &Arc<Vms>) {
        self.cache.weigh(vms);
    }

    fn pass(&mut self, time: Duration) {
        self.cache.pass(time);
    }

    fn floors(&self) -> Option<&Floors> {
        self.cache.floors()
    }

    fn len(&self) -> usize {
        self.cache.len()
    }

    fn ghosts(&self) -> usize {
        self.cache.ghosts()
    }

    fn places(&self) -> usize {
        self.cache.places()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_hits_are_soon_forgotten_and_later_ones_after_capacities() {
        let weight = |of: u32, at: u32| (of..at).map(decay_after).product::<f64>();
        assert!(weight(5, 20) < 0.03, "a quarter of the way: {}", weight(5, 20));
        assert!(weight(15, 20) > 0.3, "three quarters of it: {}", weight(15, 20));
        let half = |at| weight(at - 8 * CHOICES_PER_CAPACITY as u32, at);
        assert!((0.45..0.55).contains(&half(100_000)), "{}", half(100_000));
        assert!(decay_after(u32::MAX) < 1.0);
    }

    #[test]
    fn a_shape_that_is_better_by_chance_is_not_taken() {
        assert!(!are_more(1_005.0, 1_000.0), "within the deviation");
        assert!(!are_more(100_500.0, 100_000.0), "half a per cent");
        assert!(are_more(1_050.0, 1_000.0));
        assert!(are_more(101_400.0, 100_000.0));
    }

    #[test]
    fn the_shape_stays_until_another_one_has_clearly_more_hits() {
        let mut policy = Adaptive::new(4096, 1);
        let chosen = [1_005.0, 1_050.0].map(|hits| {
            policy.trials.iter_mut().for_each(|trial| trial.hits = 1_000.0);
            policy.trials[0].hits = hits;
            policy.choose();
            policy.chosen
        });
        assert_eq!(chosen, [FIRST, 0]);
    }

    /// Accesses of which each block comes back once, after a time that is short for the cache.
    fn recent(count: u64) -> impl Iterator<Item = u64> {
        (0..count).map(|at| if at % 2 == 0 { at } else { at.saturating_sub(3001) })
    }

    fn hits(policy: &mut Adaptive, blocks: impl Iterator<Item = u64>) -> usize {
        let mut evicted = Vec::new();
        let is_hit = |block| {
            evicted.clear();
            matches!(policy.access(BlockId::of_disk(0, block), &mut evicted), Outcome::Hit(_))
        };
        blocks.map(is_hit).filter(|is_hit| *is_hit).count()
    }

    /// What came while the cache was young does not hold back the choice for as long as it took.
    #[test]
    fn a_young_cache_follows_a_load_that_changes() {
        let mut policy = Adaptive::new(4096, 1);
        hits(&mut policy, (0..7).flat_map(|_| 1_000_000..1_006_000));
        let kept = hits(&mut policy, recent(40_000));
        assert!(kept > 15_000, "{kept} of 20,000");
    }
}
