//! A request that changes blocks: tracks the part of it that is in records, and fills the rest into
//! the next.

use flowstone_block::{Class, Extent, Outcome, Request, is_whole};
use flowstone_image::is_zero;
use flowstone_image::runtime::discards::Waiting;
use flowstone_log_format::{BLOCK_BYTES, BLOCK_SECTORS, Entry, TRIM_BLOCKS_MAX};

use super::Queue;
use super::partial::PartialBlock;
use super::pending_record::PendingRecord;

/// Maximum number of blocks that all trim entries of a record cover: they are unmapped under the
/// lock.
const RECORD_TRIM_BLOCKS_MAX: u64 = 1 << 17;

/// A request that changes blocks.
pub struct PendingWrite {
    pub request: Box<Request>,
    /// Counts it as a waiting discard, if it is one.
    pub waiting: Option<Waiting>,
    /// Whether zeroes are written instead of the request's memory.
    pub zeroes: bool,
    /// Sectors that change, and the end of their blocks.
    pub extent: Extent,
    pub end: u64,
    /// First block that is in no record yet.
    pub cursor: u64,
    /// The first and the last block, if only a part of it changes.
    pub partials: [Option<Box<PartialBlock>>; 2],
    pub partials_missing: u32,
    /// Records in flight that carry a share of it.
    pub shares_left: u32,
    pub outcome: Outcome,
}

impl PendingWrite {
    /// Returns the number of blocks whose content is in no record yet.
    pub const fn payload_left(&self) -> u64 {
        if self.zeroes { 0 } else { self.end.saturating_sub(self.cursor) }
    }

    pub fn new(request: Box<Request>, extent: Extent, zeroes: bool) -> Self {
        let (start, end) = (extent.start().get(), extent.end().get());
        let cursor = start / BLOCK_SECTORS;
        let end_block = end.div_ceil(BLOCK_SECTORS);
        // A disk that ends inside a block counts too: it may grow before the block gets its place.
        let open_end = !end.is_multiple_of(BLOCK_SECTORS);
        let open_start = !start.is_multiple_of(BLOCK_SECTORS);
        let single = end_block == cursor + 1;
        let first = (open_start || single && open_end).then(|| PartialBlock::new(cursor));
        let last = (open_end && !single).then(|| PartialBlock::new(end_block - 1));
        Self {
            request,
            waiting: None,
            zeroes,
            extent,
            end: end_block,
            cursor,
            partials: [first, last],
            partials_missing: 0,
            shares_left: 0,
            outcome: Ok(()),
        }
    }

    /// Returns whether it may add data: partial blocks that become zeroes are written.
    pub fn brings_data(&self) -> bool {
        !self.zeroes || self.partials.iter().any(Option::is_some)
    }

    /// Returns the byte range of a block that changes.
    fn part_of(&self, lba: u64) -> std::ops::Range<usize> {
        let block = lba * BLOCK_SECTORS;
        let from = self.extent.start().get().max(block) - block;
        let to = self.extent.end().get().min(block + BLOCK_SECTORS) - block;
        from as usize * 512..to as usize * 512
    }

    /// Returns the offset of a block's changed part in the request's memory.
    fn memory_at(&self, lba: u64) -> usize {
        let start = self.extent.start().get();
        ((lba * BLOCK_SECTORS).saturating_sub(start) * 512) as usize
    }

    /// Adds blocks to the record from the cursor on; returns whether all of them are in records.
    pub fn fill(&mut self, record: &mut PendingRecord, queue: &Queue) -> bool {
        record.only_journal &= self.request.class == Class::Journal;
        while self.cursor < self.end {
            if record.content.room() == 0 {
                return false;
            }
            let lba = self.cursor;
            let partial = self.partials.iter().flatten().find(|partial| partial.lba == lba);
            if let Some(partial) = partial {
                self.put_part(record, partial);
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

    /// Adds a partial block: its old content, overlaid with the new part.
    fn put_part(&self, record: &mut PendingRecord, partial: &PartialBlock) {
        let lba = partial.lba;
        let mentioned = record.content.mentions(lba);
        let part = self.part_of(lba);
        let leaves_nothing = mentioned.is_none()
            && self.zeroes
            && is_zero(&partial.content[..part.start])
            && is_zero(&partial.content[part.end..]);
        if leaves_nothing {
            record.content.push(Entry::Trim { lba, count: 1 });
            record.trimmed += 1;
            record.expected.push((lba, partial.expected.unwrap_or_default()));
            return;
        }
        let block = if let Some(Some(block)) = mentioned {
            block
        } else {
            let block = record.content.payload();
            let target = record.content.push(Entry::Data { lba, checksum: 0 });
            match mentioned {
                Some(_) => target.fill(0),
                None => {
                    target.copy_from_slice(&partial.content);
                    record.expected.push((lba, partial.expected.unwrap_or_default()));
                }
            }
            block
        };
        let target = &mut record.content.block(block)[part];
        if self.zeroes {
            target.fill(0);
        } else {
            self.request.copy_out(self.memory_at(lba), target);
        }
    }

    /// Adds as many consecutive whole blocks as there are and fit.
    fn put_run(&mut self, record: &mut PendingRecord) {
        let last_partial = self.partials[1].as_ref().map_or(self.end, |partial| partial.lba);
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

    /// Returns whether the copy of its memory is valid: no part of that memory is broken.
    pub fn has_its_memory(&self) -> bool {
        is_whole(&self.request.memory)
    }

    /// Adds the next mapped part of the range, if any; returns whether the record had room.
    fn put_trim(&mut self, record: &mut PendingRecord, queue: &Queue) -> bool {
        let end = self.partials[1].as_ref().map_or(self.end, |partial| partial.lba);
        let lba = match queue.log.unmapped_is_zero() {
            true => queue.log.volume.map.next_mapped(self.cursor..end),
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
