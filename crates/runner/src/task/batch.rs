//! The limits of one batch, and when completions are reaped while it is being issued.
//!
//! A batch is issued in stretches. Completions that have arrived are published between two
//! stretches, so the driver gets the first answers of a long batch while the rest is still being
//! issued (S2.5, early completion).

use std::cell::Cell;
use std::time::{Duration, Instant};

use flowstone_block::mutated;

/// Chains taken by the first turn after an idle period; the limit doubles with each following turn.
/// The disk gets work early, and long batches still cost few system calls.
pub const BATCH_FIRST: usize = 4;

/// Time after which a stretch ends: that of ten exchanges with a driver on another core. A batch
/// that is submitted in less is not interrupted.
const STRETCH: Duration = Duration::from_micros(10);
/// Chains between two reads of the clock.
const REQUESTS_PER_LOOK: u32 = 16;

/// Bytes charged to a batch for each chain, beside the bytes that it moves: taking and answering a
/// chain costs as much as copying some kilobytes. Without this charge a turn of chains without data
/// would never end.
pub const CHAIN_BYTES: u64 = 2048;
/// Time limit of a batch that has a limit of bytes, whatever its chains are: one may have a
/// thousand descriptors.
pub const TURN: Duration = Duration::from_micros(100);

/// The remaining limits of one batch, and the clock of its stretch.
#[derive(Debug)]
pub struct Batch {
    chains: usize,
    bytes_max: u64,
    /// What is left of that.
    bytes: Cell<u64>,
    /// Deadline of the batch; `None` if it has no limit of bytes.
    end: Option<Instant>,
    /// Start of the current stretch.
    begun: Instant,
    asked: Cell<u32>,
}

impl Batch {
    /// Begins a batch of at most `chains` chains and about `bytes` bytes ([`u64::MAX`]: no limit),
    /// and its first stretch.
    pub fn new(chains: usize, bytes: u64) -> Self {
        let begun = Instant::now();
        let end = (bytes < u64::MAX).then(|| begun + TURN);
        let (bytes_max, bytes) = (bytes, Cell::new(bytes));
        Self { chains, bytes_max, bytes, end, begun, asked: Cell::new(0) }
    }

    /// Begins the next stretch. Ends the batch if its deadline has passed.
    pub fn begin_stretch(&mut self) {
        self.begun = Instant::now();
        self.asked.set(0);
        let is_over = self.end.is_some_and(|end| self.begun >= end);
        let is_over = mutated("runner.batch.has-no-end", is_over, false);
        if is_over {
            self.chains = 0;
        }
    }

    /// Start of the current stretch.
    pub const fn begun(&self) -> Instant {
        self.begun
    }

    /// Chains that may still be taken.
    pub const fn chains(&self) -> usize {
        self.chains
    }

    /// Bytes charged so far.
    pub fn bytes(&self) -> u64 {
        self.bytes_max - self.bytes.get()
    }

    /// Called before each chain: returns whether it belongs to this stretch, and charges it if so.
    #[inline]
    pub fn goes_on(&self) -> bool {
        let asked = self.asked.get();
        self.asked.set(asked + 1);
        let looks = asked > 0 && asked.is_multiple_of(REQUESTS_PER_LOOK);
        let looks = mutated("runner.batch.shows-nothing-early", looks, false);
        let goes_on = self.bytes.get() > 0 && !(looks && self.begun.elapsed() >= STRETCH);
        let counts = mutated("runner.batch.counts-no-chains", goes_on, false);
        if counts {
            self.spend(CHAIN_BYTES);
        }
        goes_on
    }

    /// Charges a submitted request of `bytes` bytes.
    #[inline]
    pub fn count(&self, bytes: u64) {
        self.spend(bytes);
    }

    #[inline]
    fn spend(&self, bytes: u64) {
        self.bytes.set(self.bytes.get().saturating_sub(bytes));
    }

    /// Ends a stretch of `chains` chains that left `left` in the ring. Chains that arrive meanwhile
    /// belong to the next turn: a driver that answers completions at once would otherwise starve
    /// the other queues of the thread.
    pub fn end_stretch(&mut self, chains: usize, left: usize) {
        self.chains = if chains == 0 { 0 } else { left.min(self.chains.saturating_sub(chains)) };
    }

    /// Returns whether nothing more may be taken.
    pub fn is_over(&self) -> bool {
        self.chains == 0 || self.bytes.get() == 0
    }
}

#[cfg(test)]
mod tests;
