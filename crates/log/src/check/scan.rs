//! Scans every block of the file for records, as evidence of missing parts.

use std::ops::Range;

use flowstone_block::{AlignedBuf, Errno};
use flowstone_fileio::FileIo;
use flowstone_log_format::{
    Address, BLOCK_BYTES, Codec, Entry, Header, Kind, Sequence, Superblock,
};

use flowstone_log_store::Reader;

/// Blocks read at once.
const CHUNK_BLOCKS: u32 = 256;
const CHUNKS_AT_ONCE: u32 = 4;
/// Maximum number of lost records that are listed.
const LOST_LISTED_MAX: usize = 100;

/// Evidence from records found anywhere in the file.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// The newest checkpoint that a record states to be durable.
    generation: u64,
    /// The newest checkpoint after which a map root was written.
    root_after: Option<u64>,
    /// The newest session that opened a segment.
    session: u64,
    /// All records of guests before this one were durable once.
    pub promise: Sequence,
    /// The last record of guests.
    pub last: Sequence,
    /// Descriptions of complete records behind the end of the log, up to a limit.
    pub lost: Vec<String>,
    /// Part of the file could not be read.
    incomplete: bool,
}

impl Evidence {
    /// Reads all allocated parts of the file. The log ends before record `end`.
    pub fn gather(
        file: &dyn FileIo,
        superblock: &Superblock,
        end: Sequence,
    ) -> Result<Self, Errno> {
        let mut found = Self::default();
        let mut reader = Reader::open(file)?;
        let codec = Codec::new(&superblock.identity);
        // No record lies where no address reaches.
        let size = reader.blocks().min(1 << u32::BITS);
        let most = u64::from(CHUNKS_AT_ONCE * CHUNK_BLOCKS).min(size);
        let mut buffer = AlignedBuf::zeroed(most as usize * BLOCK_BYTES);
        let mut at = u64::from(superblock.segment_blocks);
        while let Some(allocated) = reader.next_allocated(at, size)? {
            at = allocated.start;
            while at < allocated.end {
                let blocks = (allocated.end - at).min(most);
                let chunk = &mut buffer[..blocks as usize * BLOCK_BYTES];
                found.read(&mut reader, at as u32, chunk);
                found.look_at(chunk, codec, superblock, end);
                at += blocks;
            }
        }
        Ok(found)
    }

    fn read(&mut self, reader: &mut Reader<'_>, from: u32, buffer: &mut [u8]) {
        let place = |block: usize| Address::new(from + block as u32);
        let chunk_blocks = CHUNK_BLOCKS as usize;
        let chunks = buffer.chunks_mut(chunk_blocks * BLOCK_BYTES).enumerate();
        let outcomes =
            reader.read_each(chunks.map(|(at, it)| (place(at * chunk_blocks), it)).collect());
        for (at, block) in buffer.chunks_mut(BLOCK_BYTES).enumerate() {
            if outcomes[at / chunk_blocks].is_err() && reader.read(place(at), block).is_err() {
                block.fill(0);
                self.incomplete = true;
            }
        }
    }

    fn look_at(&mut self, chunk: &[u8], codec: Codec, superblock: &Superblock, end: Sequence) {
        let mut entries = Vec::new();
        for block in chunk.chunks_exact(BLOCK_BYTES) {
            let Some(header) = codec.decode(block, &mut entries) else { continue };
            self.generation = self.generation.max(header.generation);
            self.session = self.session.max(header.incarnation.session());
            if entries.iter().any(|entry| matches!(entry, Entry::Root { .. })) {
                self.root_after = self.root_after.max(Some(header.generation));
            }
            if header.kind == Kind::Writes {
                self.promise = self.promise.max(header.durable);
                self.last = self.last.max(header.sequence);
                // Records behind an end made by an earlier crash were never durable for the guest.
                if header.sequence >= end && header.incarnation.session() >= superblock.session {
                    self.lose(&header, &entries);
                }
            }
        }
    }

    fn lose(&mut self, header: &Header, entries: &[Entry]) {
        if self.lost.len() >= LOST_LISTED_MAX {
            return;
        }
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for entry in entries {
            let range = match *entry {
                Entry::Data { lba, .. } => lba..lba + 1,
                Entry::Trim { lba, count } => lba..lba + u64::from(count),
                _ => continue,
            };
            match ranges.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => ranges.push(range),
            }
        }
        let name = |range: Range<u64>| match range.end - range.start {
            1 => format!("{}", range.start),
            _ => format!("{} to {}", range.start, range.end - 1),
        };
        let names: Vec<String> = ranges.into_iter().map(name).collect();
        self.lost.push(format!("record {}: LBAs {}", header.sequence, names.join(", ")));
    }

    /// Returns whether no superblock newer than this one ever existed. A newer checkpoint needs a
    /// map root written after this one, and a newer session leaves records with its number; neither
    /// can be gone before the slot of this superblock is reused.
    pub fn proves_newest(&self, superblock: &Superblock) -> bool {
        !self.incomplete
            && self.generation <= superblock.generation
            && self.session <= superblock.session
            && self.root_after.is_none_or(|generation| generation < superblock.generation)
    }
}
