//! Requests of a queue that change blocks, from arrival to completion.
//!
//! A request waits until the rest of its partial blocks has been read. Then its blocks are gathered
//! into a draft of a record, together with those of other requests. It is done when every record
//! that carries a share of it has committed.

#[cfg(test)]
use std::collections::BTreeSet;
use std::collections::VecDeque;

use flowstone_block::{Class, Completion, Errno, Extent, Op, Outcome, Request, is_whole, mutated};
#[cfg(test)]
use flowstone_image::Wait;
use flowstone_image::runtime::discards::Waiting;
use flowstone_log_format::{BLOCK_BYTES, BLOCK_SECTORS, Entry, Sequence, Shape, TRIM_BLOCKS_MAX};
use slab::Slab;

use super::super::log::Log;
use super::super::log::append::PlaceError;
use super::Queue;
use super::pace::{Amount, Load};
use super::partial::{Old, PartialCache, Partials};
use super::records::{PendingRecord, Share};

/// Maximum number of blocks that all trim entries of a record cover: they are unmapped under the
/// lock.
const RECORD_TRIM_BLOCKS_MAX: u64 = 1 << 17;

/// A request that changes blocks.
struct PendingWrite {
    request: Box<Request>,
    /// Counts it as a waiting discard, if it is one.
    waiting: Option<Waiting>,
    /// Whether zeroes are written instead of the request's memory.
    zeroes: bool,
    /// Sectors that change, and the end of their blocks.
    extent: Extent,
    end: u64,
    /// First block that is in no record yet.
    cursor: u64,
    partials: Partials,
    /// Records in flight that carry a share of it.
    shares_left: u32,
    outcome: Outcome,
}

/// See the module.
pub struct Writes {
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
    /// Committed sequence number when conflicts were last looked at.
    conflicts_at: Sequence,
    recent: PartialCache,
}

impl Writes {
    pub fn new(shape: Shape, journals_apart: bool) -> Self {
        Self {
            shape,
            journals_apart,
            requests: Slab::new(),
            waiting: VecDeque::new(),
            left_out: Vec::new(),
            conflicted: Vec::new(),
            conflicts_at: Sequence::default(),
            recent: PartialCache::default(),
        }
    }

    /// Submits a write, discard or zeroing. The latter two unmap whole blocks; parts of blocks
    /// become zeroes.
    pub fn submit(&mut self, queue: &mut Queue, request: Box<Request>, extent: Extent) {
        let volume = &queue.volume;
        if !extent.fits(volume.capacity()) {
            queue.completed.push(Completion { request, outcome: Err(Errno::INVAL) });
            return;
        }
        let waiting = volume.discards.come_in(request.op);
        let zeroes = !matches!(request.op, Op::Write(_));
        let mut pending = PendingWrite {
            request,
            waiting,
            zeroes,
            extent,
            end: extent.end().get().div_ceil(BLOCK_SECTORS),
            cursor: extent.start().get() / BLOCK_SECTORS,
            partials: Partials::of(extent),
            shares_left: 0,
            outcome: Ok(()),
        };
        // An unmapped block reads as zeroes already. It is left out: by the time the rest is put
        // into a record, another request may have written its other part.
        let known = zeroes && queue.log.unmapped_is_zero();
        let is_zero = |lba| known && !volume.map.get(lba).is_mapped();
        let [first, last] = pending.partials.leave_out(is_zero);
        pending.cursor += u64::from(first);
        pending.end -= u64::from(last);
        let index = self.requests.insert(pending);
        self.fetch_partials(queue, index);
    }

    /// Reads the rest of the partial blocks of a request.
    fn fetch_partials(&mut self, queue: &mut Queue, index: usize) {
        if self.requests[index].partials.fetch(queue, &self.recent, index) {
            self.waiting.push_back(index);
        }
    }

    /// Takes the outcome of a read of the rest of a partial block.
    pub fn finish_partial(&mut self, queue: &mut Queue, tag: usize, outcome: Outcome) {
        let index = Partials::request_of(tag);
        let pending = &mut self.requests[index];
        match pending.partials.finish(queue, tag, outcome, pending.extent) {
            Old::Known => {}
            Old::Coming => return,
            Old::Lost(errno) => {
                // The other partial block may still be in flight: the request ends when nothing is.
                pending.outcome = Err(errno);
                pending.cursor = pending.end;
            }
        }
        if pending.partials.are_known() {
            self.waiting.push_back(index);
        }
    }

    /// Returns whether a request waits to be put into a record.
    pub fn is_any_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the amount that waits to be put into records.
    pub fn waiting(&self) -> Amount {
        let waiting = self.waiting.iter().map(|index| &self.requests[*index]);
        let blocks = waiting.map(|pending| pending.end - pending.cursor).sum();
        Amount { blocks, requests: self.waiting.len() as u64 }
    }

