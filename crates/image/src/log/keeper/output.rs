//! Records that the keeper writes: copies of live blocks, and maps. They are outside the order of
//! guest writes and are never replayed.

use flowstone_block::{AlignedBuf, Errno};

use super::Keeper;
use crate::log::address::{Address, BLOCK_BYTES};
use crate::log::record::{Entry, Header, Kind};

/// A segment that the keeper appends to.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    pub segment: u32,
    pub serial: u64,
    pub block: u32,
    /// Sum of the births of the blocks in it, and their number: copies keep their age.
    pub births: u128,
    pub copies: u64,
}

/// A record being gathered.
pub struct Gather {
    pub buffer: AlignedBuf,
    pub entries: Vec<Entry>,
    pub payload: u32,
    pub payload_max: u32,
}

impl Gather {
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

impl Keeper {
    /// Writes a gathered record into the class's output; returns the address of its header.
    pub fn append(
        &mut self,
        class: u8,
        kind: Kind,
        link: u64,
        gather: &mut Gather,
    ) -> Result<Address, Errno> {
        let blocks = 1 + gather.payload;
        let mut output = self.output_with_room(class, blocks)?;
        let address = self.core.shape.address(output.segment, output.block);
        let header = Header {
            serial: output.serial,
            sequence: 0,
            durable: 0,
            generation: self.superblock.generation,
            position: output.block,
            kind,
            payload_blocks: gather.payload,
            link,
        };
        let bytes = blocks as usize * BLOCK_BYTES;
        let buffer = &mut gather.buffer[..bytes];
        self.core.codec.encode(&header, &gather.entries, &mut buffer[..BLOCK_BYTES]);
        self.file.write(address.offset(), buffer)?;
        output.block += blocks;
        self.outputs[usize::from(class)] = Some(output);
        let mut tail = self.core.tail();
        tail.totals.appended_blocks += u64::from(blocks);
        match kind {
            Kind::Map => tail.totals.map_blocks += u64::from(blocks),
            _ => tail.totals.relocated_blocks += u64::from(blocks),
        }
        Ok(address)
    }

    /// Makes sure that the next record of `blocks` blocks fits the class's output as it is.
    pub fn reserve_output(&mut self, class: u8, blocks: u32) -> Result<(), Errno> {
        let output = self.output_with_room(class, blocks)?;
        self.outputs[usize::from(class)] = Some(output);
        Ok(())
    }

    /// The class's output, or a new one if what is left of it is too little.
    fn output_with_room(&mut self, class: u8, blocks: u32) -> Result<Output, Errno> {
        if let Some(output) = self.outputs[usize::from(class)] {
            if output.block + blocks <= self.core.shape.segment_blocks {
                return Ok(output);
            }
            self.seal_output(class);
        }
        let (segment, serial) = self.take_segment(class)?;
        Ok(Output { segment, serial, block: 0, births: 0, copies: 0 })
    }

    /// Ends a class's output. Everything in it has been put into the map.
    pub fn seal_output(&mut self, class: u8) {
        let Some(output) = self.outputs[usize::from(class)].take() else { return };
        let mut tail = self.core.tail();
        let birth = match output.copies {
            0 => tail.clock,
            copies => (output.births / u128::from(copies)) as u64,
        };
        tail.segments.seal(output.segment, birth);
        if self.filling == Some(class) {
            self.filling = None;
        }
    }
}
