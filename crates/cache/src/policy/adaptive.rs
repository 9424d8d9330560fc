//! Our default: S3-FIFO whose shape follows the load.
//!
//! No shape of S3-FIFO is good for all loads: a large small queue that lets everything that was
//! used again go on is nearly LRU, a tiny one is nearly a filter against scans. So several shapes
//! are tried beside each other, each on a small cache that sees only a sample of the blocks, chosen
//! by a hash of their number, and is smaller by the same factor (miniature simulation: Waldspurger
//! et al., "Cache modeling and optimization using miniature simulations", ATC 2017). The cache
//! itself takes the shape that has had most hits lately. Its queues only change in length as blocks
//! come and go, so a change of shape gives nothing up.

use std::sync::Arc;
use std::time::Duration;

use super::floors::Floors;
use super::s3fifo::{S3Fifo, Shape};
use super::{Kept, Outcome, Policy};
use crate::names::{BlockId, Place, spread};
use crate::vms::Vms;

/// What is tried: from a filter against scans to nearly LRU.
const SHAPES: [Shape; 6] =
    [shape(0.01, 2), shape(0.1, 1), shape(0.1, 2), shape(0.3, 2), shape(0.9, 1), shape(0.9, 2)];
/// The shape before anything is known: nearly LRU loses little on any load.
const FIRST: usize = 5;
/// A small cache has at least that many blocks, so that its hits say something.
const SAMPLE_BLOCKS_MIN: usize = 2048;
/// At most one block of so many is looked at.
const SAMPLED_OF_MAX: u64 = 256;
/// The shape is chosen anew after so many accesses, in parts of the capacity.
const CHOICES_PER_CAPACITY: usize = 4;
/// How much hits count less with each choice that passes: half after 23.
const DECAY: f64 = 0.97;

const fn shape(small: f64, promote: u32) -> Shape {
    Shape { small, promote, ghosts: 1.0 }
}

/// Keeps what the shape of the moment keeps.
#[derive(Debug)]
pub struct Adaptive {
    key: u64,
    cache: S3Fifo,
    trials: Vec<Trial>,
    chosen: usize,
    /// One block of so many is looked at: a power of two.
    sampled_of: u64,
    choose_every: usize,
    since_choice: usize,
    /// What the small caches give up, which is nobody's loss.
    lost: Vec<Kept>,
}

/// A shape on trial.
#[derive(Debug)]
struct Trial {
    cache: S3Fifo,
    hits: f64,
}

impl Adaptive {
    /// Keeps so many blocks; `key` decides which of them are looked at.
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

/// What the small caches keep.
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
