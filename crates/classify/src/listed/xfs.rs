//! The log of XFS: each item of a transaction gives the address of the buffer or the inodes that it
//! changes; a freed buffer is cancelled.
//!
//! Source: the XFS Filesystem Structure (internal log), Linux fs/xfs/libxfs/xfs_log_format.h.
//! Headers of records and operations are big-endian, items are in the guest's byte order: only
//! little-endian ones are read. An operation carries one region of an item; the first one of each
//! item has the number of its regions. So within a record the role of a region is known once the
//! transaction has begun there or an item has been recognised by its format. Of a region that is
//! split at the end of a record, the second part is not read. The space of a cancelled buffer is
//! not reused before the transaction is in the log (busy extents).

use std::ops::Range;

use flowstone_block::mutated;

use super::told::{Tell, Told};
use crate::fields::{be32, be64, le16, le32, le64};

/// Unit of the log, and of addresses in buffer and inode items.
pub const SECTOR: usize = 512;

const RECORD_MAGIC: [u8; 4] = 0xFEED_BABE_u32.to_be_bytes();
const VERSION_2: u32 = 2;
const FORMAT_LITTLE_ENDIAN: u32 = 1;
/// A header has the first words of this many sectors.
const CYCLES_PER_HEADER: usize = 64;
const CYCLES_AT: usize = 44;
const CYCLES_AT_IN_EXTENSION: usize = 4;
/// Largest record.
const RECORD_BYTES_MAX: usize = 256 << 10;

const OPERATION_BYTES: usize = 12;
const CLIENT_TRANSACTION: u8 = 0x69;

mod operation {
    pub const START: u8 = 0x01;
    pub const COMMIT: u8 = 0x02;
    pub const CONTINUES: u8 = 0x04;
    pub const WAS_CONTINUED: u8 = 0x08;
    pub const UNMOUNT: u8 = 0x20;
}

mod item {
    pub const INODE: u16 = 0x123B;
    pub const BUFFER: u16 = 0x123C;
    pub const INODE_CREATE: u16 = 0x123F;
    /// First and last item type, with room for later ones.
    pub const KNOWN: std::ops::RangeInclusive<u16> = 0x1236..=0x125F;
}

const TRANSACTION_MAGIC: u32 = 0x5452_414E;
const TRANSACTION_BYTES: usize = 16;
const BUFFER_BYTES: usize = 20;
const BUFFER_PLACE_BYTES: usize = 16;
const BUFFER_CANCELLED: u16 = 0x2;
const INODE_BYTES: usize = 56;
const INODE_CREATE_BYTES: usize = 28;
/// No buffer is larger than the largest block, and no inode cluster has more blocks.
const BUFFER_SECTORS_MAX: u64 = 128;
const CREATED_BLOCKS_MAX: u64 = 256;
/// Upper bound of an item's regions: runs of changed parts of a buffer, and the parts of an inode,
/// are far fewer.
const REGIONS_MAX: u16 = 1024;
/// Transactions that a record has parts of.
const TRANSACTIONS_MAX: usize = 8;

/// Returns whether a record begins there. No other sector of a log begins like this.
pub fn begins_record(sectors: &[u8]) -> bool {
    sectors.starts_with(&RECORD_MAGIC)
}

/// Returns the length of the record that begins there; `None` if none does.
pub fn record_bytes(sectors: &[u8]) -> Option<usize> {
    if !begins_record(sectors) {
        return None;
    }
    // In areas of old records the guest writes headers alone.
    if sectors.get(SECTOR..).is_some_and(begins_record) {
        return Some(SECTOR);
    }
    let body = be32(sectors, 12) as usize;
    let whole = header_bytes(sectors)? + body.next_multiple_of(SECTOR);
    (body <= RECORD_BYTES_MAX).then_some(whole)
}

fn header_bytes(record: &[u8]) -> Option<usize> {
    if be32(record, 8) & VERSION_2 == 0 {
        return Some(SECTOR);
    }
    let size = be32(record, 320) as usize;
    let headers = size.div_ceil(CYCLES_PER_HEADER * SECTOR).max(1);
    (size <= RECORD_BYTES_MAX).then_some(headers * SECTOR)
}

