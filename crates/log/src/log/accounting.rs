//! Amounts written: since the image was created, since it was opened, and since its last
//! checkpoint.

use std::time::Duration;

use flowstone_log_format::{Kind, Totals};
use serde::Serialize;

/// Costs of a log besides the blocks that guests write, since the image was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LogCosts {
    /// Headers of records of all kinds.
    pub header_blocks: u64,
    /// Seals at the ends of segments.
    pub seal_blocks: u64,
    /// Segments whose live blocks the cleaner has copied.
    pub cleaned_segments: u64,
    /// Blocks that the cleaner has copied, without headers.
    pub copied_blocks: u64,
    /// Time spent cleaning, without the rests for guests.
    pub cleaning_seconds: f64,
}

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Accounting {
    totals: Totals,
    costs: LogCosts,
    clock: u64,
    since_checkpoint: u64,
    changed: bool,
}

impl Accounting {
    /// Continues the totals of a checkpoint and the records replayed after it.
    pub fn resumed(totals: Totals, clock: u64, replayed_blocks: u64) -> Self {
        let appended_blocks = totals.appended_blocks + replayed_blocks;
        Self { totals: Totals { appended_blocks, ..totals }, clock, ..Self::default() }
    }

    /// Returns the amounts since the image was created.
    pub const fn totals(&self) -> Totals {
        self.totals
    }

    /// Returns the costs since the image was opened.
    pub const fn costs(&self) -> LogCosts {
        self.costs
    }

    /// Returns the number of guest blocks committed since the image was created: the log's own
    /// time.
    pub const fn clock(&self) -> u64 {
        self.clock
    }

    /// Returns the number of blocks appended since the last checkpoint.
    pub const fn since_checkpoint(&self) -> u64 {
        self.since_checkpoint
    }

    /// Returns whether anything has changed since the last checkpoint.
    pub const fn has_changed(&self) -> bool {
        self.changed
    }

    /// Counts a record.
    pub fn appended(&mut self, kind: Kind, blocks: u32) {
        let blocks = u64::from(blocks);
        self.since_checkpoint += blocks;
        self.costs.header_blocks += 1;
        self.totals.appended_blocks += blocks;
        match kind {
            Kind::Map => self.totals.map_blocks += blocks,
            Kind::Relocated => self.totals.relocated_blocks += blocks,
            Kind::Writes | Kind::Seal => {}
        }
    }

    /// Counts a seal in a stream of guests.
    pub fn sealed(&mut self) {
        self.since_checkpoint += 1;
        self.sealed_copies();
    }

    /// Counts a seal in a stream of the maintenance worker.
    pub fn sealed_copies(&mut self) {
        self.costs.seal_blocks += 1;
        self.totals.appended_blocks += 1;
    }

    /// Counts committed blocks of guests.
    pub fn committed(&mut self, blocks: u32) {
        self.clock += u64::from(blocks);
    }

    /// Counts blocks copied by the cleaner.
    pub fn copied(&mut self, blocks: u32) {
        self.costs.copied_blocks += u64::from(blocks);
    }

    /// Counts the time spent on a victim, and the victim if all of its live blocks were copied.
    pub fn cleaned(&mut self, took: Duration, is_whole: bool) {
        self.costs.cleaned_segments += u64::from(is_whole);
        self.costs.cleaning_seconds += took.as_secs_f64();
    }

    /// Notes a change. Returns whether it is the first one since the last checkpoint.
    pub fn change(&mut self) -> bool {
        !std::mem::replace(&mut self.changed, true)
    }

    /// Begins a checkpoint. Returns the number of blocks appended since the last one.
    pub fn begin_checkpoint(&mut self) -> u64 {
        self.changed = false;
        std::mem::take(&mut self.since_checkpoint)
    }

    /// Takes back the beginning of a checkpoint that has failed.
    pub fn undo_checkpoint(&mut self, appended: u64) {
        self.changed = true;
        self.since_checkpoint += appended;
    }
}
