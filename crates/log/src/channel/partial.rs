//! Content of partial blocks: the rest of a block of which a guest writes only a part. It is read
//! before the block goes into a record, and again if it has changed by then.

use std::ops::Range;

use flowstone_block::{AlignedBuf, Errno, Extent, IoVec, Outcome, Request};
use flowstone_fileio::MemoryList;
use flowstone_image::is_zero;
use flowstone_log_format::{BLOCK_BYTES, BLOCK_SECTORS, Entry, MapEntry};
use flowstone_log_store::Hints;

use super::records::PendingRecord;
use super::{Purpose, Queue};

/// Maximum number of reads of a block that does not match its checksum.
const TRIES_MAX: u32 = 2;

/// The first and the last block of a request, as far as only a part of it changes.
pub struct Partials {
    blocks: [Option<Box<PartialBlock>>; 2],
    /// Number of reads in flight.
    missing: u32,
}

/// A block of which a request changes a part.
pub struct PartialBlock {
    lba: u64,
    /// Map entry with which `content` was read; `None` until then.
    expected: Option<MapEntry>,
    /// The block before the write; all zeroes where it was not mapped.
    content: AlignedBuf,
    memory: [IoVec; 1],
    /// Map entry with which the read in flight was started.
    reading: MapEntry,
    tries: u32,
}

/// State of the content of a partial block before the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Old {
    Known,
    /// A read is in flight.
    Coming,
    Lost(Errno),
}

impl PartialBlock {
    fn new(lba: u64) -> Box<Self> {
        let mut content = AlignedBuf::zeroed(BLOCK_BYTES);
        // SAFETY: the buffer lives beside the piece, and its memory does not move.
        let memory = [unsafe { IoVec::of(&mut content) }];
        let reading = MapEntry::UNMAPPED;
        Box::new(Self { lba, expected: None, content, memory, reading, tries: 0 })
    }

    /// Looks the old content up, and reads it if necessary; the read has this tag.
    fn fetch(&mut self, queue: &mut Queue, recent: &PartialCache, tag: usize) -> Old {
        let map_entry = queue.volume.map.get(self.lba);
        if !map_entry.is_mapped() {
            self.content.fill(0);
        } else if let Some(content) = recent.get(self.lba, map_entry) {
            self.content.copy_from_slice(content);
        } else {
            return self.read(queue, map_entry, tag);
        }
        self.expected = Some(map_entry);
        Old::Known
    }

    fn read(&mut self, queue: &mut Queue, map_entry: MapEntry, tag: usize) -> Old {
        self.reading = map_entry;
        self.tries += 1;
        // SAFETY: the partial block is boxed and stays with its request until the read completes.
        let memory = unsafe { MemoryList::new(&self.memory) };
        queue.store.read(map_entry.address(), memory, Purpose::Partial.tag(tag), Hints::default());
        Old::Coming
    }

    /// Takes the outcome of the read with this tag. The old content does not matter if the write is
    /// `covering` all that the disk has of the block.
    fn finish(&mut self, queue: &mut Queue, tag: usize, outcome: Outcome, covering: bool) -> Old {
        let fits = crc32c::crc32c(&self.content) == self.reading.checksum();
        let map_entry = queue.volume.map.get(self.lba);
        let gone = map_entry == self.reading && self.tries >= TRIES_MAX;
        if outcome.is_ok() && fits {
            self.expected = Some(self.reading);
            return Old::Known;
        }
        if !map_entry.is_mapped() || gone && covering {
            self.content.fill(0);
            self.expected = Some(map_entry);
            return Old::Known;
        }
        if gone {
            queue.volume.report_damage(
                &queue.log.name,
                self.lba,
                map_entry,
                "a part of a block is written and the rest is unreadable",
            );
            self.expected = Some(map_entry);
            return Old::Lost(outcome.err().unwrap_or(Errno::IO));
        }
        if map_entry != self.reading {
            self.tries = 0;
        }
        self.read(queue, map_entry, tag)
    }

    /// Returns the byte range of the block that lies in an extent.
    fn part_of(&self, extent: Extent) -> Range<usize> {
        let block = self.lba * BLOCK_SECTORS;
        let from = extent.start().get().max(block) - block;
        let to = extent.end().get().min(block + BLOCK_SECTORS) - block;
        from as usize * 512..to as usize * 512
    }

    /// Adds the block to a record: the old content with the part that a request of this extent
    /// changes, to its data at an offset, or to zeroes.
    pub fn put(&self, record: &mut PendingRecord, extent: Extent, data: Option<(&Request, usize)>) {
        let lba = self.lba;
        let part = self.part_of(extent);
        let mentioned = record.content.mentions(lba);
        let leaves_nothing = mentioned.is_none()
            && data.is_none()
            && is_zero(&self.content[..part.start])
            && is_zero(&self.content[part.end..]);
        if leaves_nothing {
            record.content.push(Entry::Trim { lba, count: 1 });
            record.trimmed += 1;
            record.expected.push((lba, self.expected.unwrap_or_default()));
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
                    target.copy_from_slice(&self.content);
                    record.expected.push((lba, self.expected.unwrap_or_default()));
                }
            }
            block
        };
        let target = &mut record.content.block(block)[part];
        match data {
            Some((request, at)) => request.copy_out(at, target),
            None => target.fill(0),
        }
    }
}

