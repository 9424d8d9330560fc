//! Writes, discards and zeroes of one queue: requests become records, and complete when these
//! commit.
//!
//! A request waits until the rest of its partial blocks has been read. Then its blocks are copied
//! into a draft, together with those of other requests; the draft gets its place under the log's
//! lock and is written with one write. A request is done when every record that carries a share of
//! it has committed.

mod pace;
mod partials;
mod undo;
#[cfg(test)]
mod waits;

use std::collections::VecDeque;

use flowstone_block::{Completion, Errno, Extent, IoVec, Op, Outcome, Request, mutant};
use flowstone_fileio::MemoryList;
use flowstone_log_format::{MapEntry, Placed, Sequence, Shape};
use flowstone_log_store::Hints;
use slab::Slab;

use super::super::log::Log;
use super::super::log::append::{Draft, Place, PlaceError};
use super::device::Device;
use super::partial::{PartialBlock, PartialCache};
use super::pending_record::{PendingRecord, Share};
use super::pending_write::PendingWrite;
use super::spare_records::SpareRecords;
use super::{Purpose, Queue};

pub struct WriteQueue {
    shape: Shape,
    /// Whether journal writes get records of their own, which the host keeps out of its page cache.
    journals_apart: bool,
    requests: Slab<PendingWrite>,
    /// Requests ready to be put into a record, in order of arrival.
    waiting: VecDeque<usize>,
    /// Empty between calls: reused memory for the extents that a draft leaves to the next one.
    left_out: Vec<Extent>,
    /// Requests with a block in another record in flight: they read it again when that has
    /// committed.
    conflicted: Vec<usize>,
    /// A record that is assembled but not placed yet.
    draft: Option<Box<PendingRecord>>,
    records: Slab<Box<PendingRecord>>,
    /// Number of `records` that are being written.
    being_written: usize,
    device: Device,
    spare: SpareRecords,
    recent: PartialCache,
    /// [`Log::room_made`] when the draft was refused a place.
    refused_at: u64,
    /// Committed sequence number when conflicts were last looked at.
    conflicts_at: Sequence,
}

/// Result of placing a draft.
enum Step {
    /// The draft has been placed, refused, or taken apart.
    Done,
    /// It must wait.
    Stuck,
}

impl WriteQueue {
    pub fn new(shape: Shape, journals_apart: bool) -> Self {
        Self {
            shape,
            journals_apart,
            requests: Slab::new(),
            waiting: VecDeque::new(),
            left_out: Vec::new(),
            conflicted: Vec::new(),
            draft: None,
            records: Slab::new(),
            being_written: 0,
            device: Device::new(),
            spare: SpareRecords::new(shape),
            recent: PartialCache::default(),
            refused_at: 0,
            conflicts_at: Sequence::default(),
        }
    }

    /// Submits a write, discard or zeroing. The latter two unmap whole blocks; parts of blocks
    /// become zeroes.
    pub fn submit(&mut self, queue: &mut Queue, request: Box<Request>, extent: Extent) {
        let log = &queue.log;
        if !extent.fits(log.volume.capacity()) {
            queue.completed.push(Completion { request, outcome: Err(Errno::INVAL) });
            return;
        }
        let waiting = log.volume.discards.come_in(request.op);
        let zeroes = !matches!(request.op, Op::Write(_));
        let mut pending = PendingWrite { waiting, ..PendingWrite::new(request, extent, zeroes) };
        // An unmapped block reads as zeroes already. It is left out: by the time the rest is put
        // into a record, another request may have written its other part.
        let known = zeroes && log.unmapped_is_zero();
        let is_zero =
            |partial: &mut Box<PartialBlock>| known && !log.volume.map.get(partial.lba).is_mapped();
        let [first, last] = &mut pending.partials;
        if first.take_if(is_zero).is_some() {
            pending.cursor += 1;
        }
        if last.take_if(is_zero).is_some() {
            pending.end -= 1;
        }
        let index = self.requests.insert(pending);
        self.fetch_partials(queue, index);
    }

