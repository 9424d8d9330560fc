//! XFS: its log, and the headers of its allocation groups. Other metadata is known from the log
//! (`listed`).
//!
//! Source: the XFS Filesystem Structure (superblocks, AG free space management, internal log).
//! Everything is big-endian. Trees and directories have no fixed place.

use flowstone_block::Class;

use crate::fields::{array, be16, be32, be64, is_power_within, text};
use crate::layout::Builder;
use crate::listed::journal::Kind;
use crate::volume::{Scan, Volume};

const SUPERBLOCK_BYTES: usize = 512;
const MAGIC: &[u8] = b"XFSB";
/// Superblock, free space, inodes and free list: a sector each.
const HEADERS_PER_GROUP: u64 = 4;

/// The parsed fields of the superblock.
struct Superblock {
    block_bytes: u64,
    blocks: u64,
    /// In blocks of the file system, with the group in the upper bits; 0 if the log is external.
    log_start: u64,
    log_blocks: u64,
    group_blocks: u64,
    groups: u64,
    /// Number of bits of a block number that count within its group.
    group_bits: u32,
    sector_bytes: u64,
    uuid: [u8; 16],
    label: String,
}

/// Adds the file system on `volume` to the layout; `None` if there is none.
pub fn read(volume: &Volume, scan: &mut Scan<'_>, depth: u8, layout: &mut Builder) -> Option<()> {
    let bytes: [u8; SUPERBLOCK_BYTES] = volume.read_array(scan, 0)?;
    let superblock = Superblock::parse(&bytes)?;
    let bytes = superblock.blocks.checked_mul(superblock.block_bytes)?;
    if !superblock.is_plausible() || bytes > volume.bytes() {
        return None;
    }
    let volume = volume.part(0, bytes);
    layout.definer(&volume, 0..SUPERBLOCK_BYTES as u64);
    layout.file_system(&volume, bytes);
    layout.found("xfs", &volume, depth, &superblock.label);
    let log_bytes = superblock.log_blocks.saturating_mul(superblock.block_bytes);
    if let Some(start) = superblock.log_start_bytes() {
        let kind = Kind::Xfs { group_blocks: superblock.group_blocks };
        let log = start..start.saturating_add(log_bytes).min(volume.bytes());
        layout.journal(&volume, (superblock.uuid, superblock.block_bytes), kind, &[log]);
    }
    let mut mark = |start: u64, length: u64, class| {
        let end = start.saturating_add(length).min(volume.bytes());
        if start >= end {
            return layout.step(1);
        }
        layout.counted(class, end - start);
        layout.region(&volume, start..end, class) && !layout.is_full()
    };
    if let Some(start) = superblock.log_start_bytes() {
        mark(start, log_bytes, Class::Journal);
    }
    let group_bytes = superblock.group_blocks * superblock.block_bytes;
    let headers = HEADERS_PER_GROUP * superblock.sector_bytes;
    (0..superblock.groups).all(|group| mark(group * group_bytes, headers, Class::Metadata));
    Some(())
}

impl Superblock {
    fn parse(bytes: &[u8; SUPERBLOCK_BYTES]) -> Option<Self> {
        if &bytes[..4] != MAGIC {
            return None;
        }
        Some(Self {
            block_bytes: u64::from(be32(bytes, 4)),
            blocks: be64(bytes, 8),
            log_start: be64(bytes, 48),
            log_blocks: u64::from(be32(bytes, 96)),
            group_blocks: u64::from(be32(bytes, 84)),
            groups: u64::from(be32(bytes, 88)),
            group_bits: u32::from(bytes[124]),
            sector_bytes: u64::from(be16(bytes, 102)),
            uuid: array(bytes, 32),
            label: text(&bytes[108..120]),
        })
    }

    fn is_plausible(&self) -> bool {
        is_power_within(self.block_bytes, 512, 64 << 10)
            && is_power_within(self.sector_bytes, 512, 32 << 10)
            && self.group_bits <= 32
            && self.blocks > 0
            && self.group_blocks > 0
            && self.groups == self.blocks.div_ceil(self.group_blocks)
    }

    fn log_start_bytes(&self) -> Option<u64> {
        let (group, block) =
            (self.log_start >> self.group_bits, self.log_start & ((1 << self.group_bits) - 1));
        let block = group.checked_mul(self.group_blocks)?.checked_add(block)?;
        block.checked_mul(self.block_bytes).filter(|_| self.log_start != 0)
    }
}