/// Returns the sequence number of a record.
pub fn sequence(record: &[u8]) -> u64 {
    be64(record, 16)
}

/// Reads a record, after restoring the words that the log keeps elsewhere. `None` if it cannot be
/// read.
pub fn read(record: &mut [u8], geometry: Geometry, tell: Tell<'_>) -> Option<()> {
    if record.len() == SECTOR {
        return Some(());
    }
    if be32(record, 300) != FORMAT_LITTLE_ENDIAN {
        return None;
    }
    let (operations, body_bytes) = (be32(record, 40), be32(record, 12) as usize);
    let header = header_bytes(record)?;
    restore(record, header)?;
    let mut body = record.get(header..)?.get(..body_bytes)?;
    let mut transactions = Transactions::default();
    for _ in 0..operations {
        let (head, behind) = body.split_at_checked(OPERATION_BYTES)?;
        let (region, behind) = behind.split_at_checked(be32(head, 4) as usize)?;
        body = behind;
        let (transaction, client, flags) = (be32(head, 0), head[8], head[9]);
        if flags & operation::UNMOUNT != 0 {
            tell(Told::Empty)?;
        } else if client == CLIENT_TRANSACTION {
            transactions.read(transaction, flags, region, geometry, tell)?;
        }
    }
    Some(())
}

/// Restores the first word of each sector, which the log replaces by its cycle number.
fn restore(record: &mut [u8], header: usize) -> Option<()> {
    let (header, body) = record.split_at_mut_checked(header)?;
    for (nth, sector) in body.chunks_exact_mut(SECTOR).enumerate() {
        let (extension, place) = (nth / CYCLES_PER_HEADER, nth % CYCLES_PER_HEADER);
        let first = if extension == 0 { CYCLES_AT } else { CYCLES_AT_IN_EXTENSION };
        let at = extension * SECTOR + first + 4 * place;
        sector[..4].copy_from_slice(header.get(at..at + 4)?);
    }
    Some(())
}

/// The sizes needed to find an allocation group's blocks.
#[derive(Clone, Copy)]
pub struct Geometry {
    pub block_bytes: u64,
    pub group_blocks: u64,
}

/// The number of regions of the current item that are still to come, by transaction; unknown for
/// transactions that are not in the list.
#[derive(Default)]
struct Transactions(Vec<(u32, u16)>);

impl Transactions {
    fn read(
        &mut self,
        transaction: u32,
        flags: u8,
        region: &[u8],
        geometry: Geometry,
        tell: Tell<'_>,
    ) -> Option<()> {
        if flags & (operation::START | operation::COMMIT) != 0 {
            self.0.retain(|(it, _)| *it != transaction);
            if flags & operation::START != 0 {
                self.set(transaction, 0)?;
            }
        }
        if region.is_empty() || flags & operation::WAS_CONTINUED != 0 {
            return Some(());
        }
        let left = self.0.iter_mut().find(|(it, _)| *it == transaction);
        if let Some((_, left @ 1..)) = left {
            *left -= 1;
            return Some(());
        }
        let (is_known, is_cut) = (left.is_some(), flags & operation::CONTINUES != 0);
        let is_transaction =
            region.len() == TRANSACTION_BYTES && le32(region, 0) == TRANSACTION_MAGIC;
        if is_transaction || is_known && is_cut && region.len() < 4 {
            // A region too short to be recognised may be of a cancelled buffer.
            return if is_transaction { self.set(transaction, 0) } else { None };
        }
        match Item::parse(region, is_cut) {
            Parsed::Item(item, regions) => {
                item.tell(geometry, tell)?;
                self.set(transaction, regions - 1)
            }
            // It may be a region of an item that began in the record before.
            Parsed::Unread(_) | Parsed::Other if !is_known => Some(()),
            Parsed::Unread(regions) => self.set(transaction, regions - 1),
            Parsed::Other | Parsed::Cut => None,
        }
    }

    fn set(&mut self, transaction: u32, left: u16) -> Option<()> {
        if let Some(entry) = self.0.iter_mut().find(|(it, _)| *it == transaction) {
            entry.1 = left;
            return Some(());
        }
        self.0.push((transaction, left));
        (self.0.len() <= TRANSACTIONS_MAX).then_some(())
    }
}