    /// Returns about how many blocks the next draft will have.
    pub fn next_blocks(&self) -> u64 {
        let first = self.waiting.front().map_or(0, |it| self.requests[*it].payload_left());
        first.max(self.waiting.len() as u64)
    }

    /// Fills a draft with waiting requests for the first one's stream, as far as they fit. Requests
    /// that do not suit the draft are left to the next one, and so are requests that overlap those:
    /// writes of one block keep their order. A draft that had to wait takes in requests that came
    /// meanwhile.
    pub fn gather(&mut self, queue: &mut Queue, record: &mut PendingRecord, load: Load) {
        let mut left_out = std::mem::take(&mut self.left_out);
        let mut at = 0;
        while let Some(&index) = self.waiting.get(at) {
            let pending = &mut self.requests[index];
            let suits = record.suits(pending.request.class, self.shape, self.journals_apart);
            let overlaps = |other: &Extent| other.overlaps(pending.extent);
            let must_wait = left_out.iter().any(overlaps);
            let must_wait = mutated("log.gather.overtakes", must_wait, false);
            if !suits || must_wait {
                left_out.push(pending.extent);
                at += 1;
                continue;
            }
            if !pending.extent.fits(queue.volume.capacity()) {
                // The disk has shrunk meanwhile.
                pending.outcome = Err(Errno::INVAL);
                pending.cursor = pending.end;
            }
            let first = pending.cursor;
            let whole = pending.fill(record, queue);
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
            let blocks = record.content.payload().into();
            if load.is_large(Amount { blocks, requests: record.shares.len() as u64 }) {
                break;
            }
        }
        left_out.clear();
        self.left_out = left_out;
        record.content.sum();
    }

    /// Returns whether the copies of memory in a draft are valid. Otherwise it may hold zeroes in
    /// the place of data.
    pub fn have_their_memory(&self, draft: &PendingRecord) -> bool {
        let is_there = |share: &Share| is_whole(&self.requests[share.write].request.memory);
        let are_there = draft.shares.iter().all(is_there);
        mutated("log.draft.keeps-lost-data", are_there, true)
    }

    /// Ends the shares of a record that has committed, or never will.
    pub fn end_shares(&mut self, queue: &mut Queue, record: &PendingRecord, outcome: Outcome) {
        if outcome.is_ok() {
            // The guest is likely to return to its partial blocks.
            self.recent.keep(record);
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
    }

    fn finish_if_done(&mut self, queue: &mut Queue, index: usize) {
        let pending = &self.requests[index];
        if pending.cursor < pending.end || pending.shares_left > 0 || !pending.partials.are_known()
        {
            return;
        }
        if pending.outcome.is_err() {
            self.waiting.retain(|waiting| *waiting != index);
            self.conflicted.retain(|conflicted| *conflicted != index);
        }
        let PendingWrite { request, waiting, outcome, .. } = self.requests.remove(index);
        drop(waiting);
        let durable = mutated("log.write-through.skips-sync", request.durable, false);
        let completion = Completion { request, outcome };
        if durable && outcome.is_ok() {
            queue.take_flush(completion);
        } else {
            queue.completed.push(completion);
        }
    }

    /// Takes apart a draft that gets no place.
    pub fn take_back(&mut self, queue: &mut Queue, draft: &mut PendingRecord, why: PlaceError) {
        match why {
            PlaceError::Stale { lba, in_flight } => {
                let stale = self.take_apart(draft, Some(lba));
                if let Some(committed) = in_flight {
                    self.conflicts_at = committed;
                    self.conflicted.extend(stale);
                } else {
                    stale.into_iter().for_each(|index| self.fetch_partials(queue, index));
                }
            }
            PlaceError::Full(errno) => self.refuse(queue, draft, errno),
            PlaceError::Wait => {}
        }
    }

    /// Undoes a draft: its requests wait again, in order, except those with block `stale`, which
    /// has changed since it was read. These are returned.
    fn take_apart(&mut self, draft: &mut PendingRecord, stale: Option<u64>) -> Vec<usize> {
        let mut again = Vec::new();
        while let Some(Share { write, first }) = draft.shares.pop() {
            let pending = &mut self.requests[write];
            pending.cursor = first;
            pending.shares_left -= 1;
            // A part of the request is in the draft, and the rest waits.
            self.waiting.retain(|waiting| *waiting != write);
            if stale.is_some_and(|lba| pending.partials.forget(lba)) {
                again.push(write);
            } else {
                self.waiting.push_front(write);
            }
        }
        again
    }

    /// Refuses a draft for lack of room: requests that need room fail; requests that free some go
    /// on.
    fn refuse(&mut self, queue: &mut Queue, draft: &mut PendingRecord, errno: Errno) {
        let shares: Vec<usize> = draft.shares.iter().map(|share| share.write).collect();
        self.take_apart(draft, None);
        for index in shares {
            let pending = &mut self.requests[index];
            // Partial blocks that become zeroes are written.
            if draft.only_trims() || !pending.zeroes || pending.partials.is_any() {
                pending.outcome = Err(errno);
                pending.cursor = pending.end;
                self.finish_if_done(queue, index);
            }
        }
    }

    /// Reads the blocks of conflicting requests again, once what they wait for may have committed.
    pub fn settle_conflicts(&mut self, queue: &mut Queue) {
        if self.has_settled_conflicts(&queue.log) {
            self.conflicts_at = queue.log.commits();
            for index in std::mem::take(&mut self.conflicted) {
                self.fetch_partials(queue, index);
            }
        }
    }

    /// Returns whether a record that conflicting requests wait for may have committed, or no record
    /// ever will: then they are refused a place, with the actual error.
    pub fn has_settled_conflicts(&self, log: &Log) -> bool {
        let has_stopped =
            || mutated("log.conflict.waits-for-a-commit-only", log.has_stopped(), false);
        !self.conflicted.is_empty() && (log.commits() != self.conflicts_at || has_stopped())
    }

    /// Adds the states in which requests wait.
    #[cfg(test)]
    pub fn waits(&self, has_draft: bool, waits: &mut BTreeSet<Wait>) {
        let reads = self.requests.iter().any(|(_, request)| !request.partials.are_known());
        if reads || self.is_any_waiting() && !has_draft {
            waits.insert(Wait::Host);
        }
        if !self.conflicted.is_empty() {
            waits.insert(Wait::Conflict);
        }
    }
}

impl PendingWrite {
    /// Returns the number of blocks whose content is in no record yet.
    const fn payload_left(&self) -> u64 {
        if self.zeroes { 0 } else { self.end.saturating_sub(self.cursor) }
    }

