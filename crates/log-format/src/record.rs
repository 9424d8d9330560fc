//! Records: a header block and the blocks it describes. Layout: docs/format.md section 4.

use std::ops::Range;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use flowstone_block::mutated;

use super::address::{Address, BLOCK_BYTES};
use super::ids::{Incarnation, Sequence};

const MAGIC: [u8; 4] = *b"FLRC";
/// Entries that fit in a header.
pub const ENTRIES_MAX: usize = (BLOCK_BYTES - size_of::<RawHeader>()) / size_of::<RawEntry>();
/// Maximum number of blocks of one trim entry: they are unmapped one by one.
pub const TRIM_BLOCKS_MAX: u32 = 1 << 15;
/// Maximum length of a record: that of the largest segment.
const RECORD_BLOCKS_MAX: u32 = 1 << 18;
/// Blocks of a leaf on disk.
pub const LEAF_ON_DISK_BLOCKS: u32 = 4;

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Guest writes and trims, in the order of guest writes.
    Writes = 1,
    /// The end of a segment, in the order of guest writes: the stream goes on in another segment.
    Seal = 2,
    /// Copies made by the cleaner, in an order of their own; replay applies those that have a
    /// `link`.
    Relocated = 3,
    /// Leaves and roots of the map; never replayed.
    Map = 4,
}

impl Kind {
    const fn from_number(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Writes),
            2 => Some(Self::Seal),
            3 => Some(Self::Relocated),
            4 => Some(Self::Map),
            _ => None,
        }
    }

    /// Returns the kind of the record that begins with this block, if it looks like a header. Only
    /// for statistics: no checksum is compared.
    pub fn of_header(block: &[u8]) -> Option<Self> {
        let (header, _) = RawHeader::ref_from_prefix(block).ok()?;
        Self::from_number(header.kind.get()).filter(|_| header.magic == MAGIC)
    }
}

/// One entry of a record. Checksums are CRC32C of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A guest block; its data is the next payload block.
    Data {
        /// Guest block.
        lba: u64,
        /// Checksum of its data.
        checksum: u32,
    },
    /// A range of guest blocks that becomes unmapped.
    Trim {
        /// First guest block.
        lba: u64,
        /// Number of blocks.
        count: u32,
    },
    /// A leaf of the map, in the next payload blocks.
    Leaf {
        /// Number of the leaf.
        leaf: u32,
        /// Checksum of the leaf.
        checksum: u32,
    },
    /// A root of the map, in the next payload blocks.
    Root {
        /// Number of payload blocks.
        blocks: u32,
        /// Checksum of the root.
        checksum: u32,
    },
    /// The incarnation of the segment that a seal leads to.
    Next {
        /// Incarnation of that segment.
        incarnation: Incarnation,
    },
    /// A guest block that the cleaner copied, in the next payload block.
    Moved {
        /// Guest block.
        lba: u64,
        /// Address that it was copied from.
        from: Address,
        /// Checksum of its data.
        checksum: u32,
    },
}

impl Entry {
    /// Returns the guest blocks that it concerns; none for structures.
    pub const fn blocks(self) -> Range<u64> {
        match self {
            Self::Data { lba, .. } | Self::Moved { lba, .. } => lba..lba + 1,
            Self::Trim { lba, count } => lba..lba + count as u64,
            Self::Leaf { .. } | Self::Root { .. } | Self::Next { .. } => 0..0,
        }
    }

    /// Returns the number of its payload blocks.
    pub const fn payload_blocks(self) -> u32 {
        match self {
            Self::Data { .. } | Self::Moved { .. } => 1,
            Self::Trim { .. } | Self::Next { .. } => 0,
            Self::Leaf { .. } => LEAF_ON_DISK_BLOCKS,
            Self::Root { blocks, .. } => blocks,
        }
    }
}

