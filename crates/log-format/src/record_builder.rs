//! A record under construction: its header block, which is filled last, and the payload of its
//! entries.

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
    /// Payload blocks whose checksum is not computed yet.
    unsummed: Vec<u32>,
}

impl RecordBuilder {
    /// A builder of records of at most `payload_max` payload blocks.
    pub fn new(payload_max: u32) -> Self {
        Self::in_buffer(AlignedBuf::zeroed(Self::buffer_bytes(payload_max)), payload_max)
    }

    /// The same in memory of [this size](Self::buffer_bytes).
    pub fn in_buffer(buffer: AlignedBuf, payload_max: u32) -> Self {
        let (entries, unsummed) = (Vec::new(), Vec::new());
        Self { buffer, entries, payload: 0, payload_max, unsummed }
    }

    /// Empties the builder for reuse.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.unsummed.clear();
        self.payload = 0;
    }

    /// Swaps the memory of the [finished](Self::finish) record for other memory of the same size.
    pub fn exchange_buffer(&mut self, other: AlignedBuf) -> AlignedBuf {
        std::mem::replace(&mut self.buffer, other)
    }

    /// Returns the bytes of memory for a record of at most `payload_max` payload blocks.
    pub const fn buffer_bytes(payload_max: u32) -> usize {
        (1 + payload_max as usize) * BLOCK_BYTES
    }

    /// Returns the entries so far.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Payload blocks in use.
    pub const fn payload(&self) -> u32 {
        self.payload
    }

    /// Returns whether `blocks` more payload blocks fit.
    pub const fn has_room_for(&self, blocks: u32) -> bool {
        self.payload + blocks <= self.payload_max
    }

    /// Returns how many entries with at most one payload block can still be added, if only such are
    /// added.
    pub fn room(&self) -> u32 {
        (self.payload_max - self.payload).min((ENTRIES_MAX - self.entries.len()) as u32)
    }

    /// Adds an entry, for which there must be room. Returns the memory of its payload.
    pub fn push(&mut self, entry: Entry) -> &mut [u8] {
        let (first, count) = (self.payload, entry.payload_blocks());
        if matches!(entry, Entry::Data { .. }) {
            self.unsummed.push(first);
        }
        self.entries.push(entry);
        self.payload += count;
        self.blocks(first, count)
    }

    /// Adds consecutive blocks of data, for which there must be room. `fill` gets the index of each
    /// and the memory for its content; the checksum is computed at once, while the block is in the
    /// L1 cache.
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

    /// Returns the payload block with this number, to be changed.
    pub fn block(&mut self, number: u32) -> &mut [u8] {
        self.unsummed.push(number);
        self.blocks(number, 1)
    }

    /// Returns what the record already holds of a block: the number of its payload block, or
    /// `Some(None)` if it has been trimmed.
    pub fn mentions(&self, lba: u64) -> Option<Option<u32>> {
        let mut payload = self.payload;
        for entry in self.entries.iter().rev() {
            payload -= entry.payload_blocks();
            if entry.blocks().contains(&lba) {
                return Some((entry.payload_blocks() > 0).then_some(payload));
            }
        }
        None
    }

    /// Iterates over the data blocks in payload order: LBA, checksum, content. For records of
    /// guests, whose other entries have no payload.
    pub fn data(&self) -> impl Iterator<Item = (u64, u32, &[u8])> {
        let mut payload = self.buffer[BLOCK_BYTES..].chunks_exact(BLOCK_BYTES);
        self.entries.iter().filter_map(move |entry| match *entry {
            Entry::Data { lba, checksum } => Some((lba, checksum, payload.next()?)),
            _ => None,
        })
    }

    /// Computes the checksums of blocks that were not pushed as a run, or have changed since.
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

    /// Fills the header block. Returns the bytes of the whole record, to be written at its place.
    pub fn finish(&mut self, codec: Codec, placed: &Placed) -> &mut [u8] {
        let bytes = (1 + self.payload as usize) * BLOCK_BYTES;
        codec.encode(&placed.header, &self.entries, &mut self.buffer[..BLOCK_BYTES]);
        &mut self.buffer[..bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest may change a page while its write is in flight: it is read once, and the checksum is
    /// that of what was read.
    #[test]
    fn a_page_that_changes_is_read_once_and_summed_as_it_was_read() {
        let mut builder = RecordBuilder::new(3);
        let mut page = 0;
        builder.push_run(5..8, |_, block| {
            page += 1;
            block.fill(page);
        });
        builder.sum();
        assert_eq!(page, 3, "once for each block");
        let data: Vec<_> = builder.data().collect();
        let first_bytes: Vec<u8> = data.iter().map(|(_, _, block)| block[0]).collect();
        assert_eq!(first_bytes, [1, 2, 3]);
        assert!(data.iter().all(|(_, checksum, block)| *checksum == crc32c::crc32c(block)));
    }
}
