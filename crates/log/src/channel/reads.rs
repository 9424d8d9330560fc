//! Reads: splits a request into parts, and verifies the data that was read.
//!
//! A part is a run of whole blocks that are consecutive in the file and are read straight into the
//! guest's memory, or one block of which the guest wants a piece, read into a bounce buffer. Every
//! block is checked against the checksum that its map entry had at the lookup. On a mismatch the
//! map is read again: the block may have moved meanwhile, and its address been reused. If the entry
//! is unchanged, the block is read once more into a bounce buffer, since the guest may have changed
//! its memory; if that fails too, the block is damaged.

use std::ops::Range;

use flowstone_block::{
    AlignedBuf, Class, Completion, Errno, Extent, IoVec, Outcome, Request, mutated,
};
use flowstone_fileio::MemoryList;
use flowstone_log_format::{Address, BLOCK_BYTES, BLOCK_SECTORS, MapEntry};
use flowstone_log_store::Hints;
use slab::Slab;

use super::verify::blocks_match;
use super::{Purpose, Queue};

#[derive(Default)]
pub struct Reads {
    requests: Slab<Reading>,
    parts: Slab<ReadPart>,
    /// Finished parts, whose lists are reused.
    spare: Vec<BlockRun>,
}

struct Reading {
    request: Box<Request>,
    parts_left: u32,
    outcome: Outcome,
}

/// A part of a read in flight.
struct ReadPart {
    reading: usize,
    kind: PartKind,
}

enum PartKind {
    Run(BlockRun),
    Single(Box<Single>),
}

/// Whole blocks, consecutive in the guest and in the file.
#[derive(Default)]
struct BlockRun {
    lba: u64,
    /// Offset of the first block in the request's memory.
    at: usize,
    map_entries: Vec<MapEntry>,
    pieces: Vec<IoVec>,
}

/// One block, read into a bounce buffer.
struct Single {
    lba: u64,
    map_entry: MapEntry,
    /// Wanted range of the block, and its offset in the request's memory.
    wanted: Range<usize>,
    at: usize,
    buffer: AlignedBuf,
    memory: [IoVec; 1],
    /// Number of reads with this map entry.
    tries: u32,
}

const TRIES_MAX: u32 = 2;

