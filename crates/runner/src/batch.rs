//! What a turn takes from its ring, and when it looks for completions meanwhile.
//!
//! A batch is issued in stretches. Between two of them, what has completed is shown to the driver:
//! it has the first answers of a long batch while the rest is still being issued (S2.5, early
//! completion).

use std::cell::Cell;
use std::time::{Duration, Instant};

use flowstone_block::mutant;

/// Requests that the first turn after a pause takes; each following one may take twice as many. The
/// disk gets something to do early, and long batches still cost few system calls.
pub const BATCH_FIRST: usize = 4;

/// A stretch that has taken that long is over: the time of ten exchanges with a driver on another
/// core. A disk that takes a whole batch in less gets it at once.
const STRETCH: Duration = Duration::from_micros(10);
/// It asks for the time before every such request only.
const REQUESTS_PER_LOOK: u32 = 16;

/// What a chain counts beside the bytes that it moves: to take one and to answer it costs as much
/// as to move some kilobytes. Else a turn of chains that move nothing would have no end.
pub const CHAIN_BYTES: u64 = 2048;
/// A batch with a bound is over after so much time, whatever its chains are: one may have a
/// thousand descriptors.
pub const TURN: Duration = Duration::from_micros(100);

/// See the module.
#[derive(Debug)]
pub struct Batch {
    chains: usize,
    bytes: Cell<u64>,
    /// When it has to end.
    end: Option<Instant>,
    /// Of the stretch.
    begun: Instant,
    asked: Cell<u32>,
}

impl Batch {
    /// So many chains, or as many as have so many bytes; [`u64::MAX`] is no bound. Its first
    /// stretch begins.
    pub fn new(chains: usize, bytes: u64) -> Self {
        let begun = Instant::now();
        let end = (bytes < u64::MAX).then(|| begun + TURN);
        Self { chains, bytes: Cell::new(bytes), end, begun, asked: Cell::new(0) }
    }

    /// The next stretch begins.
    pub fn begin_stretch(&mut self) {
        self.begun = Instant::now();
        self.asked.set(0);
        if self.end.is_some_and(|end| self.begun >= end) && !mutant("runner.batch.has-no-end") {
            self.chains = 0;
        }
    }

    /// When its stretch began.
    pub const fn begun(&self) -> Instant {
        self.begun
    }

    /// How many chains may still be taken.
    pub const fn chains(&self) -> usize {
        self.chains
    }

    /// Asked before each chain: whether the stretch has it too. Then it counts.
    #[inline]
    pub fn goes_on(&self) -> bool {
        let asked = self.asked.get();
        self.asked.set(asked + 1);
        let looks = asked > 0
            && asked.is_multiple_of(REQUESTS_PER_LOOK)
            && !mutant("runner.batch.shows-nothing-early");
        let goes_on = self.bytes.get() > 0 && !(looks && self.begun.elapsed() >= STRETCH);
        if goes_on && !mutant("runner.batch.counts-no-chains") {
            self.spend(CHAIN_BYTES);
        }
        goes_on
    }

    /// The disk has a request of so many bytes.
    #[inline]
    pub fn count(&self, bytes: u64) {
        self.spend(bytes);
    }

    #[inline]
    fn spend(&self, bytes: u64) {
        self.bytes.set(self.bytes.get().saturating_sub(bytes));
    }

    /// The stretch had so many chains, and so many were left in the ring. Chains that come
    /// meanwhile are the next turn's: a driver that answers completions at once would keep others
    /// of the thread waiting.
    pub fn end_stretch(&mut self, chains: usize, left: usize) {
        self.chains = if chains == 0 { 0 } else { left.min(self.chains.saturating_sub(chains)) };
    }

    /// Whether nothing more is to be taken.
    pub fn is_over(&self) -> bool {
        self.chains == 0 || self.bytes.get() == 0
    }
}

#[cfg(test)]
mod tests;
