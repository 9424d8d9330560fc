//! A record that is being made, in flight, or waiting to commit.

use flowstone_block::{AlignedBuf, Errno, IoVec};

use super::super::address::{Address, BLOCK_BYTES, MapEntry};
use super::super::core::Core;
use super::super::ids::Sequence;
use super::super::record::Entry;
use super::super::shape::Shape;

/// A stretch of a guest write that a record carries.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// The write, in the queue's slab.
    pub write: usize,
    /// The first block of the stretch.
    pub first: u64,
}

/// A record of this queue.
pub struct PendingRecord {
    /// Header block and payload.
    pub buffer: AlignedBuf,
    pub memory: [IoVec; 1],
    pub entries: Vec<Entry>,
    pub shares: Vec<Share>,
    /// Blocks whose rest was read, with the map entries they were read with.
    pub expected: Vec<(u64, MapEntry)>,
    /// Payload blocks in use.
    pub payload: u32,
    pub stream: usize,
    /// Blocks that trims in it cover.
    pub trimmed: u64,
    pub sequence: Sequence,
    pub address: Address,
    /// In the file; waits for the records before it.
    pub written: bool,
    /// Why it could not be written.
    pub failure: Option<Errno>,
}

impl PendingRecord {
    pub fn new(shape: Shape) -> Box<Self> {
        let bytes = (1 + shape.record_payload_max() as usize) * BLOCK_BYTES;
        Box::new(Self {
            buffer: AlignedBuf::zeroed(bytes),
            // SAFETY: an empty piece names nothing.
            memory: [unsafe { IoVec::new(std::ptr::null_mut(), 0) }],
            entries: Vec::new(),
            shares: Vec::new(),
            expected: Vec::new(),
            payload: 0,
            stream: 0,
            trimmed: 0,
            sequence: Sequence::default(),
            address: Address::NOWHERE,
            written: false,
            failure: None,
        })
    }

    /// Empties it for another use.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.shares.clear();
        self.expected.clear();
        self.payload = 0;
        self.trimmed = 0;
        self.written = false;
        self.failure = None;
    }

    /// Whether it unmaps blocks and brings none.
    pub const fn only_trims(&self) -> bool {
        self.payload == 0
    }

    /// Whether it has committed, or never will.
    pub fn has_ended(&self, core: &Core) -> bool {
        self.written && (core.has_committed(self.sequence) || core.is_broken())
    }

    /// The payload block with this number.
    pub fn block(&mut self, number: u32) -> &mut [u8] {
        let start = (1 + number as usize) * BLOCK_BYTES;
        &mut self.buffer[start..start + BLOCK_BYTES]
    }

    /// Payload blocks from this number on.
    pub fn blocks(&mut self, number: u32, count: u32) -> &mut [u8] {
        let start = (1 + number as usize) * BLOCK_BYTES;
        &mut self.buffer[start..start + count as usize * BLOCK_BYTES]
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

    pub fn bytes(&self) -> usize {
        (1 + self.payload as usize) * BLOCK_BYTES
    }

    /// Computes the checksums of all payload blocks.
    pub fn sum(&mut self) {
        let mut payload = self.buffer[BLOCK_BYTES..].chunks_exact(BLOCK_BYTES);
        for entry in &mut self.entries {
            if let Entry::Data { checksum, .. } = entry {
                *checksum = crc32c::crc32c(payload.next().expect("a block per data entry"));
            }
        }
    }
}
