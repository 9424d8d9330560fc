//! The records of a queue. A draft gets its place in the log, is written there with one write, and
//! ends when it has committed, or never will.
//!
//! Large ones lie in huge pages, which a device takes in few pieces
//! (docs/decisions/transfers-from-huge-pages.md). Small ones would only occupy more of the host's
//! memory there.

#[cfg(test)]
use std::collections::BTreeSet;

use flowstone_block::{Class, Errno, IoVec, Outcome, mutated};
use flowstone_fileio::MemoryList;
#[cfg(test)]
use flowstone_image::Wait;
use flowstone_log_format::{Address, MapEntry, Placed, RecordBuilder, Sequence, Shape};
use flowstone_log_store::Hints;
use slab::Slab;

use super::super::log::Log;
use super::super::log::append::{Draft, Place, PlaceError};
use super::device::{Device, Start};
use super::pace::{Amount, Load};
use super::{Purpose, Queue};

/// A part of a guest write that a record carries.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Index of the write in the queue's slab.
    pub write: usize,
    /// First block of the part.
    pub first: u64,
}

/// A record of this queue.
pub struct PendingRecord {
    pub content: RecordBuilder,
    /// Whether it lies in memory for large records.
    is_large: bool,
    memory: [IoVec; 1],
    pub shares: Vec<Share>,
    /// Partial blocks, and the map entries with which their rest was read.
    pub expected: Vec<(u64, MapEntry)>,
    stream: usize,
    /// Number of blocks that its trims cover.
    pub trimmed: u64,
    /// Whether all its data is from a guest's journal.
    pub only_journal: bool,
    sequence: Sequence,
    pub address: Address,
    /// Start of its write, while that is in flight.
    start: Option<Start>,
    /// Written; waits for the records before it.
    written: bool,
    /// Error of its write.
    failure: Option<Errno>,
}

/// Blocks from which a record is large.
const LARGE_BLOCKS: u64 = 32;
/// Records in huge pages: these take 8 MiB. Further ones lie in other memory.
const LARGE_MOST: usize = 15;

/// See the module.
#[expect(clippy::vec_box, reason = "records travel in their boxes")]
pub struct Records {
    shape: Shape,
    /// A draft that waits for its place.
    draft: Option<Box<PendingRecord>>,
    /// [`Log::room_made`] when the draft was refused its place.
    refused_at: u64,
    placed: Slab<Box<PendingRecord>>,
    /// Number of `placed` that are being written.
    being_written: usize,
    device: Device,
    /// Records for reuse, and the memory for more of them.
    small: Vec<Box<PendingRecord>>,
    large: Vec<Box<PendingRecord>>,
    slab: Option<flowstone_block::Slab>,
    made_large: usize,
}

/// Result of placing a draft.
pub enum Placement {
    /// It is being written.
    Started,
    /// It waits.
    Waits,
    Refused(Box<PendingRecord>, PlaceError),
}

impl Records {
    pub fn new(shape: Shape) -> Self {
        Self {
            shape,
            draft: None,
            refused_at: 0,
            placed: Slab::new(),
            being_written: 0,
            device: Device::new(),
            small: Vec::new(),
            large: Vec::new(),
            slab: None,
            made_large: 0,
        }
    }

    /// Returns the load of a queue with this work waiting.
    pub fn load(&self, waiting: Amount) -> Load {
        let mut in_flight = Amount::default();
        for (_, record) in self.placed.iter().filter(|(_, record)| !record.written) {
            in_flight.blocks += u64::from(record.content.payload());
            in_flight.requests += record.shares.len() as u64;
        }
        let (records, busy_bytes) = (self.being_written, self.device.busy_bytes());
        Load::new(waiting, in_flight, records, busy_bytes, self.shape.record_payload_max())
    }

    pub const fn has_draft(&self) -> bool {
        self.draft.is_some()
    }

    /// Takes the draft that waits for its place.
    pub const fn take_draft(&mut self) -> Option<Box<PendingRecord>> {
        self.draft.take()
    }

