//! The journal of ext3 and ext4: descriptor blocks list the blocks that follow them in the journal,
//! and revoke blocks revoke blocks.
//!
//! Source: Linux, Documentation/filesystems/ext4/journal. Everything is big-endian. The kernel
//! escapes copies of blocks in the journal: no copy begins with the magic number, so each block of
//! a write that does is a block of the journal's own format, and a write can be read by itself. A
//! freed block is revoked in the transaction that frees it, and is not reused before that has
//! committed.

use flowstone_block::mutated;

use super::told::{Tell, Told};
use crate::fields::{be16, be32, be64};

const MAGIC: u32 = 0xC03B_3998;
const HEADER_BYTES: usize = 12;
const UUID_BYTES: usize = 16;
/// The checksum at the end of a descriptor or revoke block.
const TAIL_BYTES: usize = 4;
/// The part of the superblock that is parsed.
pub const SUPERBLOCK_BYTES: usize = 48;

mod block_type {
    pub const DESCRIPTOR: u32 = 1;
    pub const SUPERBLOCK_V1: u32 = 3;
    pub const SUPERBLOCK_V2: u32 = 4;
    pub const REVOKE: u32 = 5;
}

mod incompat {
    pub const IS_64BIT: u32 = 0x2;
    pub const CSUM_V2: u32 = 0x8;
    pub const CSUM_V3: u32 = 0x10;
}

mod tag {
    pub const SAME_UUID: u32 = 0x2;
    pub const LAST_TAG: u32 = 0x8;
    /// Escaped, same UUID, deleted, last.
    pub const KNOWN: u32 = 0xF;
}

/// The format of the journal's own blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    is_64bit: bool,
    has_csum_v2: bool,
    has_csum_v3: bool,
}

impl Format {
    /// Parses the journal's superblock; `None` if it is not one for this block size.
    pub fn parse(superblock: &[u8], block_bytes: u64) -> Option<Self> {
        let (block_type, size) = (be32(superblock, 4), be32(superblock, 12));
        if be32(superblock, 0) != MAGIC || u64::from(size) != block_bytes {
            return None;
        }
        let incompat = match block_type {
            block_type::SUPERBLOCK_V1 => 0,
            block_type::SUPERBLOCK_V2 => be32(superblock, 40),
            _ => return None,
        };
        Some(Self {
            is_64bit: incompat & incompat::IS_64BIT != 0,
            has_csum_v2: incompat & incompat::CSUM_V2 != 0,
            has_csum_v3: incompat & incompat::CSUM_V3 != 0,
        })
    }

    fn tag_bytes(self) -> usize {
        // Tags with checksums v2 are two bytes longer than the sum of their fields.
        match (self.has_csum_v3, self.is_64bit) {
            (true, _) => 16,
            (false, true) => 12 + 2 * usize::from(self.has_csum_v2),
            (false, false) => 8 + 2 * usize::from(self.has_csum_v2),
        }
    }

    fn tail_bytes(self) -> usize {
        if self.has_csum_v2 || self.has_csum_v3 { TAIL_BYTES } else { 0 }
    }
}

/// Reads a write of whole blocks to the journal, in the format last written, else in the format
/// that was read from the disk. `None` if it cannot be read.
pub fn read(
    written: &mut Option<Format>,
    read: Option<Format>,
    block_bytes: u64,
    write: &[u8],
    tell: Tell<'_>,
) -> Option<()> {
    let mut tell_block = |block: u64, is_listed: bool| {
        let start = block.checked_mul(block_bytes)?;
        let range = start..start.checked_add(block_bytes)?;
        tell(if is_listed { Told::Lists(range) } else { Told::TakesBack(range) })
    };
    let mut is_emptied = false;
    for block in write.chunks_exact(usize::try_from(block_bytes).ok()?) {
        if be32(block, 0) != MAGIC {
            continue;
        }
        let format = written.or(read);
        match be32(block, 4) {
            block_type::DESCRIPTOR => read_descriptor(format?, block, &mut tell_block)?,
            block_type::REVOKE => {
                let is_read = mutated("classify.jbd2.ignores-what-is-revoked", true, false);
                if is_read {
                    read_revoked(format?, block, &mut tell_block)?;
                }
            }
            block_type::SUPERBLOCK_V1 | block_type::SUPERBLOCK_V2 => {
                // The kernel chooses the format of a journal when it mounts it for the first time.
                *written = Format::parse(block, block_bytes);
                is_emptied |= be32(block, 28) == 0;
            }
            _ => {}
        }
    }
    if is_emptied { tell(Told::Empty) } else { Some(()) }
}

fn read_descriptor(
    format: Format,
    block: &[u8],
    tell: &mut impl FnMut(u64, bool) -> Option<()>,
) -> Option<()> {
    let end = block.len() - format.tail_bytes();
    let mut at = HEADER_BYTES;
    while at + format.tag_bytes() <= end {
        let low = u64::from(be32(block, at));
        // 32 bits with checksums v3; else 16 bits after a checksum.
        let flags =
            if format.has_csum_v3 { be32(block, at + 4) } else { be16(block, at + 6).into() };
        if flags & !tag::KNOWN != 0 {
            return None;
        }
        let high = if format.is_64bit { u64::from(be32(block, at + 8)) } else { 0 };
        tell(high << 32 | low, true)?;
        at += format.tag_bytes();
        let has_uuid = flags & tag::SAME_UUID == 0;
        let has_uuid = mutated("classify.jbd2.each-tag-has-a-uuid", has_uuid, true);
        if has_uuid {
            at += UUID_BYTES;
        }
        if flags & tag::LAST_TAG != 0 {
            break;
        }
    }
    Some(())
}

fn read_revoked(
    format: Format,
    block: &[u8],
    tell: &mut impl FnMut(u64, bool) -> Option<()>,
) -> Option<()> {
    let used = be32(block, HEADER_BYTES) as usize;
    let records = block.get(HEADER_BYTES + 4..used)?;
    let record_bytes = if format.is_64bit { 8 } else { 4 };
    records.chunks_exact(record_bytes).try_for_each(|record| {
        let revoked = if format.is_64bit { be64(record, 0) } else { be32(record, 0).into() };
        tell(revoked, false)
    })
}