impl Partials {
    /// Those of a request that changes this extent.
    pub fn of(extent: Extent) -> Self {
        let (start, end) = (extent.start().get(), extent.end().get());
        let (first, after) = (start / BLOCK_SECTORS, end.div_ceil(BLOCK_SECTORS));
        // A disk that ends inside a block counts too: it may grow before the block gets its place.
        let open_end = !end.is_multiple_of(BLOCK_SECTORS);
        let open_start = !start.is_multiple_of(BLOCK_SECTORS);
        let single = after == first + 1;
        let blocks = [
            (open_start || single && open_end).then(|| PartialBlock::new(first)),
            (open_end && !single).then(|| PartialBlock::new(after - 1)),
        ];
        Self { blocks, missing: 0 }
    }

    /// Leaves out those for which `is_zero`. Returns whether the first and the last are left out.
    pub fn leave_out(&mut self, is_zero: impl Fn(u64) -> bool) -> [bool; 2] {
        let is_left_out = |block: &mut Option<Box<PartialBlock>>| {
            block.take_if(|partial| is_zero(partial.lba)).is_some()
        };
        self.blocks.each_mut().map(is_left_out)
    }

    pub fn is_any(&self) -> bool {
        self.blocks.iter().any(Option::is_some)
    }

    /// Returns a partial block.
    pub fn get(&self, lba: u64) -> Option<&PartialBlock> {
        self.blocks.iter().flatten().find(|partial| partial.lba == lba).map(|partial| &**partial)
    }

    /// Returns the last block of the request, if it is partial and not its first.
    pub fn last(&self) -> Option<u64> {
        self.blocks[1].as_ref().map(|partial| partial.lba)
    }

    /// Returns whether the old content of all is known.
    pub const fn are_known(&self) -> bool {
        self.missing == 0
    }

    /// Looks up the old content that is not known. Reads are tagged for this request. Returns
    /// whether all of it is known.
    pub fn fetch(&mut self, queue: &mut Queue, recent: &PartialCache, request: usize) -> bool {
        self.missing = 0;
        for (number, block) in self.blocks.iter_mut().enumerate() {
            if let Some(partial) = block.as_mut().filter(|partial| partial.expected.is_none()) {
                let old = partial.fetch(queue, recent, request * 2 + number);
                self.missing += u32::from(old == Old::Coming);
            }
        }
        self.are_known()
    }

    /// Returns the request for which the read with this tag was made.
    pub const fn request_of(tag: usize) -> usize {
        tag / 2
    }

    /// Takes the outcome of the read with this tag, for a request that changes this extent.
    pub fn finish(
        &mut self,
        queue: &mut Queue,
        tag: usize,
        outcome: Outcome,
        extent: Extent,
    ) -> Old {
        let Some(partial) = &mut self.blocks[tag % 2] else { return Old::Coming };
        // The write covers all that the disk has of its last block: no old content is kept.
        let covering = extent.end().get() == queue.volume.capacity().get()
            && extent.start().get() <= partial.lba * BLOCK_SECTORS;
        let old = partial.finish(queue, tag, outcome, covering);
        self.missing -= u32::from(old != Old::Coming);
        old
    }

    /// Forgets the old content of a block, if it is one of these: it has changed since.
    pub fn forget(&mut self, lba: u64) -> bool {
        let mut blocks = self.blocks.iter_mut().flatten();
        let Some(partial) = blocks.find(|partial| partial.lba == lba) else { return false };
        partial.expected = None;
        partial.tries = 0;
        true
    }
}

/// Recently written partial blocks. A guest that writes less than a block at a time returns to the
/// same block, and need not wait for a read.
///
/// An entry is valid as long as the map holds the map entry that it was stored with.
#[derive(Default)]
pub struct PartialCache {
    entries: Vec<(u64, MapEntry, Box<[u8; BLOCK_BYTES]>)>,
    next: usize,
}

/// Number of cached blocks: a megabyte per queue would help little more.
const ENTRIES_MAX: usize = 32;

impl PartialCache {
    fn get(&self, lba: u64, map_entry: MapEntry) -> Option<&[u8; BLOCK_BYTES]> {
        let is_it = |entry: &&(u64, MapEntry, Box<[u8; BLOCK_BYTES]>)| {
            entry.0 == lba && entry.1 == map_entry
        };
        self.entries.iter().find(is_it).map(|(_, _, content)| &**content)
    }

    /// Keeps the partial blocks of a record that has committed.
    pub fn keep(&mut self, record: &PendingRecord) {
        if record.expected.is_empty() {
            return;
        }
        for (number, (lba, checksum, content)) in (1..).zip(record.content.data()) {
            if record.expected.iter().any(|(partial, _)| *partial == lba) {
                self.put(lba, MapEntry::new(record.address.forward(number), checksum), content);
            }
        }
    }

    fn put(&mut self, lba: u64, map_entry: MapEntry, content: &[u8]) {
        let slot = match self.entries.iter().position(|entry| entry.0 == lba) {
            Some(slot) => slot,
            None if self.entries.len() < ENTRIES_MAX => {
                self.entries.push((lba, map_entry, Box::new([0; BLOCK_BYTES])));
                self.entries.len() - 1
            }
            None => {
                self.next = (self.next + 1) % ENTRIES_MAX;
                self.next
            }
        };
        let entry = &mut self.entries[slot];
        (entry.0, entry.1) = (lba, map_entry);
        entry.2.copy_from_slice(content);
    }
}