    /// Returns the offset of a block's changed part in the request's memory.
    fn memory_at(&self, lba: u64) -> usize {
        let start = self.extent.start().get();
        ((lba * BLOCK_SECTORS).saturating_sub(start) * 512) as usize
    }

    /// Adds blocks to the record from the cursor on; returns whether all of them are in records.
    fn fill(&mut self, record: &mut PendingRecord, queue: &Queue) -> bool {
        record.only_journal &= self.request.class == Class::Journal;
        while self.cursor < self.end {
            if record.content.room() == 0 {
                return false;
            }
            let lba = self.cursor;
            if let Some(partial) = self.partials.get(lba) {
                let data = (!self.zeroes).then(|| (&*self.request, self.memory_at(lba)));
                partial.put(record, self.extent, data);
                self.cursor += 1;
            } else if self.zeroes {
                if !self.put_trim(record, queue) {
                    return false;
                }
            } else {
                self.put_run(record);
            }
        }
        true
    }

    /// Adds as many consecutive whole blocks as there are and fit.
    fn put_run(&mut self, record: &mut PendingRecord) {
        let last_partial = self.partials.last().unwrap_or(self.end);
        let count = (last_partial - self.cursor).min(record.content.room().into());
        let (first, after) = (self.cursor, self.cursor + count);
        let (at, bytes) = (self.memory_at(first), self.extent.bytes() as usize);
        record.content.push_run(first..after, |number, block| {
            let from = at + number * BLOCK_BYTES;
            // Only the last block of a disk can be shorter than a block.
            let (given, missing) = block.split_at_mut((bytes - from).min(BLOCK_BYTES));
            self.request.copy_out(from, given);
            missing.fill(0);
        });
        self.cursor = after;
    }

    /// Adds the next mapped part of the range, if any; returns whether the record had room.
    fn put_trim(&mut self, record: &mut PendingRecord, queue: &Queue) -> bool {
        let end = self.partials.last().unwrap_or(self.end);
        let lba = match queue.log.unmapped_is_zero() {
            true => queue.volume.map.next_mapped(self.cursor..end),
            false => (self.cursor < end).then_some(self.cursor),
        };
        let Some(lba) = lba else {
            self.cursor = end;
            return true;
        };
        if record.trimmed >= RECORD_TRIM_BLOCKS_MAX {
            return false;
        }
        let count = (end - lba).min(TRIM_BLOCKS_MAX.into());
        record.content.push(Entry::Trim { lba, count: count as u32 });
        record.trimmed += count;
        self.cursor = lba + count;
        true
    }
}