    /// Assembles records of the waiting requests, and starts writing them.
    pub fn stage(&mut self, queue: &mut Queue) {
        loop {
            let waits_for_room = self.draft.as_ref().is_some_and(|draft| !draft.only_trims());
            if waits_for_room || self.draft.is_none() && self.may_begin() {
                self.assemble(queue);
            }
            if self.draft.is_none() {
                return;
            }
            match self.place_draft(queue) {
                Step::Done => {}
                Step::Stuck => return,
            }
            if self.load().waits_enough() {
                // The device starts while the next record is copied.
                queue.store.kick();
            }
        }
    }

    /// Fills a draft with waiting requests for the first one's stream, as far as they fit. Requests
    /// that do not suit the draft are left to the next one, and so are requests that overlap those:
    /// writes of one block keep their order. A draft that had to wait takes in requests that came
    /// meanwhile.
    fn assemble(&mut self, queue: &mut Queue) {
        if self.waiting.is_empty() {
            return;
        }
        let mut record = self.draft.take().unwrap_or_else(|| {
            let first = self.waiting.front().map_or(0, |it| self.requests[*it].payload_left());
            self.spare.take(first.max(self.waiting.len() as u64))
        });
        let load = self.load();
        let mut left_out = std::mem::take(&mut self.left_out);
        let mut at = 0;
        while let Some(&index) = self.waiting.get(at) {
            let pending = &mut self.requests[index];
            let suits = record.suits(pending.request.class, self.shape, self.journals_apart);
            let overlaps = |other: &Extent| other.overlaps(pending.extent);
            let overtakes = left_out.iter().any(overlaps) && !mutant("log.gather.overtakes");
            if !suits || overtakes {
                left_out.push(pending.extent);
                at += 1;
                continue;
            }
            if !pending.extent.fits(queue.log.volume.capacity()) {
                // The disk has shrunk meanwhile.
                pending.outcome = Err(Errno::INVAL);
                pending.cursor = pending.end;
            }
            let first = pending.cursor;
            let whole = pending.fill(&mut record, queue);
            let has_share = record.shares.last().is_some_and(|share| share.write == index);
            if pending.cursor > first && !record.content.entries().is_empty() && !has_share {
                pending.shares_left += 1;
                record.shares.push(Share { write: index, first });
            }
            if !whole {
                break;
            }
            self.waiting.remove(at);
            self.finish_if_done(queue, index);
            if load.is_large(record.content.payload().into(), record.shares.len() as u64) {
                break;
            }
        }
        left_out.clear();
        self.left_out = left_out;
        record.content.sum();
        if record.content.entries().is_empty() {
            self.spare.give_back(record);
        } else {
            self.draft = Some(record);
        }
    }

