//! The superblock: parameters of the image, and its newest checkpoint. Layout: docs/format.md
//! section 3.

use flowstone_block::SectorCount;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::address::{Address, BLOCK_BYTES};
use super::erase_unit::EraseUnit;
use super::head::HeadPlace;
use super::ids::{Incarnation, SegmentId, Sequence};
use super::shape::Shape;

const MAGIC: [u8; 8] = *b"Flowlog\n";
/// The version of the format that this code writes.
pub const VERSION: u32 = 1;
/// Feature bits that this version knows: none yet.
const INCOMPATIBLE_KNOWN: u64 = 0;
const READONLY_COMPATIBLE_KNOWN: u64 = 0;
/// Addresses of the two slots.
pub const SLOTS: [Address; 2] = [Address::new(0), Address::new(16)];
/// Bytes from the start of the file to the end of the second slot.
pub const SUPERBLOCK_AREA_BYTES: u64 = 17 * BLOCK_BYTES as u64;
/// Streams that can have a head.
pub const HEADS: usize = 8;
const ROOTS: usize = 16;
const ROOT_OF_DISK: u32 = 1;

/// Address, size and checksum of the map root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RootPlace {
    /// Address of its first block.
    pub address: Address,
    /// Number of its blocks.
    pub blocks: u32,
    /// CRC32C of its blocks.
    pub checksum: u32,
    /// Its size in bytes.
    pub bytes: u64,
}

/// Amounts since the image was created, and its use of space at the checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Blocks appended to the log: everything written except superblocks.
    pub appended_blocks: u64,
    /// Of the appended blocks, copies of live blocks made by the cleaner.
    pub relocated_blocks: u64,
    /// Of the appended blocks, leaves and roots of the map.
    pub map_blocks: u64,
    /// Sectors that guests have discarded.
    pub discarded_sectors: u64,
    /// Blocks mapped at the checkpoint.
    pub live_blocks: u64,
    /// Segments that were not free at the checkpoint.
    pub used_segments: u64,
}

/// A superblock's contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Superblock {
    /// Feature bits of later versions that may be ignored; kept.
    pub compatible: u64,
    /// Feature bits that allow reading only.
    pub readonly_compatible: u64,
    /// Random identity, the seed of all checksums of headers.
    pub identity: [u8; 16],
    /// Number of this checkpoint.
    pub generation: u64,
    /// Number of times that the image was opened for writing.
    pub session: u64,
    /// Size of the disk.
    pub capacity_sectors: u64,
    /// Blocks of a segment.
    pub segment_blocks: u32,
    /// Limit of segments, segment 0 included.
    pub segments: u32,
    /// See [`Shape`](crate::Shape).
    pub reserve_percent: u32,
    /// Streams of guest data.
    pub streams: u32,
    /// Whether nothing was appended after this checkpoint.
    pub clean: bool,
    /// Time of the checkpoint.
    pub written_at: u64,
    /// Position of the next record.
    pub next_sequence: Sequence,
    /// Clock of lifetimes.
    pub clock: u64,
    /// Amounts since the image was created.
    pub totals: Totals,
    /// Heads of the streams, by lifetime.
    pub heads: [HeadPlace; HEADS],
    /// Place of the map root.
    pub root: RootPlace,
    /// Erase unit that segments are sized for; `None` in an image of an earlier version.
    pub erase_unit: Option<EraseUnit>,
}

/// Why a slot cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SuperblockError {
    /// It never held a superblock.
    Foreign,
    /// It held one, and is damaged or half-written.
    Damaged(&'static str),
    /// It is valid, but of a version or with features that this program does not know.
    Future(String),
}