/// The content of the first region of an item.
enum Item {
    Buffer { sectors: Range<u64>, is_cancelled: bool },
    Inode { sectors: Range<u64> },
    InodeCreate { group: u64, block: u64, blocks: u64 },
}

/// The role of a region.
enum Parsed {
    /// The first region of an item, with the number of its regions.
    Item(Item, u16),
    /// The first region of an item that is not read.
    Unread(u16),
    /// Not the first region of an item.
    Other,
    /// Too short to be recognised; may begin an item.
    Cut,
}

impl Item {
    fn parse(region: &[u8], is_cut: bool) -> Parsed {
        if region.len() < 4 {
            return if is_cut { Parsed::Cut } else { Parsed::Other };
        }
        let (kind, regions) = (le16(region, 0), le16(region, 2));
        if !item::KNOWN.contains(&kind) || !(1..=REGIONS_MAX).contains(&regions) {
            return Parsed::Other;
        }
        let parsed = match kind {
            item::BUFFER if is_cut && region.len() < BUFFER_PLACE_BYTES => return Parsed::Cut,
            item::BUFFER => Self::buffer(region, is_cut),
            item::INODE if region.len() == INODE_BYTES => {
                let sectors = sectors(le64(region, 40), le32(region, 48).into());
                sectors.map(|sectors| Self::Inode { sectors })
            }
            item::INODE_CREATE if region.len() == INODE_CREATE_BYTES => Self::create(region),
            // Its second part is in another record, or it is not used here.
            _ => return Parsed::Unread(regions),
        };
        parsed.map_or(Parsed::Other, |item| Parsed::Item(item, regions))
    }

    /// Parses a buffer item, which ends with a bitmap of the parts in its next regions.
    fn buffer(region: &[u8], is_cut: bool) -> Option<Self> {
        if !is_cut {
            let words = le32(region.get(..BUFFER_BYTES)?, 16) as usize;
            words.checked_mul(4).filter(|bitmap| region.len() == BUFFER_BYTES + bitmap)?;
        }
        let sectors = sectors(le64(region, 8), le16(region, 6).into())?;
        let is_cancelled = le16(region, 4) & BUFFER_CANCELLED != 0;
        Some(Self::Buffer { sectors, is_cancelled })
    }

    fn create(region: &[u8]) -> Option<Self> {
        let (group, block, blocks) = (be32(region, 4), be32(region, 8), be32(region, 20));
        let (group, block, blocks) = (group.into(), block.into(), u64::from(blocks));
        (blocks <= CREATED_BLOCKS_MAX).then_some(Self::InodeCreate { group, block, blocks })
    }

    fn tell(self, geometry: Geometry, tell: Tell<'_>) -> Option<()> {
        let bytes = |sectors: Range<u64>| {
            let start = sectors.start.checked_mul(SECTOR as u64)?;
            Some(start..sectors.end.checked_mul(SECTOR as u64)?)
        };
        tell(match self {
            Self::Buffer { sectors, is_cancelled: true } => {
                let is_ignored = mutated("classify.xfs.ignores-what-is-cancelled", false, true);
                if is_ignored {
                    return Some(());
                }
                Told::TakesBack(bytes(sectors)?)
            }
            Self::Buffer { sectors, .. } => Told::Lists(bytes(sectors)?),
            // Also written for freed inodes, in the transaction that cancels their buffer.
            Self::Inode { sectors } => Told::Mentions(bytes(sectors)?),
            Self::InodeCreate { group, block, blocks } => {
                let start = group.checked_mul(geometry.group_blocks)?.checked_add(block)?;
                let end = start.checked_add(blocks)?;
                let bytes = |block: u64| block.checked_mul(geometry.block_bytes);
                Told::Lists(bytes(start)?..bytes(end)?)
            }
        })
    }
}

fn sectors(start: u64, count: u64) -> Option<Range<u64>> {
    let end = start.checked_add(count)?;
    (count <= BUFFER_SECTORS_MAX).then_some(start..end)
}