    fn place_draft(&mut self, queue: &mut Queue) -> Step {
        let Some(record) = self.draft.take() else { return Step::Done };
        let is_there = |share: &Share| self.requests[share.write].has_its_memory();
        if !record.shares.iter().all(is_there) && !mutant("log.draft.keeps-lost-data") {
            // The record may hold zeroes in the place of data.
            self.refuse(queue, record, Errno::FAULT);
            return Step::Done;
        }
        let draft = Draft {
            stream: record.stream,
            entries: record.content.entries(),
            payload_blocks: record.content.payload(),
            expected: &record.expected,
            only_trims: record.only_trims(),
        };
        self.refused_at = queue.log.room_made();
        match queue.log.place(&draft, &queue.waker) {
            Ok(Place { record: placed, seal }) => {
                if let Some((seal, entry)) = seal {
                    let mut end = self.spare.take(0);
                    end.stream = record.stream;
                    end.content.push(entry);
                    self.write(queue, end, &seal);
                }
                self.write(queue, record, &placed);
                Step::Done
            }
            Err(PlaceError::Wait) => {
                self.draft = Some(record);
                Step::Stuck
            }
            Err(PlaceError::Stale { lba, in_flight }) => {
                let stale = self.take_apart(record, Some(lba));
                if let Some(committed) = in_flight {
                    self.conflicts_at = committed;
                    self.conflicted.extend(stale);
                } else {
                    stale.into_iter().for_each(|index| self.fetch_partials(queue, index));
                }
                Step::Done
            }
            Err(PlaceError::Full(errno)) => {
                self.refuse(queue, record, errno);
                Step::Done
            }
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
        let tag = Purpose::Record.tag(self.records.insert(record));
        self.being_written += 1;
        queue.store.append(lifetime, at, memory, tag, hints);
    }

    pub fn finish_record(&mut self, queue: &mut Queue, index: usize, outcome: Outcome) {
        let record = &mut self.records[index];
        record.written = true;
        record.failure = outcome.err();
        self.being_written -= 1;
        if let Some(start) = record.start.take() {
            self.device.end(start, queue.log.clock.now());
        }
        queue.log.written(record.sequence, outcome.is_ok(), &queue.waker);
    }

    /// Completes records that have committed, or never will.
    pub fn collect_committed(&mut self, queue: &mut Queue) {
        let ended: Vec<usize> = self
            .records
            .iter()
            .filter(|(_, record)| record.has_ended(&queue.log))
            .map(|(index, _)| index)
            .collect();
        for index in ended {
            let record = self.records.remove(index);
            let committed =
                queue.log.has_committed(record.sequence) || queue.log.give_up(record.sequence);
            let outcome = if committed { Ok(()) } else { Err(record.failure.unwrap_or(Errno::IO)) };
            if committed {
                self.remember_partials(&record);
            }
            for share in &record.shares {
                let pending = &mut self.requests[share.write];
                pending.shares_left -= 1;
                if let Err(errno) = outcome {
                    pending.outcome = Err(errno);
                    pending.cursor = pending.end;
                }
                self.finish_if_done(queue, share.write);
            }
            self.spare.give_back(record);
        }
        if self.has_settled_conflicts(&queue.log) {
            self.conflicts_at = queue.log.commits();
            for index in std::mem::take(&mut self.conflicted) {
                self.fetch_partials(queue, index);
            }
        }
    }

    /// Caches partial blocks: the guest is likely to return to them.
    fn remember_partials(&mut self, record: &PendingRecord) {
        if record.expected.is_empty() {
            return;
        }
        for (number, (lba, checksum, content)) in (1..).zip(record.content.data()) {
            if record.expected.iter().any(|(partial, _)| *partial == lba) {
                let map_entry = MapEntry::new(record.address.forward(number), checksum);
                self.recent.put(lba, map_entry, content);
            }
        }
    }

    fn finish_if_done(&mut self, queue: &mut Queue, index: usize) {
        let pending = &self.requests[index];
        if pending.cursor < pending.end || pending.shares_left > 0 || pending.partials_missing > 0 {
            return;
        }
        if pending.outcome.is_err() {
            self.waiting.retain(|waiting| *waiting != index);
            self.conflicted.retain(|conflicted| *conflicted != index);
        }
        let PendingWrite { request, waiting, outcome, .. } = self.requests.remove(index);
        drop(waiting);
        let durable = request.durable;
        let completion = Completion { request, outcome };
        if durable && outcome.is_ok() && !mutant("log.write-through.skips-sync") {
            queue.take_flush(completion);
        } else {
            queue.completed.push(completion);
        }
    }

    /// Returns whether another thread has made progress that a request waits for.
    pub fn can_advance(&self, log: &Log) -> bool {
        self.records.iter().any(|(_, record)| record.has_ended(log))
            || self.draft.is_some() && log.room_made() != self.refused_at
            || self.has_settled_conflicts(log)
    }

    /// Returns whether a record that conflicting requests wait for may have committed, or no record
    /// ever will: then they are refused a place, with the actual error.
    fn has_settled_conflicts(&self, log: &Log) -> bool {
        let waits_on = mutant("log.conflict.waits-for-a-commit-only");
        !self.conflicted.is_empty()
            && (log.commits() != self.conflicts_at || log.has_stopped() && !waits_on)
    }

    /// Returns whether a record of this queue is being written.
    pub fn in_flight(&self) -> bool {
        self.being_written > 0
    }

    /// Gives up the records of a queue that is being dropped: no request waits for them any more.
    pub fn abandon(&mut self, log: &Log) {
        for record in self.records.drain() {
            if !log.has_committed(record.sequence) {
                log.give_up(record.sequence);
            }
        }
    }
}