    /// Returns an empty draft, for about `blocks` blocks.
    pub fn begin_draft(&mut self, blocks: u64) -> Box<PendingRecord> {
        let large = if blocks >= LARGE_BLOCKS { self.take_large() } else { None };
        let record = large.or_else(|| self.small.pop());
        let mut record = record.unwrap_or_else(|| {
            PendingRecord::new(RecordBuilder::new(self.shape.record_payload_max()), false)
        });
        record.clear();
        record
    }

    fn take_large(&mut self) -> Option<Box<PendingRecord>> {
        if let Some(record) = self.large.pop() {
            return Some(record);
        }
        let payload = self.shape.record_payload_max();
        let bytes = RecordBuilder::buffer_bytes(payload);
        if self.slab.is_none() {
            self.slab = flowstone_block::Slab::new(LARGE_MOST * bytes).ok();
        }
        let made = self.made_large;
        let buffer = self.slab.as_mut().filter(|_| made < LARGE_MOST)?.cut(bytes)?;
        self.made_large += 1;
        Some(PendingRecord::new(RecordBuilder::in_buffer(buffer, payload), true))
    }

    /// Takes back a record that has ended, or a draft that is not to be placed.
    pub fn give_back(&mut self, record: Box<PendingRecord>) {
        if record.is_large { self.large.push(record) } else { self.small.push(record) }
    }

    /// Gives a draft its place in the log, and starts to write it there.
    pub fn place(&mut self, queue: &mut Queue, record: Box<PendingRecord>) -> Placement {
        let draft = Draft {
            stream: record.stream,
            entries: record.content.entries(),
            payload_blocks: record.content.payload(),
            expected: &record.expected,
            only_trims: record.only_trims(),
        };
        self.refused_at = queue.log.room_made();
        match queue.log.place(&draft, &queue.volume, &queue.waker) {
            Ok(Place { record: placed, seal }) => {
                if let Some((seal, entry)) = seal {
                    let mut end = self.begin_draft(0);
                    end.stream = record.stream;
                    end.content.push(entry);
                    self.write(queue, end, &seal);
                }
                self.write(queue, record, &placed);
                Placement::Started
            }
            Err(PlaceError::Wait) => {
                self.draft = Some(record);
                Placement::Waits
            }
            Err(why) => Placement::Refused(record, why),
        }
    }

    /// Writes a record at its place.
    fn write(&mut self, queue: &mut Queue, mut record: Box<PendingRecord>, placed: &Placed) {
        record.sequence = placed.header.sequence;
        record.address = placed.address;
        let content = record.content.finish(queue.log.codec, placed);
        let bytes = content.len();
        // SAFETY: the buffer lives in the record, in the slab, until the write completes.
        record.memory = [unsafe { IoVec::of(content) }];
        // SAFETY: the record is boxed: the list does not move.
        let memory = unsafe { MemoryList::new(&record.memory) };
        let (lifetime, at) = (record.stream as u8, record.address);
        let hints = Hints::of_journal(record.only_journal);
        record.start = Some(self.device.begin(bytes as u64, queue.log.clock.now()));
        let tag = Purpose::Record.tag(self.placed.insert(record));
        self.being_written += 1;
        queue.store.append(lifetime, at, memory, tag, hints);
    }

    /// Takes the outcome of a record's write.
    pub fn finish(&mut self, queue: &mut Queue, index: usize, outcome: Outcome) {
        let record = &mut self.placed[index];
        record.written = true;
        record.failure = outcome.err();
        self.being_written -= 1;
        if let Some(start) = record.start.take() {
            self.device.end(start, queue.log.clock.now());
        }
        let map = &queue.volume.map;
        queue.log.written(record.sequence, outcome.is_ok(), map, &queue.waker);
    }

    /// Takes out a record that has committed, or never will; returns it with its outcome.
    pub fn take_ended(&mut self, log: &Log) -> Option<(Box<PendingRecord>, Outcome)> {
        let (index, _) = self.placed.iter().find(|(_, record)| record.has_ended(log))?;
        let record = self.placed.remove(index);
        let committed = log.has_committed(record.sequence) || log.give_up(record.sequence);
        let outcome = if committed { Ok(()) } else { Err(record.failure.unwrap_or(Errno::IO)) };
        Some((record, outcome))
    }

