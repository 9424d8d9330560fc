//! Corrupts an image and recomputes the checksums of the changed structures, for fuzzing and tests:
//! an attacker can do the same.

use flowstone_log_format::{
    Address, BLOCK_BYTES, Bounds, Codec, Entry, Header, LEAF_ON_DISK_BLOCKS, Root, SLOTS,
    SegmentId, Superblock, blocks_of_sectors,
};

/// A part of an image that can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Slot 0 or 1.
    Superblock(u8),
    /// The map root.
    Root,
    /// The n-th leaf, modulo their number.
    Leaf(u8),
    /// The header of the n-th record, modulo their number.
    Header(u8),
    /// Any 64 KiB of the file, modulo its size; no checksum is recomputed.
    Anywhere(u16),
}

/// Runs every decoder over the bytes as they are, and with corrected checksums.
pub fn decode(bytes: &[u8]) {
    let mut block = [0; BLOCK_BYTES];
    let taken = bytes.len().min(BLOCK_BYTES);
    block[..taken].copy_from_slice(&bytes[..taken]);
    let codec = Codec::new(&[7; 16]);
    let mut entries = Vec::new();
    let _ = Superblock::decode(&block);
    let _ = codec.decode(&block, &mut entries);
    let mut sealed = block;
    Superblock::seal(&mut sealed);
    if let Ok(superblock) = Superblock::decode(&sealed) {
        assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
    }
    let mut sealed = block;
    codec.seal(&mut sealed);
    if let Some(header) = codec.decode(&sealed, &mut entries) {
        let mut again = [0; BLOCK_BYTES];
        codec.encode(&header, &entries, &mut again);
        let mut decoded = Vec::new();
        assert_eq!(codec.decode(&again, &mut decoded), Some(header));
        assert_eq!(decoded, entries);
    }
    let bounds = Bounds { blocks: 1 << 20, segments: 1 << 10, segment_blocks: 64 };
    if let Ok(root) = Root::decode(bytes, bounds) {
        assert_eq!(Root::decode(&root.encode(), bounds), Ok(root));
    }
}

/// An image that is being corrupted.
#[derive(Clone)]
pub struct Corrupter {
    bytes: Vec<u8>,
    /// The original superblock and root: targets are found through these, however they are changed
    /// later.
    superblock: Superblock,
    root: Root,
    codec: Codec,
    /// Offsets of the record headers.
    headers: Vec<usize>,
    bounds: Bounds,
}

impl Corrupter {
    /// Takes over a sound image.
    pub fn new(bytes: Vec<u8>) -> Self {
        let superblock = newest_in(&bytes).expect("a sound image");
        let codec = Codec::new(&superblock.identity);
        let is_header =
            |at: &usize| codec.decode(&bytes[*at..*at + BLOCK_BYTES], &mut Vec::new()).is_some();
        let segment_bytes = superblock.shape().segment_bytes() as usize;
        let headers: Vec<usize> =
            (segment_bytes..bytes.len()).step_by(BLOCK_BYTES).filter(is_header).collect();
        let bounds = Bounds {
            blocks: blocks_of_sectors(superblock.capacity_sectors),
            segments: superblock.segments,
            segment_blocks: superblock.segment_blocks,
        };
        let place = superblock.root;
        let start = place.address.offset().get() as usize;
        let root = bytes.get(start..start + place.bytes as usize).unwrap_or_default();
        let root = Root::decode(root, bounds).unwrap_or_default();
        Self { bytes, superblock, root, codec, headers, bounds }
    }

    /// Returns the image as it is now.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Returns the newest superblock.
    pub fn superblock(&self) -> Superblock {
        newest_in(&self.bytes).unwrap_or_else(|| self.superblock.clone())
    }

    /// Writes a superblock into its slot.
    pub fn set_superblock(&mut self, superblock: &Superblock) {
        self.put(superblock.slot(), &superblock.encode());
    }

    /// Returns the map root as it is now; empty if it cannot be read.
    pub fn root(&self) -> Root {
        Root::decode(self.root_bytes(), self.bounds).unwrap_or_default()
    }

    fn root_bytes(&self) -> &[u8] {
        let start = self.superblock.root.address.offset().get() as usize;
        let bytes = self.superblock.root.blocks as usize * BLOCK_BYTES;
        &self.bytes[start..start + bytes]
    }

    /// Replaces the map root.
    pub fn set_root(&mut self, root: &Root) {
        self.set_root_bytes(&root.encode());
    }

    fn set_root_bytes(&mut self, bytes: &[u8]) {
        self.put(self.superblock.root.address, bytes);
        let mut superblock = self.superblock();
        superblock.root.blocks = bytes.len().div_ceil(BLOCK_BYTES) as u32;
        superblock.root.bytes = bytes.len() as u64;
        superblock.root.checksum = crc32c::crc32c(bytes);
        self.set_superblock(&superblock);
    }

