//! A record in the making: its header block, which is filled last, and the payload of its entries.

use std::ops::Range;

use flowstone_block::AlignedBuf;

use super::address::BLOCK_BYTES;
use super::head::Placed;
use super::record::{Codec, ENTRIES_MAX, Entry};

/// See the module.
pub struct RecordBuilder {
    /// Header block and payload.
    buffer: AlignedBuf,
    entries: Vec<Entry>,
    /// Payload blocks in use.
    payload: u32,
    payload_max: u32,
    /// Blocks of data whose checksum is still to be computed.
    unsummed: Vec<u32>,
}

impl RecordBuilder {
    pub fn new(payload_max: u32) -> Self {
        let bytes = Self::buffer_bytes(payload_max);
        let (entries, unsummed) = (Vec::new(), Vec::new());
        Self { buffer: AlignedBuf::zeroed(bytes), entries, payload: 0, payload_max, unsummed }
    }

    /// Empties it for another use.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.unsummed.clear();
        self.payload = 0;
    }

    /// Gives away the memory of the record, as it has been [finished](Self::finish), for other
    /// memory of that size.
    pub fn exchange_buffer(&mut self, other: AlignedBuf) -> AlignedBuf {
        std::mem::replace(&mut self.buffer, other)
    }

    /// Bytes of memory that a record of at most so many blocks has.
    pub const fn buffer_bytes(payload_max: u32) -> usize {
        (1 + payload_max as usize) * BLOCK_BYTES
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Payload blocks in use.
    pub const fn payload(&self) -> u32 {
        self.payload
    }

    pub const fn has_room_for(&self, blocks: u32) -> bool {
        self.payload + blocks <= self.payload_max
    }

    /// How many entries of one block, or of none, may be added while none of another kind is.
    pub fn room(&self) -> u32 {
        (self.payload_max - self.payload).min((ENTRIES_MAX - self.entries.len()) as u32)
    }

    /// Adds an entry, for which there must be room. Returns where its payload belongs.
    pub fn push(&mut self, entry: Entry) -> &mut [u8] {
        let (first, count) = (self.payload, entry.payload_blocks());
        if matches!(entry, Entry::Data { .. }) {
            self.unsummed.push(first);
        }
        self.entries.push(entry);
        self.payload += count;
        self.blocks(first, count)
    }

    /// Adds blocks of data that follow one another on the disk, for which there must be room.
    /// `fill` gets the number of each and where its content belongs; the block is summed at once,
    /// while it is in the CPU's first cache.
    pub fn push_run(&mut self, lbas: Range<u64>, mut fill: impl FnMut(usize, &mut [u8])) {
        let (first, count) = (self.payload, (lbas.end - lbas.start) as u32);
        self.payload += count;
        let start = (1 + first as usize) * BLOCK_BYTES;
        let blocks = self.buffer[start..].chunks_exact_mut(BLOCK_BYTES);
        for ((number, lba), block) in lbas.enumerate().zip(blocks) {
            fill(number, block);
            self.entries.push(Entry::Data { lba, checksum: crc32c::crc32c(block) });
        }
    }

    fn blocks(&mut self, first: u32, count: u32) -> &mut [u8] {
        let start = (1 + first as usize) * BLOCK_BYTES;
        &mut self.buffer[start..start + count as usize * BLOCK_BYTES]
    }

    /// The payload block with this number, to be changed.
    pub fn block(&mut self, number: u32) -> &mut [u8] {
        self.unsummed.push(number);
        self.blocks(number, 1)
    }

    /// What the record already says about a block, as the payload block that holds it; `Some(None)`
    /// if it has been trimmed.
    pub fn mentions(&self, lba: u64) -> Option<Option<u32>> {
        let mut payload = self.payload;
        for entry in self.entries.iter().rev() {
            payload -= entry.payload_blocks();
            match *entry {
                Entry::Data { lba: at, .. } if at == lba => return Some(Some(payload)),
                Entry::Trim { lba: start, count }
                    if (start..start + u64::from(count)).contains(&lba) =>
                {
                    return Some(None);
                }
                _ => {}
            }
        }
        None
    }

    /// Blocks of data in the order of the payload: LBA, checksum, content. For records of guests,
    /// whose other entries have no payload.
    pub fn data(&self) -> impl Iterator<Item = (u64, u32, &[u8])> {
        let mut payload = self.buffer[BLOCK_BYTES..].chunks_exact(BLOCK_BYTES);
        self.entries.iter().filter_map(move |entry| match *entry {
            Entry::Data { lba, checksum } => Some((lba, checksum, payload.next()?)),
            _ => None,
        })
    }

    /// Computes the checksums of blocks that were not pushed as a run, or have been changed since.
    pub fn sum(&mut self) {
        if self.unsummed.is_empty() {
            return;
        }
        self.unsummed.sort_unstable();
        let payload = (0..).zip(self.buffer[BLOCK_BYTES..].chunks_exact(BLOCK_BYTES));
        let data = self.entries.iter_mut().filter_map(|entry| match entry {
            Entry::Data { checksum, .. } => Some(checksum),
            _ => None,
        });
        for (checksum, (number, block)) in data.zip(payload) {
            if self.unsummed.binary_search(&number).is_ok() {
                *checksum = crc32c::crc32c(block);
            }
        }
        self.unsummed.clear();
    }

    /// Fills the header block. Returns the whole record, to be written at its place.
    pub fn finish(&mut self, codec: Codec, placed: &Placed) -> &mut [u8] {
        let bytes = (1 + self.payload as usize) * BLOCK_BYTES;
        codec.encode(&placed.header, &self.entries, &mut self.buffer[..BLOCK_BYTES]);
        &mut self.buffer[..bytes]
    }
}
