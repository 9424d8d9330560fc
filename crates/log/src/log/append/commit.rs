//! Commits. A record commits once it and all records before it are written: then its entries are
//! applied to the map, under the log's lock.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use flowstone_block::mutated;
use flowstone_image::runtime::wakers::QueueWaker;
use flowstone_log_format::{Address, Entry, Kind, MapEntry, Placed, Sequence};

use super::{AppendState, Effects, Health};
use crate::volume::map::BlockMap;

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

/// The commit order: records that have a sequence number and have not committed.
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
        let in_file = mutated("log.commit.out-of-order", in_file, true);
        if !in_file {
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

impl AppendState {
    /// Marks a record as written or failed, and commits all records that can commit.
    pub fn written(
        &mut self,
        sequence: Sequence,
        succeeded: bool,
        map: &BlockMap,
        effects: &mut Effects,
    ) {
        self.order.written(sequence);
        let succeeded = mutated("log.commit.passes-over-failed-record", succeeded, true);
        if !succeeded {
            self.health = match self.health {
                Health::Running => Health::Restarting,
                other => other,
            };
            effects.wake_maintenance = true;
            // The owners of the records behind it must stop waiting.
            effects.wake.extend(self.order.in_flight().map(|record| Arc::clone(&record.owner)));
        }
        if self.health != Health::Running {
            return;
        }
        let dead = self.segments.dead_count();
        while let Some(record) = self.order.commit() {
            self.apply(&record, map);
            self.order.recycle(record.entries);
            effects.wake.push(record.owner);
            effects.wake.append(&mut self.watchers);
        }
        // The maintenance worker sleeps longer when no segment is dead.
        effects.wake_maintenance |= dead == 0 && self.segments.dead_count() > 0;
    }

    fn apply(&mut self, record: &InFlightRecord, map: &BlockMap) {
        let segment = self.shape.segment_of(record.address);
        match record.kind {
            Kind::Seal => self.seal(segment),
            Kind::Writes => {
                // Gains before losses: a record that writes a block twice loses one of its own
                // blocks.
                let blocks = record.entries.iter().map(|entry| entry.payload_blocks()).sum();
                self.segments.gain(segment, blocks);
                self.accounting.committed(blocks);
                apply_entries(&record.entries, record.address, map, |old| {
                    self.segments.lose(old.address());
                });
            }
            Kind::Relocated | Kind::Map => {}
        }
    }

    /// After a failure: notes that the owner of a record knows that it has not committed.
    pub fn give_up(&mut self, sequence: Sequence) {
        self.order.give_up(sequence);
    }

    /// After a failure: returns whether the owners of all records in flight have given them up.
    pub fn all_given_up(&self) -> bool {
        self.order.all_given_up()
    }

    /// After a failure: drops the records that did not commit; their sequence numbers are not
    /// reused.
    pub fn forget(&mut self) {
        let clock = self.accounting.clock();
        for record in self.order.forget().filter(|record| record.kind == Kind::Seal) {
            // The head has left this segment in any case.
            self.segments.seal(self.shape.segment_of(record.address), clock);
        }
    }
}

/// Applies the entries of a record at `address` to the map. `died` is called with every map entry
/// that was replaced or removed.
pub fn apply_entries(
    entries: &[Entry],
    address: Address,
    map: &BlockMap,
    mut died: impl FnMut(MapEntry),
) {
    let mut payload = 0;
    for entry in entries {
        match *entry {
            Entry::Data { lba, checksum } => {
                let map_entry = MapEntry::new(address.forward(1 + payload), checksum);
                let old = map.replace(lba, map_entry);
                if old.is_mapped() {
                    died(old);
                }
            }
            Entry::Trim { lba, count } => map.unmap(lba..lba + u64::from(count), &mut died),
            _ => {}
        }
        payload += entry.payload_blocks();
    }
}