/// Fields of a header, without the entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Incarnation of the segment.
    pub incarnation: Incarnation,
    /// 0 for records outside the order of guest writes.
    pub sequence: Sequence,
    /// See [`Stamp`](crate::Stamp).
    pub durable: Sequence,
    /// Generation of the newest durable checkpoint.
    pub generation: u64,
    /// The header's block within its segment.
    pub position: u32,
    /// Kind of the record.
    pub kind: Kind,
    /// Blocks behind the header.
    pub payload_blocks: u32,
    /// For a seal: the segment in which the stream goes on. For copies that replay may use: the
    /// incarnation of the one segment they come from. Otherwise 0.
    pub link: u64,
}

impl Header {
    /// Returns the blocks of the whole record.
    pub const fn record_blocks(&self) -> u32 {
        1 + self.payload_blocks
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 4],
    checksum: U32,
    incarnation: U64,
    sequence: U64,
    durable: U64,
    generation: U64,
    position: U32,
    kind: U32,
    entries: U32,
    payload: U32,
    link: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawEntry {
    subject: U64,
    count: U32,
    checksum: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawBlock {
    header: RawHeader,
    entries: [RawEntry; ENTRIES_MAX],
}

const _: () = assert!(size_of::<RawBlock>() == BLOCK_BYTES);

const KIND_SHIFT: u32 = 56;
const SUBJECT_MASK: u64 = (1 << KIND_SHIFT) - 1;

impl RawEntry {
    fn new(kind: u64, subject: u64, count: u32, checksum: u32) -> Self {
        let subject = kind << KIND_SHIFT | subject & SUBJECT_MASK;
        Self { subject: subject.into(), count: count.into(), checksum: checksum.into() }
    }

    fn decode(&self) -> Option<Entry> {
        let subject = self.subject.get();
        let (kind, subject) = (subject >> KIND_SHIFT, subject & SUBJECT_MASK);
        let (count, checksum) = (self.count.get(), self.checksum.get());
        Some(match kind {
            1 if count == 1 => Entry::Data { lba: subject, checksum },
            2 if count <= TRIM_BLOCKS_MAX => Entry::Trim { lba: subject, count },
            3 if count == LEAF_ON_DISK_BLOCKS => {
                Entry::Leaf { leaf: u32::try_from(subject).ok()?, checksum }
            }
            4 => Entry::Root { blocks: count, checksum },
            5 => Entry::Next { incarnation: Incarnation::from_bits(subject) },
            6 => Entry::Moved { lba: subject, from: Address::new(count), checksum },
            _ => return None,
        })
    }
}

impl From<Entry> for RawEntry {
    fn from(entry: Entry) -> Self {
        match entry {
            Entry::Data { lba, checksum } => Self::new(1, lba, 1, checksum),
            Entry::Trim { lba, count } => Self::new(2, lba, count, 0),
            Entry::Leaf { leaf, checksum } => {
                Self::new(3, u64::from(leaf), LEAF_ON_DISK_BLOCKS, checksum)
            }
            Entry::Root { blocks, checksum } => Self::new(4, 0, blocks, checksum),
            Entry::Next { incarnation } => Self::new(5, incarnation.bits(), 0, 0),
            Entry::Moved { lba, from, checksum } => Self::new(6, lba, from.get(), checksum),
        }
    }
}

/// Encodes and decodes headers of one image: their checksums are seeded with its identity.
#[derive(Clone, Copy, Debug)]
pub struct Codec {
    seed: u32,
}

impl Codec {
    /// The codec of the image with this identity.
    pub fn new(identity: &[u8; 16]) -> Self {
        Self { seed: crc32c::crc32c(identity) }
    }

    /// Writes the header block.
    ///
    /// # Panics
    /// If there are more entries than fit.
    pub fn encode(&self, header: &Header, entries: &[Entry], block: &mut [u8]) {
        let block: &mut [u8; BLOCK_BYTES] = block.try_into().expect("a header is one block");
        let raw: &mut RawBlock = zerocopy::transmute_mut!(block);
        raw.header = RawHeader {
            magic: MAGIC,
            checksum: 0.into(),
            incarnation: header.incarnation.bits().into(),
            sequence: header.sequence.get().into(),
            durable: header.durable.get().into(),
            generation: header.generation.into(),
            position: header.position.into(),
            kind: (header.kind as u32).into(),
            entries: (entries.len() as u32).into(),
            payload: header.payload_blocks.into(),
            link: header.link.into(),
        };
        let (used, rest) = raw.entries.split_at_mut(entries.len());
        used.iter_mut().zip(entries).for_each(|(raw, entry)| *raw = (*entry).into());
        rest.as_mut_bytes().fill(0);
        raw.header.checksum = self.checksum(raw).into();
    }

    /// Reads a header block into `entries`; `None` if it is not a header of this image.
    pub fn decode(&self, block: &[u8], entries: &mut Vec<Entry>) -> Option<Header> {
        entries.clear();
        let block: &[u8; BLOCK_BYTES] = block.try_into().ok()?;
        let raw: &RawBlock = zerocopy::transmute_ref!(block);
        let fits = raw.header.checksum.get() == self.checksum(raw);
        let fits = mutated("log.record.header-unchecked", fits, true);
        if raw.header.magic != MAGIC || !fits {
            return None;
        }
        let kind = Kind::from_number(raw.header.kind.get())?;
        let raw_entries = raw.entries.get(..raw.header.entries.get() as usize)?;
        let mut payload = 0u32;
        for raw in raw_entries {
            let entry = raw.decode()?;
            payload = payload.checked_add(entry.payload_blocks())?;
            entries.push(entry);
        }
        if payload != raw.header.payload.get() || payload >= RECORD_BLOCKS_MAX {
            return None;
        }
        Some(Header {
            incarnation: Incarnation::from_bits(raw.header.incarnation.get()),
            sequence: Sequence::new(raw.header.sequence.get()),
            durable: Sequence::new(raw.header.durable.get()),
            generation: raw.header.generation.get(),
            position: raw.header.position.get(),
            kind,
            payload_blocks: payload,
            link: raw.header.link.get(),
        })
    }

    /// Recomputes the checksum of a header block.
    #[cfg(any(test, feature = "testing"))]
    pub fn seal(&self, block: &mut [u8; BLOCK_BYTES]) {
        let raw: &mut RawBlock = zerocopy::transmute_mut!(block);
        raw.header.checksum = self.checksum(raw).into();
    }

    fn checksum(&self, raw: &RawBlock) -> u32 {
        let bytes = raw.as_bytes();
        let sum = crc32c::crc32c_append(self.seed, &bytes[..4]);
        let sum = crc32c::crc32c_append(sum, &[0; 4]);
        crc32c::crc32c_append(sum, &bytes[8..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header = Header {
        incarnation: Incarnation::new(7, 3),
        sequence: Sequence::new(99),
        durable: Sequence::new(90),
        generation: 12,
        position: 17,
        kind: Kind::Writes,
        payload_blocks: 2,
        link: 0,
    };
    const ENTRIES: [Entry; 3] = [
        Entry::Data { lba: 5, checksum: 1 },
        Entry::Trim { lba: 1 << 33, count: 32768 },
        Entry::Data { lba: 6, checksum: u32::MAX },
    ];

    fn encoded() -> (Codec, Vec<u8>) {
        let codec = Codec::new(&[9; 16]);
        let mut block = vec![0xaa; BLOCK_BYTES];
        codec.encode(&HEADER, &ENTRIES, &mut block);
        (codec, block)
    }

    #[test]
    fn a_header_comes_back_as_it_was() {
        let (codec, block) = encoded();
        let mut entries = Vec::new();
        assert_eq!(codec.decode(&block, &mut entries), Some(HEADER));
        assert_eq!(entries, ENTRIES);
        assert_eq!(Kind::of_header(&block), Some(HEADER.kind));
        assert_eq!(Kind::of_header(&[0; BLOCK_BYTES]), None);
    }

    #[test]
    fn any_flipped_bit_and_any_other_image_is_refused() {
        let (codec, block) = encoded();
        let mut entries = Vec::new();
        assert_eq!(Codec::new(&[8; 16]).decode(&block, &mut entries), None);
        for bit in (0..BLOCK_BYTES * 8).step_by(7) {
            let mut bad = block.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(codec.decode(&bad, &mut entries), None, "bit {bit}");
        }
    }
}
