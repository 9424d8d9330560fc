//! The commit order: records that have a sequence number and have not committed. A record commits
//! once it and all records before it are written.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use flowstone_block::mutant;
use flowstone_image::runtime::wakers::QueueWaker;
use flowstone_log_format::{Address, Entry, Kind, Placed, Sequence};

/// A record that has a place and has not committed.
pub struct InFlightRecord {
    pub owner: Arc<QueueWaker>,
    pub address: Address,
    pub kind: Kind,
    pub entries: Vec<Entry>,
    written: bool,
    /// After a failure: the owner knows that this record will not commit.
    given_up: bool,
}

/// See the module.
pub struct CommitOrder {
    next: Sequence,
    committed: Sequence,
    in_flight: VecDeque<InFlightRecord>,
    spare_entries: Vec<Vec<Entry>>,
}

impl CommitOrder {
    /// An empty order whose first record gets this number.
    pub fn new(next: Sequence) -> Self {
        Self { next, committed: next, in_flight: VecDeque::new(), spare_entries: Vec::new() }
    }

    /// Returns the sequence number that the next record gets.
    pub const fn next(&self) -> Sequence {
        self.next
    }

    /// Returns the first sequence number that has not committed.
    pub const fn committed(&self) -> Sequence {
        self.committed
    }

    /// Adds the record with the [next](Self::next) number.
    pub fn push(&mut self, owner: &Arc<QueueWaker>, placed: &Placed, entries: &[Entry]) {
        let mut kept = self.spare_entries.pop().unwrap_or_default();
        kept.clear();
        kept.extend_from_slice(entries);
        self.in_flight.push_back(InFlightRecord {
            owner: Arc::clone(owner),
            address: placed.address,
            kind: placed.header.kind,
            entries: kept,
            written: false,
            given_up: false,
        });
        self.next = self.next.next();
    }

    fn record(&mut self, sequence: Sequence) -> &mut InFlightRecord {
        &mut self.in_flight[sequence.index_from(self.committed)]
    }

    /// Marks the record with this number as written or failed.
    pub fn written(&mut self, sequence: Sequence) {
        self.record(sequence).written = true;
    }

    /// Commits the first record if it is written.
    pub fn commit(&mut self) -> Option<InFlightRecord> {
        let in_file = self.in_flight.front()?.written;
        if !in_file && !mutant("log.commit.out-of-order") {
            return None;
        }
        self.committed = self.committed.next();
        self.in_flight.pop_front()
    }

    /// Takes back a list of entries, for reuse.
    pub fn recycle(&mut self, entries: Vec<Entry>) {
        self.spare_entries.push(entries);
    }

    /// After a failure: notes that the owner of a record knows that it has not committed.
    pub fn give_up(&mut self, sequence: Sequence) {
        self.record(sequence).given_up = true;
    }

    /// After a failure: returns whether all records in flight are given up by their owners and
    /// written.
    pub fn all_given_up(&self) -> bool {
        self.in_flight.iter().all(|record| record.given_up && record.written)
    }

    /// After a failure: drops the records that did not commit; their numbers are not used again.
    pub fn forget(&mut self) -> impl Iterator<Item = InFlightRecord> {
        self.committed = self.next;
        self.in_flight.drain(..)
    }

    /// Iterates over the records in order.
    pub fn in_flight(&self) -> impl DoubleEndedIterator<Item = &InFlightRecord> {
        self.in_flight.iter()
    }

    /// Returns whether a record concerns blocks in this range.
    pub fn mentions_any(&self, blocks: Range<u64>) -> bool {
        let mut entries = self.in_flight.iter().flat_map(|record| &record.entries);
        entries.any(|entry| {
            let said = entry.blocks();
            said.start < blocks.end && blocks.start < said.end
        })
    }
}
