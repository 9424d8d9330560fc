//! The default policy: S3-FIFO with a shape that adapts to the load.
//!
//! No shape of S3-FIFO suits all loads: with a large small queue that promotes every block used
//! again it is nearly LRU, with a tiny one a filter against scans, and with LIRS's rule for ghosts
//! it keeps its part of a loop. So several shapes run in parallel, each on a miniature cache that
//! sees only a sample of the blocks, chosen by a hash of their number, and is smaller by the same
//! factor (miniature simulation: Waldspurger et al., "Cache modeling and optimization using
//! miniature simulations", ATC 2017). The cache itself takes the shape with the most recent hits. A
//! change of shape evicts nothing: what is above the part of the small queue goes on to the main
//! queue as blocks come and go.

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
    shape(0.3, 2),
    shape(0.9, 2),
];
/// Index of the initial shape: nearly LRU, which is never far off the best.
const FIRST: usize = 4;
/// Least size of a miniature cache, so that its hits are significant.
const SAMPLE_BLOCKS_MIN: usize = 2048;
/// Greatest inverse of the sampling rate.
const SAMPLED_OF_MAX: u64 = 256;
/// Choices of the shape per as many accesses as the capacity has blocks.
const CHOICES_PER_CAPACITY: usize = 8;
/// Factor by which hits decay with each choice: half after as many accesses as 8 capacities.
const DECAY: f64 = 0.989;

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
            if trial.hits > self.trials[self.chosen].hits {
                self.chosen = index;
            }
        }
        self.cache.reshape(SHAPES[self.chosen]);
        self.trials.iter_mut().for_each(|trial| trial.hits *= DECAY);
    }
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
