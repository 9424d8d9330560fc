//! Chooses the next request.
//!
//! Kinds are chosen by the mix, blocks by the order. A verifying lane owns its blocks and keeps two
//! requests off one block itself; this file only proposes.

use fastrand::Rng;

use super::options::{Mix, Order, Workload};
use super::zipf::ZipfBlocks;

/// The operation of a request. The numbers index tables.
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

/// An endless sequence of requests for one queue.
#[derive(Debug)]
pub(super) struct Source {
    random: Rng,
    order: Order,
    /// The distribution of random blocks, if it is not uniform.
    zipf: Option<ZipfBlocks>,
    /// Upper bounds of read, write and discard in percent; the rest is zeroes.
    steps: [u8; 3],
    /// The only kind of the mix, if there is one, so that no random number is needed.
    only: Option<Kind>,
    first: u64,
    blocks: u64,
    next: u64,
}

impl Source {
    /// Makes requests in blocks `first..first + blocks`.
    pub(super) fn new(workload: Workload, first: u64, blocks: u64, seed: u64) -> Self {
        let Mix { read, write, discard, zeroes } = workload.mix;
        let parts = [read, write, discard, zeroes];
        let only = parts.iter().position(|&part| part == 100).map(|at| Kind::ALL[at]);
        let steps = [read, read + write, read + write + discard];
        let random = Rng::with_seed(seed);
        let (order, zipf) = (workload.order, None);
        Source { random, order, zipf, steps, only, first, blocks, next: 0 }
    }

    /// Draws random blocks by Zipf's law.
    pub(super) fn with_zipf(mut self, exponent: Option<f64>, seed: u64) -> Self {
        self.zipf = exponent.map(|exponent| ZipfBlocks::new(self.blocks, exponent, seed));
        self
    }

    /// Returns the first block of its part.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Returns the kind of the next request.
    #[inline]
    pub(super) fn kind(&mut self) -> Kind {
        if let Some(kind) = self.only {
            return kind;
        }
        let roll = self.random.u8(0..100);
        let at = self.steps.iter().position(|&step| roll < step).unwrap_or(3);
        Kind::ALL[at]
    }

    /// Returns the block of the next request.
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