impl Reads {
    #[cfg(test)]
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }

    pub fn submit(&mut self, queue: &mut Queue, request: Box<Request>, extent: Extent) {
        queue.volume.resorting.note_read();
        let index = self.requests.insert(Reading { request, parts_left: 1, outcome: Ok(()) });
        self.plan(queue, index, extent);
        self.part_done(queue, index, Ok(()));
    }

    /// Splits the request into parts and starts them.
    fn plan(&mut self, queue: &mut Queue, index: usize, extent: Extent) {
        let (start, end) = (extent.start().get(), extent.end().get());
        let block_start = |lba: u64| lba * BLOCK_SECTORS;
        let mut run: Option<BlockRun> = None;
        for lba in start / BLOCK_SECTORS..end.div_ceil(BLOCK_SECTORS) {
            let map_entry = queue.volume.map.get(lba);
            let (from, to) = (start.max(block_start(lba)), end.min(block_start(lba + 1)));
            let at = ((from - start) * 512) as usize;
            let bytes = ((to - from) * 512) as usize;
            if !map_entry.is_mapped() {
                self.requests[index].request.fill_zero(at..at + bytes);
            } else if bytes < BLOCK_BYTES {
                let skip = ((from - block_start(lba)) * 512) as usize;
                self.start_single(queue, index, lba, map_entry, skip..skip + bytes, at);
            } else if let Some(run) =
                run.as_mut().filter(|run| run.goes_on(lba, map_entry.address()))
            {
                run.map_entries.push(map_entry);
            } else {
                let mut next = self.spare.pop().unwrap_or_default();
                next.begin(lba, at, map_entry);
                if let Some(finished) = run.replace(next) {
                    self.start_run(queue, index, finished);
                }
            }
        }
        if let Some(last) = run {
            self.start_run(queue, index, last);
        }
    }

    fn start_run(&mut self, queue: &mut Queue, index: usize, mut run: BlockRun) {
        let reading = &mut self.requests[index];
        reading.parts_left += 1;
        let bytes = run.map_entries.len() * BLOCK_BYTES;
        run.pieces.clear();
        reading.request.for_each_piece(run.at..run.at + bytes, |piece| run.pieces.push(piece));
        let hints = Hints::of_journal(reading.request.class == Class::Journal);
        let from = run.map_entries[0].address();
        // SAFETY: the list stays in the slab, its heap memory unmoved, until the completion.
        let memory = unsafe { MemoryList::new(&run.pieces) };
        let tag = self.parts.insert(ReadPart { reading: index, kind: PartKind::Run(run) });
        queue.store.read(from, memory, Purpose::Read.tag(tag), hints);
    }

    fn start_single(
        &mut self,
        queue: &mut Queue,
        index: usize,
        lba: u64,
        map_entry: MapEntry,
        wanted: Range<usize>,
        at: usize,
    ) {
        self.requests[index].parts_left += 1;
        let mut buffer = AlignedBuf::zeroed(BLOCK_BYTES);
        // SAFETY: the buffer lives beside the piece until the completion.
        let memory = [unsafe { IoVec::of(&mut buffer) }];
        let single = Box::new(Single { lba, map_entry, wanted, at, buffer, memory, tries: 0 });
        self.read_single(queue, index, single);
    }

    fn read_single(&mut self, queue: &mut Queue, reading: usize, mut single: Box<Single>) {
        single.tries += 1;
        let from = single.map_entry.address();
        // SAFETY: the box stays in the slab until the completion; what it holds does not move.
        let memory = unsafe { MemoryList::new(&single.memory) };
        let tag = self.parts.insert(ReadPart { reading, kind: PartKind::Single(single) });
        queue.store.read(from, memory, Purpose::Read.tag(tag), Hints::default());
    }

    pub fn finish(&mut self, queue: &mut Queue, part: usize, outcome: Outcome) {
        let ReadPart { reading, kind } = self.parts.remove(part);
        let verdict = match kind {
            PartKind::Run(run) => {
                let fits = || {
                    let fits = blocks_match(&run.pieces, &run.map_entries);
                    mutated("log.read.data-unchecked", fits, true)
                };
                if outcome.is_err() || !fits() {
                    self.read_one_by_one(queue, reading, &run);
                }
                self.spare.push(run);
                Ok(())
            }
            PartKind::Single(single) => self.finish_single(queue, reading, single, outcome),
        };
        self.part_done(queue, reading, verdict);
    }

    /// After a failure in a run: looks up and reads each of its blocks alone.
    fn read_one_by_one(&mut self, queue: &mut Queue, reading: usize, run: &BlockRun) {
        for (index, map_entry) in run.map_entries.iter().enumerate() {
            let at = run.at + index * BLOCK_BYTES;
            let lba = run.lba + index as u64;
            self.start_single(queue, reading, lba, *map_entry, 0..BLOCK_BYTES, at);
        }
    }

    fn finish_single(
        &mut self,
        queue: &mut Queue,
        reading: usize,
        mut single: Box<Single>,
        outcome: Outcome,
    ) -> Outcome {
        let fits = crc32c::crc32c(&single.buffer) == single.map_entry.checksum();
        let fits = mutated("log.read.data-unchecked", fits, true);
        let request = &mut self.requests[reading].request;
        if outcome.is_ok() && fits {
            request.copy_in(single.at, &single.buffer[single.wanted.clone()]);
            return Ok(());
        }
        let map_entry = queue.volume.map.get(single.lba);
        let map_entry = mutated("log.read.does-not-look-again", map_entry, single.map_entry);
        if !map_entry.is_mapped() {
            request.fill_zero(single.at..single.at + single.wanted.len());
            return Ok(());
        }
        if map_entry != single.map_entry {
            single.map_entry = map_entry;
            single.tries = 0;
        }
        if single.tries >= TRIES_MAX {
            let what = if fits {
                "a block cannot be read"
            } else {
                "the checksum of a block does not fit"
            };
            queue.volume.report_damage(&queue.log.name, single.lba, map_entry, what);
            return Err(outcome.err().unwrap_or(Errno::IO));
        }
        self.requests[reading].parts_left += 1;
        self.read_single(queue, reading, single);
        Ok(())
    }

    fn part_done(&mut self, queue: &mut Queue, index: usize, outcome: Outcome) {
        let reading = &mut self.requests[index];
        reading.outcome = reading.outcome.and(outcome);
        reading.parts_left -= 1;
        if reading.parts_left == 0 {
            let Reading { request, outcome, .. } = self.requests.remove(index);
            queue.completed.push(Completion { request, outcome });
        }
    }
}

impl BlockRun {
    fn begin(&mut self, lba: u64, at: usize, map_entry: MapEntry) {
        self.lba = lba;
        self.at = at;
        self.map_entries.clear();
        self.map_entries.push(map_entry);
    }

    fn goes_on(&self, lba: u64, address: Address) -> bool {
        let blocks = self.map_entries.len() as u32;
        self.lba + u64::from(blocks) == lba
            && self.map_entries[0].address().forward(blocks) == address
    }
}
