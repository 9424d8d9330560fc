//! A record in the making: its header block, which is filled last, and the payload of its entries.

use flowstone_block::AlignedBuf;

use crate::log::address::BLOCK_BYTES;
use crate::log::record::Entry;

/// See the module.
pub struct RecordBuilder {
    pub buffer: AlignedBuf,
    pub entries: Vec<Entry>,
    pub payload: u32,
    pub payload_max: u32,
}

impl RecordBuilder {
    pub fn new(payload_max: u32) -> Self {
        let bytes = (1 + payload_max as usize) * BLOCK_BYTES;
        let entries = Vec::new();
        Self { buffer: AlignedBuf::zeroed(bytes), entries, payload: 0, payload_max }
    }

    /// Room for the payload of `entry`, which is added. The record must have room.
    pub fn push(&mut self, entry: Entry) -> &mut [u8] {
        let start = (1 + self.payload as usize) * BLOCK_BYTES;
        let blocks = entry.payload_blocks();
        self.entries.push(entry);
        self.payload += blocks;
        &mut self.buffer[start..start + blocks as usize * BLOCK_BYTES]
    }

    pub fn has_room_for(&self, blocks: u32) -> bool {
        self.payload + blocks <= self.payload_max
    }

    pub fn clear(&mut self) {
        self.entries.clear();
        self.payload = 0;
    }
}
