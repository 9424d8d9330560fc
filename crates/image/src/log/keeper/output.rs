//! Records that the keeper writes: copies of live blocks, and maps. They are outside the order of
//! guest writes and are never replayed.

use flowstone_block::{AlignedBuf, Errno};

use super::Keeper;
use crate::log::address::{Address, BLOCK_BYTES};
use crate::log::policy::{CLASS_CLEANED, CLASS_COLD, CLASS_MAP};
use crate::log::record::{Entry, Header, Kind};
use crate::log::reserve::Opener;

/// A segment that the keeper appends to.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    pub segment: u32,
    pub serial: u64,
    pub block: u32,
    /// Sum of the births of the blocks in it, and their number: copies keep their age.
    pub births: u128,
    pub copies: u64,
    /// Whether replay finds it: the newest superblock names this place in its stream, or one that
    /// leads here by seals.
    pub anchored: bool,
}

impl Output {
    /// Blocks that records may take; the last one is for the seal.
    fn room(&self, segment_blocks: u32) -> u32 {
        segment_blocks - 1 - self.block
    }
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
        let mut header = self.header(kind, &output);
        header.payload_blocks = gather.payload;
        header.link = link;
        let buffer = &mut gather.buffer[..blocks as usize * BLOCK_BYTES];
        self.core.codec.encode(&header, &gather.entries, &mut buffer[..BLOCK_BYTES]);
        if let Err(errno) = self.file.write(address.offset(), buffer) {
            self.avoid_output(class, output);
            return Err(errno);
        }
        output.block += blocks;
        self.outputs[usize::from(class)] = Some(output);
        let mut tail = self.core.tail();
        tail.since_checkpoint += u64::from(blocks);
        tail.totals.appended_blocks += u64::from(blocks);
        match kind {
            Kind::Map => tail.totals.map_blocks += u64::from(blocks),
            _ => tail.totals.relocated_blocks += u64::from(blocks),
        }
        Ok(address)
    }

    /// A header for the next record of an output, without payload.
    fn header(&mut self, kind: Kind, output: &Output) -> Header {
        self.records += 1;
        Header {
            serial: output.serial,
            sequence: self.records,
            // For copies: what the guest had committed when they were made.
            durable: self.core.tail().committed(),
            generation: self.superblock.generation,
            position: output.block,
            kind,
            payload_blocks: 0,
            link: 0,
        }
    }

    /// Makes sure that the next record of `blocks` blocks fits the class's output as it is.
    pub fn reserve_output(&mut self, class: u8, blocks: u32) -> Result<(), Errno> {
        let output = self.output_with_room(class, blocks)?;
        self.outputs[usize::from(class)] = Some(output);
        Ok(())
    }

    /// The class's output, or a new one if what is left of it is too little.
    fn output_with_room(&mut self, class: u8, blocks: u32) -> Result<Output, Errno> {
        let old = self.outputs[usize::from(class)];
        if let Some(output) = old.filter(|it| it.room(self.core.shape.segment_blocks) >= blocks) {
            return Ok(output);
        }
        if !self.may_open(class, old.is_some()) {
            return Err(Errno::NOSPC);
        }
        let (segment, serial) = self.take_segment(class)?;
        let anchored = match old {
            None => false,
            Some(old) => {
                if let Err(errno) = self.write_seal(&old, segment, serial) {
                    let mut tail = self.core.tail();
                    let clock = tail.clock;
                    tail.segments.seal(segment, clock);
                    drop(tail);
                    self.seal_output(class);
                    return Err(errno);
                }
                self.seal_output(class);
                old.anchored
            }
        };
        Ok(Output { segment, serial, block: 0, births: 0, copies: 0, anchored })
    }

    /// Whether a segment of this class may be opened, in place of one that is full or besides all.
    fn may_open(&self, class: u8, replaces: bool) -> bool {
        let tail = self.core.tail();
        let reserve = tail.reserve(&self.core.map, replaces);
        let (opener, available) = match class {
            // The last resort asks a full host once more.
            CLASS_MAP => (Opener::Map, tail.segments.ready_or_obtainable()),
            _ => (Opener::Copy, self.available(&tail)),
        };
        reserve.may_open(opener, available, tail.trim_heads())
    }

    /// Tells replay where the stream goes on.
    fn write_seal(&mut self, output: &Output, segment: u32, serial: u64) -> Result<(), Errno> {
        let mut header = self.header(Kind::Seal, output);
        header.link = u64::from(segment);
        let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
        self.core.codec.encode(&header, &[Entry::Next { serial }], &mut block);
        let address = self.core.shape.address(output.segment, output.block);
        self.file.write(address.offset(), &mut block)
    }

    /// An output could not be written to. The next attempt goes elsewhere, since the place may be bad,
    /// and after the first one uses nothing up, since everything may be.
    fn avoid_output(&mut self, class: u8, output: Output) {
        if output.block == 0 && !output.anchored {
            self.core.tail().segments.give_back(output.segment);
            self.outputs[usize::from(class)] = None;
        } else {
            self.outputs[usize::from(class)] = Some(output);
            self.seal_output(class);
        }
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
    }

    /// The output to use when segments are short, instead of this class's: the roomiest. The others
    /// end, so that what they lack counts as room to be won.
    pub fn merge_outputs(&mut self, class: u8) -> u8 {
        let room = |class: &u8| {
            let output = self.outputs[usize::from(*class)]?;
            Some(output.room(self.core.shape.segment_blocks))
        };
        let open = (CLASS_CLEANED..=CLASS_COLD).filter(|class| room(class).is_some());
        let Some(roomiest) = open.max_by_key(room) else { return class };
        let others = (CLASS_CLEANED..=CLASS_COLD).filter(|other| *other != roomiest);
        others.for_each(|other| self.seal_output(other));
        roomiest
    }

    /// Whether the class's output has no room for another full record.
    pub fn is_output_full(&self, class: u8) -> bool {
        let blocks = 1 + self.core.shape.record_payload_max();
        self.outputs[usize::from(class)]
            .is_none_or(|output| output.room(self.core.shape.segment_blocks) < blocks)
    }
}
