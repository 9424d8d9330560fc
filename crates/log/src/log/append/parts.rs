//! Access to the parts of the state.

use flowstone_block::Clock;
use flowstone_log_format::{STREAMS_MAX, Sequence, Shape};
use flowstone_log_store::segments::SegmentTable;

use super::heads::Head;
use super::{AppendState, Health};
use crate::log::accounting::Accounting;
use crate::log::rate::CleaningRate;

impl AppendState {
    /// Takes the time from this clock from now on.
    pub fn set_time(&mut self, time: Clock) {
        self.time = time;
    }

    /// Returns the sizes of the log's parts.
    pub const fn shape(&self) -> Shape {
        self.shape
    }

    /// Returns the table of segments.
    pub const fn segments(&self) -> &SegmentTable {
        &self.segments
    }

    /// Returns the table of segments.
    pub const fn segments_mut(&mut self) -> &mut SegmentTable {
        &mut self.segments
    }

    /// Returns the heads of all streams.
    pub const fn heads(&self) -> &[Head; STREAMS_MAX] {
        &self.heads
    }

    /// Returns whether records can be placed.
    pub const fn health(&self) -> Health {
        self.health
    }

    /// Sets whether records can be placed. To be shown to the queues ([`Log`](crate::log::Log)).
    pub(in crate::log) const fn set_health(&mut self, health: Health) {
        self.health = health;
    }

    /// Returns the amounts written.
    pub const fn accounting(&self) -> &Accounting {
        &self.accounting
    }

    /// Returns the amounts written.
    pub const fn accounting_mut(&mut self) -> &mut Accounting {
        &mut self.accounting
    }

    /// Returns the amount of cleaning that writes have to wait for.
    pub const fn rate(&self) -> &CleaningRate {
        &self.rate
    }

    /// Returns the amount of cleaning that writes have to wait for.
    pub const fn rate_mut(&mut self) -> &mut CleaningRate {
        &mut self.rate
    }

    /// Returns the number of the newest durable checkpoint.
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Sets the number of the newest durable checkpoint.
    pub const fn set_generation(&mut self, generation: u64) {
        self.generation = generation;
    }

    /// Notes that all records before this sequence number are durable.
    pub fn mark_durable_before(&mut self, sequence: Sequence) {
        self.durable = self.durable.max(sequence);
    }
}