    /// Returns whether another thread has made progress that a record or the draft waits for.
    pub fn can_advance(&self, log: &Log) -> bool {
        self.placed.iter().any(|(_, record)| record.has_ended(log))
            || self.has_draft() && log.room_made() != self.refused_at
    }

    /// Returns whether a record of this queue is being written.
    pub const fn in_flight(&self) -> bool {
        self.being_written > 0
    }

    /// Gives up the records of a queue that is being dropped: no request waits for them any more.
    pub fn abandon(&mut self, log: &Log) {
        for record in self.placed.drain() {
            if !log.has_committed(record.sequence) {
                log.give_up(record.sequence);
            }
        }
    }

    /// Adds the states in which records wait.
    #[cfg(test)]
    pub fn waits(&self, log: &Log, waits: &mut BTreeSet<Wait>) {
        if self.being_written > 0 {
            waits.insert(Wait::Host);
        }
        if self.has_draft() {
            waits.insert(if log.is_broken() { Wait::Restart } else { Wait::Room });
        }
        if self.placed.iter().any(|(_, record)| record.written && !record.has_ended(log)) {
            waits.insert(Wait::Commit);
        }
    }
}

impl PendingRecord {
    fn new(content: RecordBuilder, is_large: bool) -> Box<Self> {
        Box::new(Self {
            content,
            is_large,
            // SAFETY: an empty piece names nothing.
            memory: [unsafe { IoVec::new(std::ptr::null_mut(), 0) }],
            shares: Vec::new(),
            expected: Vec::new(),
            stream: 0,
            trimmed: 0,
            only_journal: true,
            sequence: Sequence::default(),
            address: Address::NOWHERE,
            start: None,
            written: false,
            failure: None,
        })
    }

    /// Empties the record.
    fn clear(&mut self) {
        self.content.clear();
        self.shares.clear();
        self.expected.clear();
        self.trimmed = 0;
        self.only_journal = true;
        self.written = false;
        self.failure = None;
    }

    /// Returns whether a request of this class may go into this record: the first request
    /// determines its stream and, with `journals_apart`, whether it holds journal writes only.
    pub fn suits(&mut self, class: Class, shape: Shape, journals_apart: bool) -> bool {
        let stream = stream_of(class, shape);
        let is_empty = self.shares.is_empty();
        let decides = mutated("log.gather.mixes-classes", is_empty, true);
        if decides {
            self.stream = stream;
        }
        let is_other = self.only_journal != (class == Class::Journal);
        let mixes = journals_apart && !is_empty && is_other;
        let mixes = mutated("log.gather.mixes-journals-with-others", mixes, false);
        self.stream == stream && !mixes
    }

    /// Returns whether it only unmaps blocks, without data.
    pub const fn only_trims(&self) -> bool {
        self.content.payload() == 0
    }

    /// Returns whether it has committed, or never will.
    fn has_ended(&self, log: &Log) -> bool {
        self.written && (log.has_committed(self.sequence) || log.is_broken())
    }
}

fn stream_of(class: Class, shape: Shape) -> usize {
    let metadata = matches!(class, Class::Metadata | Class::Journal);
    usize::from(metadata && shape.streams > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_records_have_an_end_and_each_goes_back_to_its_like() {
        let shape = Shape { segment_blocks: 1024, reserve_percent: 20, streams: 1 };
        let mut records = Records::new(shape);
        let taken: Vec<_> =
            (0..LARGE_MOST + 3).map(|_| records.begin_draft(LARGE_BLOCKS)).collect();
        assert_eq!(taken.iter().filter(|record| record.is_large).count(), LARGE_MOST);
        taken.into_iter().for_each(|record| records.give_back(record));
        assert_eq!((records.large.len(), records.small.len()), (LARGE_MOST, 3));
        assert!(
            !records.begin_draft(LARGE_BLOCKS - 1).is_large
                && records.begin_draft(LARGE_BLOCKS).is_large
        );
    }
}