    /// Returns the current bytes of a leaf that the original root names.
    pub fn leaf(&self, index: usize) -> Vec<u8> {
        let start = self.root.leaves[index].address.offset().get() as usize;
        self.bytes[start..start + LEAF_ON_DISK_BLOCKS as usize * BLOCK_BYTES].to_vec()
    }

    /// Replaces a leaf.
    pub fn set_leaf(&mut self, index: usize, bytes: &[u8]) {
        self.put(self.root.leaves[index].address, bytes);
        let mut root = self.root();
        if let Some(place) = root.leaves.get_mut(index) {
            place.checksum = crc32c::crc32c(bytes);
            self.set_root(&root);
        }
    }

    /// Decodes the header block at an address.
    pub fn record(&self, address: Address) -> Option<(Header, Vec<Entry>)> {
        let start = address.offset().get() as usize;
        let mut entries = Vec::new();
        let block = self.bytes.get(start..start + BLOCK_BYTES)?;
        Some((self.codec.decode(block, &mut entries)?, entries))
    }

    /// Returns the records of the first stream after the checkpoint, with their addresses.
    pub fn replayed(&self) -> Vec<(Address, Header, Vec<Entry>)> {
        let superblock = self.superblock();
        let shape = superblock.shape();
        let mut head = superblock.heads[0];
        let mut records = Vec::new();
        loop {
            let at = shape.address(head.segment, head.block);
            let Some((header, entries)) = self.record(at) else { break };
            if header.incarnation != head.incarnation || header.position != head.block {
                break;
            }
            match entries.first() {
                Some(Entry::Next { incarnation }) => {
                    head.incarnation = *incarnation;
                    (head.segment, head.block) = (SegmentId::new(header.link as u32), 0);
                }
                _ => head.block += header.record_blocks(),
            }
            records.push((at, header, entries));
        }
        records
    }

    /// Returns everything in the file that decodes as a record.
    #[cfg(test)]
    pub fn records(&self) -> Vec<(Address, Header, Vec<Entry>)> {
        let addresses = self.headers.iter().map(|at| Address::new((at / BLOCK_BYTES) as u32));
        addresses
            .filter_map(|at| self.record(at).map(|(header, entries)| (at, header, entries)))
            .collect()
    }

    /// Writes a header block.
    #[cfg(test)]
    pub fn set_record(&mut self, at: Address, header: &Header, entries: &[Entry]) {
        let mut block = [0; BLOCK_BYTES];
        self.codec.encode(header, entries, &mut block);
        self.put(at, &block);
    }

    /// Writes bytes at an address.
    pub fn put(&mut self, at: Address, bytes: &[u8]) {
        let at = at.offset().get() as usize;
        if self.bytes.len() < at + bytes.len() {
            self.bytes.resize((at + bytes.len()).next_multiple_of(BLOCK_BYTES), 0);
        }
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Writes bytes into a part and recomputes the checksums that cover it.
    pub fn patch(&mut self, target: Target, at: usize, bytes: &[u8]) {
        match target {
            Target::Superblock(slot) => {
                let start = SLOTS[usize::from(slot % 2)].offset().get() as usize;
                // The superblock's bytes behind the first root are zero and ignored.
                overlay(&mut self.bytes[start..start + 432], at, bytes);
                let block = &mut self.bytes[start..start + BLOCK_BYTES];
                Superblock::seal(block.try_into().expect("one block"));
            }
            Target::Root => {
                let mut root = self.root_bytes().to_vec();
                overlay(&mut root, at, bytes);
                if !root.is_empty() {
                    self.set_root_bytes(&root);
                }
            }
            Target::Leaf(index) => {
                let leaves = self.root.leaves.len();
                if leaves > 0 {
                    let index = usize::from(index) % leaves;
                    let mut leaf = self.leaf(index);
                    overlay(&mut leaf, at, bytes);
                    self.set_leaf(index, &leaf);
                }
            }
            Target::Header(index) => {
                let start = self.headers[usize::from(index) % self.headers.len()];
                let block = &mut self.bytes[start..start + BLOCK_BYTES];
                overlay(block, at, bytes);
                self.codec.seal(block.try_into().expect("one block"));
            }
            Target::Anywhere(place) => {
                let end = self.bytes.len();
                let at = (usize::from(place) * (64 << 10) + at) % end;
                overlay(&mut self.bytes, at, bytes);
            }
        }
    }
}

/// Overwrites part of `target`, up to its end.
fn overlay(target: &mut [u8], at: usize, bytes: &[u8]) {
    if target.is_empty() {
        return;
    }
    let at = at % target.len();
    let room = bytes.len().min(target.len() - at);
    target[at..at + room].copy_from_slice(&bytes[..room]);
}

fn newest_in(bytes: &[u8]) -> Option<Superblock> {
    let decode = |slot: Address| {
        let start = slot.offset().get() as usize;
        let block = bytes.get(start..start + BLOCK_BYTES)?;
        Superblock::decode(block.try_into().ok()?).ok()
    };
    SLOTS.into_iter().filter_map(decode).max_by_key(|it| it.generation)
}