impl SuperblockError {
    /// The file ends before the slot does.
    pub const SHORT: Self = Self::Damaged("the file is too short for a log image");
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    checksum: U32,
    incompatible: U64,
    readonly_compatible: U64,
    compatible: U64,
    identity: [u8; 16],
    generation: U64,
    session: U64,
    capacity_sectors: U64,
    segment_blocks: U32,
    segments: U32,
    reserve_percent: U32,
    streams: U32,
    clean: U32,
    root_count: U32,
    written_at: U64,
    next_sequence: U64,
    clock: U64,
    totals: [U64; 8],
    heads: [RawHead; HEADS],
    roots: [RawRoot; ROOTS],
    zero: [u8; 2944],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawHead {
    incarnation: U64,
    segment: U32,
    block: U32,
    zero: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawRoot {
    kind: U32,
    address: U32,
    blocks: U32,
    checksum: U32,
    bytes: U64,
    zero: [u8; 24],
}

const _: () = assert!(size_of::<Raw>() == BLOCK_BYTES);

impl Superblock {
    /// Returns the slot of this generation.
    pub fn slot(&self) -> Address {
        SLOTS[(self.generation % 2) as usize]
    }

    /// Encodes the superblock as a block.
    pub fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut raw = Raw::new_zeroed();
        raw.magic = MAGIC;
        raw.version = VERSION.into();
        raw.readonly_compatible = self.readonly_compatible.into();
        raw.compatible = self.compatible.into();
        raw.identity = self.identity;
        raw.generation = self.generation.into();
        raw.session = self.session.into();
        raw.capacity_sectors = self.capacity_sectors.into();
        raw.segment_blocks = self.segment_blocks.into();
        raw.segments = self.segments.into();
        raw.reserve_percent = self.reserve_percent.into();
        raw.streams = self.streams.into();
        raw.clean = u32::from(self.clean).into();
        raw.root_count = 1.into();
        raw.written_at = self.written_at.into();
        raw.next_sequence = self.next_sequence.get().into();
        raw.clock = self.clock.into();
        raw.totals = self.totals.encode(EraseUnit::encode(self.erase_unit));
        raw.heads = self.heads.map(RawHead::from);
        raw.roots[0] = self.root.into();
        raw.checksum = checksum(&raw).into();
        zerocopy::transmute!(raw)
    }

    /// Makes the superblock of an empty image.
    pub fn first(identity: [u8; 16], shape: Shape, segments: u32, capacity: SectorCount) -> Self {
        let mut superblock = Self {
            identity,
            generation: 1,
            capacity_sectors: capacity.get(),
            segment_blocks: shape.segment_blocks,
            segments,
            reserve_percent: shape.reserve_percent,
            streams: shape.streams,
            clean: true,
            next_sequence: Sequence::FIRST,
            ..Self::default()
        };
        for (head, number) in superblock.heads.iter_mut().zip(1..=shape.streams) {
            *head = HeadPlace::start_of(SegmentId::new(number), Incarnation::new(0, number));
        }
        superblock
    }

    /// Returns the shape of the image.
    pub const fn shape(&self) -> Shape {
        Shape {
            segment_blocks: self.segment_blocks,
            reserve_percent: self.reserve_percent,
            streams: self.streams,
        }
    }

    /// Decodes a slot.
    pub fn decode(block: &[u8; BLOCK_BYTES]) -> Result<Self, SuperblockError> {
        let raw: &Raw = zerocopy::transmute_ref!(block);
        if raw.magic != MAGIC {
            return Err(SuperblockError::Foreign);
        }
        if raw.checksum.get() != checksum(raw) {
            return Err(SuperblockError::Damaged("the superblock's checksum does not fit"));
        }
        if raw.version.get() != VERSION {
            let why =
                format!("its format version is {}, this program knows {VERSION}", raw.version);
            return Err(SuperblockError::Future(why));
        }
        let unknown = raw.incompatible.get() & !INCOMPATIBLE_KNOWN;
        if unknown != 0 {
            let why = format!("it uses incompatible features {unknown:#x} of a later version");
            return Err(SuperblockError::Future(why));
        }
        let superblock = Self {
            compatible: raw.compatible.get(),
            readonly_compatible: raw.readonly_compatible.get(),
            identity: raw.identity,
            generation: raw.generation.get(),
            session: raw.session.get(),
            capacity_sectors: raw.capacity_sectors.get(),
            segment_blocks: raw.segment_blocks.get(),
            segments: raw.segments.get(),
            reserve_percent: raw.reserve_percent.get(),
            streams: raw.streams.get(),
            clean: raw.clean.get() == 1,
            written_at: raw.written_at.get(),
            next_sequence: Sequence::new(raw.next_sequence.get()),
            clock: raw.clock.get(),
            totals: Totals::decode(&raw.totals),
            heads: raw.heads.map(HeadPlace::from),
            root: raw.roots[0].into(),
            erase_unit: EraseUnit::decode(raw.totals[6].get()),
        };
        let kind = raw.roots[0].kind.get();
        if raw.root_count.get() != 1 || kind != ROOT_OF_DISK {
            return Err(SuperblockError::Damaged("the superblock does not name one map root"));
        }
        Ok(superblock)
    }

    /// Recomputes the checksum of a slot.
    #[cfg(any(test, feature = "testing"))]
    pub fn seal(block: &mut [u8; BLOCK_BYTES]) {
        let raw: &mut Raw = zerocopy::transmute_mut!(block);
        raw.checksum = checksum(raw).into();
    }

    /// Returns the unknown feature bits that allow reading only.
    pub fn readonly_features(&self) -> u64 {
        self.readonly_compatible & !READONLY_COMPATIBLE_KNOWN
    }
}

fn checksum(raw: &Raw) -> u32 {
    let bytes = raw.as_bytes();
    let sum = crc32c::crc32c(&bytes[..12]);
    let sum = crc32c::crc32c_append(sum, &[0; 4]);
    crc32c::crc32c_append(sum, &bytes[16..])
}

impl Totals {
    fn encode(self, erase_unit: u64) -> [U64; 8] {
        [
            self.appended_blocks,
            self.relocated_blocks,
            self.map_blocks,
            self.discarded_sectors,
            self.live_blocks,
            self.used_segments,
            erase_unit,
            0,
        ]
        .map(U64::new)
    }

    fn decode(raw: &[U64; 8]) -> Self {
        let [appended, relocated, map, discarded, live, used, _, _] = raw.map(U64::get);
        Self {
            appended_blocks: appended,
            relocated_blocks: relocated,
            map_blocks: map,
            discarded_sectors: discarded,
            live_blocks: live,
            used_segments: used,
        }
    }
}

impl From<HeadPlace> for RawHead {
    fn from(head: HeadPlace) -> Self {
        Self {
            incarnation: head.incarnation.bits().into(),
            segment: head.segment.get().into(),
            block: head.block.into(),
            zero: 0.into(),
        }
    }
}

impl From<RawHead> for HeadPlace {
    fn from(raw: RawHead) -> Self {
        Self {
            incarnation: Incarnation::from_bits(raw.incarnation.get()),
            segment: SegmentId::new(raw.segment.get()),
            block: raw.block.get(),
        }
    }
}

impl From<RootPlace> for RawRoot {
    fn from(root: RootPlace) -> Self {
        Self {
            kind: ROOT_OF_DISK.into(),
            address: root.address.get().into(),
            blocks: root.blocks.into(),
            checksum: root.checksum.into(),
            bytes: root.bytes.into(),
            zero: [0; 24],
        }
    }
}

impl From<RawRoot> for RootPlace {
    fn from(raw: RawRoot) -> Self {
        Self {
            address: Address::new(raw.address.get()),
            blocks: raw.blocks.get(),
            checksum: raw.checksum.get(),
            bytes: raw.bytes.get(),
        }
    }
}
