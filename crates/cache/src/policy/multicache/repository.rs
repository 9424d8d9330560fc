//! MultiCache's metadata repository: counts of reads and of writes of sectors, in two tables of a
//! fixed size.
//!
//! A sector's address is a chunk of the disk and a segment in it. The hash of the chunk is the key
//! of an index; under each key there are [`LAMBDA`] metadata tables against collisions, and an
//! entry of one of them counts the accesses to the segments of a chunk. If all are taken, a new
//! chunk replaces the least recently used one.

use crate::names::{BlockId, spread};
use crate::prefetch::{LINE_BYTES, prefetch};

/// λ: chunks with equal keys that are counted side by side.
const LAMBDA: usize = 4;
/// Segments (blocks of 4 KiB) per chunk.
const SEGMENTS: u64 = 8;
/// The address of no chunk.
const NONE: u64 = u64::MAX;

/// The counts of a chunk.
#[derive(Clone, Copy, Debug)]
struct Metadata {
    chunk: u64,
    /// Time of the last use, in accesses, wrapping.
    used_at: u32,
    counts: [u16; SEGMENTS as usize],
}

const UNUSED: Metadata = Metadata { chunk: NONE, used_at: 0, counts: [0; SEGMENTS as usize] };

/// The entries that the λ tables have under one key, in two lines of the CPU's caches.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct SideBySide([Metadata; LAMBDA]);

/// Counts of one kind of access.
#[derive(Debug)]
struct Counted {
    /// By key.
    entries: Vec<SideBySide>,
    /// Number of blocks with a count.
    blocks: usize,
}

impl Counted {
    fn new(chunks: usize) -> Self {
        let keys = chunks.div_ceil(LAMBDA).next_power_of_two();
        Self { entries: vec![SideBySide([UNUSED; LAMBDA]); keys], blocks: 0 }
    }

    fn key(&self, chunk: u64) -> usize {
        spread(BlockId(chunk), 0) as usize & (self.entries.len() - 1)
    }

    fn prefetch(&self, block: BlockId) {
        let start = (&raw const self.entries[self.key(address(block).0)]).cast::<u8>();
        for offset in (0..size_of::<SideBySide>()).step_by(LINE_BYTES) {
            prefetch(start.wrapping_add(offset));
        }
    }

    /// Returns the accesses to the block that are remembered.
    fn count(&self, block: BlockId) -> u32 {
        let (chunk, segment) = address(block);
        let known = self.entries[self.key(chunk)].0.iter().find(|entry| entry.chunk == chunk);
        known.map_or(0, |entry| entry.counts[segment].into())
    }

    /// Counts an access. Returns the new count.
    fn add(&mut self, block: BlockId, now: u32) -> u32 {
        let (chunk, segment) = address(block);
        let key = self.key(chunk);
        let entries = &mut self.entries[key].0;
        let known = entries.iter().position(|entry| entry.chunk == chunk);
        let at = known.unwrap_or_else(|| {
            let age = |entry: &Metadata| match entry.chunk {
                NONE => u64::MAX,
                _ => now.wrapping_sub(entry.used_at).into(),
            };
            let oldest = (0..LAMBDA).max_by_key(|at| age(&entries[*at])).unwrap_or_default();
            self.blocks -= entries[oldest].counts.iter().filter(|count| **count > 0).count();
            entries[oldest] = Metadata { chunk, ..UNUSED };
            oldest
        });
        let entry = &mut entries[at];
        entry.used_at = now;
        self.blocks += usize::from(entry.counts[segment] == 0);
        entry.counts[segment] = entry.counts[segment].saturating_add(1);
        entry.counts[segment].into()
    }

    fn forget(&mut self, block: BlockId) {
        let (chunk, segment) = address(block);
        let key = self.key(chunk);
        let known = self.entries[key].0.iter_mut().find(|entry| entry.chunk == chunk);
        if let Some(entry) = known {
            self.blocks -= usize::from(entry.counts[segment] > 0);
            entry.counts[segment] = 0;
        }
    }
}

/// Returns the chunk and segment of a block.
const fn address(block: BlockId) -> (u64, usize) {
    (block.0 / SEGMENTS, (block.0 % SEGMENTS) as usize)
}

/// Counts of reads and of writes.
#[derive(Debug)]
pub struct Repository {
    reads: Counted,
    writes: Counted,
    now: u32,
}

impl Repository {
    /// Makes tables for reads and for writes of at least `chunks` chunks each.
    pub fn new(chunks: usize) -> Self {
        Self { reads: Counted::new(chunks), writes: Counted::new(chunks), now: 0 }
    }

    /// Prefetches the counts of a block: no cache of the CPU has them.
    pub fn prefetch(&self, block: BlockId) {
        self.reads.prefetch(block);
        self.writes.prefetch(block);
    }

    /// Counts a read. Returns the block's count of all accesses.
    pub fn read(&mut self, block: BlockId) -> u32 {
        self.now = self.now.wrapping_add(1);
        self.reads.add(block, self.now) + self.writes.count(block)
    }

    /// Counts a write. Returns the block's count of all accesses.
    pub fn write(&mut self, block: BlockId) -> u32 {
        self.now = self.now.wrapping_add(1);
        self.writes.add(block, self.now) + self.reads.count(block)
    }

    /// Drops the counts of a block whose content is gone.
    pub fn forget(&mut self, block: BlockId) {
        self.reads.forget(block);
        self.writes.forget(block);
    }

    /// Returns the number of blocks with counts; a block read and written counts twice.
    pub fn len(&self) -> usize {
        self.reads.blocks + self.writes.blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_are_counted_apart_and_together() {
        let mut repository = Repository::new(64);
        let block = BlockId::of_disk(3, 77);
        assert_eq!([(); 3].map(|()| repository.read(block)), [1, 2, 3]);
        assert_eq!(repository.write(block), 4);
        assert_eq!((repository.reads.count(block), repository.writes.count(block)), (3, 1));
        // Another segment of the chunk, and the same one of another disk.
        assert_eq!(repository.read(BlockId::of_disk(3, 78)), 1);
        assert_eq!(repository.read(BlockId::of_disk(4, 77)), 1);
        assert_eq!(repository.len(), 4);
        repository.forget(block);
        assert_eq!((repository.read(block), repository.len()), (1, 3));
    }

    /// Reads do not displace counts of writes.
    #[test]
    fn each_table_replaces_what_it_has_not_used_for_longest() {
        let mut repository = Repository::new(64);
        let chunk = |at| BlockId(at * SEGMENTS);
        repository.write(chunk(0));
        repository.read(chunk(0));
        for at in 1..10_000 {
            repository.read(chunk(at));
            if at < 1000 {
                repository.read(chunk(5000));
            }
        }
        assert_eq!((repository.reads.count(chunk(0)), repository.writes.count(chunk(0))), (0, 1));
        assert!(repository.len() <= 64 + 1);
        // λ chunks of one key coexist, and one that is used stays.
        let mut counted = Counted::new(LAMBDA);
        assert_eq!(counted.entries.len(), 1);
        for now in 1..100 {
            counted.add(chunk(0), 2 * now);
            counted.add(chunk(now.into()), 2 * now + 1);
        }
        assert_eq!(counted.count(chunk(0)), 99);
        let kept = (1..100).filter(|at| counted.count(chunk(*at)) > 0);
        assert_eq!(kept.collect::<Vec<_>>(), [97, 98, 99]);
    }
}
