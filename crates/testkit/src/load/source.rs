//! Decides what the next request is.
//!
//! Pure choice: kinds by the mix, places by the order. A queue that verifies owns its places and
//! keeps two requests off one block; that is the lane's business, this file only proposes.

use fastrand::Rng;

use super::options::{Mix, Order, Workload};
use super::zipf::ZipfBlocks;

/// What a request does. The numbers index tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read = 0,
    Write = 1,
    Discard = 2,
    Zeroes = 3,
    Flush = 4,
}

impl Kind {
    /// All kinds, in the order of their numbers.
    pub(super) const ALL: [Kind; 5] =
        [Kind::Read, Kind::Write, Kind::Discard, Kind::Zeroes, Kind::Flush];
}

/// An endless supply of requests for one queue.
#[derive(Debug)]
pub(super) struct Source {
    random: Rng,
    order: Order,
    /// Random places that are not all alike.
    zipf: Option<ZipfBlocks>,
    /// Upper ends of read, write and discard on a scale of 100; the rest is zeroes.
    steps: [u8; 3],
    /// The mix has one kind only, so no dice are needed.
    only: Option<Kind>,
    first: u64,
    blocks: u64,
    next: u64,
}

impl Source {
    /// Requests in blocks `first..first + blocks`.
    pub(super) fn new(workload: Workload, first: u64, blocks: u64, seed: u64) -> Self {
        let Mix { read, write, discard, zeroes } = workload.mix;
        let parts = [read, write, discard, zeroes];
        let only = parts.iter().position(|&part| part == 100).map(|at| Kind::ALL[at]);
        let steps = [read, read + write, read + write + discard];
        let random = Rng::with_seed(seed);
        let (order, zipf) = (workload.order, None);
        Source { random, order, zipf, steps, only, first, blocks, next: 0 }
    }

    /// The same with random places drawn by Zipf's law.
    pub(super) fn with_zipf(mut self, exponent: Option<f64>, seed: u64) -> Self {
        self.zipf = exponent.map(|exponent| ZipfBlocks::new(self.blocks, exponent, seed));
        self
    }

    /// The first block of its part.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// What the next request does.
    #[inline]
    pub(super) fn kind(&mut self) -> Kind {
        if let Some(kind) = self.only {
            return kind;
        }
        let roll = self.random.u8(0..100);
        let at = self.steps.iter().position(|&step| roll < step).unwrap_or(3);
        Kind::ALL[at]
    }

    /// Where the next request goes.
    #[inline]
    pub(super) fn block(&mut self) -> u64 {
        match self.order {
            Order::Random => {
                self.first
                    + match &mut self.zipf {
                        None => self.random.u64(0..self.blocks),
                        Some(zipf) => zipf.block(),
                    }
            }
            Order::Sequential => {
                let block = self.first + self.next;
                self.next = if self.next + 1 == self.blocks { 0 } else { self.next + 1 };
                block
            }
        }
    }
}
