//! The superblock: sizes of all structures, and the features that change their places.

use flowstone_block::Class;

use crate::fields::{array, is_power_within, le16, le32, le64, text};
use crate::volume::{Scan, Volume};

/// Its byte offset, whatever the block size.
pub const SUPERBLOCK_AT: u64 = 1024;
/// Its length.
pub const SUPERBLOCK_BYTES: usize = 1024;

const MAGIC: u16 = 0xEF53;
/// The largest block size is 64 KiB.
const LOG_BLOCK_MAX: u32 = 6;
/// Smallest group that mke2fs makes.
const BLOCKS_PER_GROUP_MIN: u64 = 256;
/// 256 TiB with blocks of 4 KiB.
const GROUPS_MAX: u64 = 1 << 21;

mod compat {
    pub const HAS_JOURNAL: u32 = 0x4;
    pub const SPARSE_SUPER2: u32 = 0x200;
    pub const ORPHAN_FILE: u32 = 0x1000;
}

mod incompat {
    pub const JOURNAL_DEV: u32 = 0x8;
    pub const META_BG: u32 = 0x10;
    pub const EXTENTS: u32 = 0x40;
    pub const IS_64BIT: u32 = 0x80;
    pub const MMP: u32 = 0x100;
}

mod ro_compat {
    pub const SPARSE_SUPER: u32 = 0x1;
}

/// The parsed fields of a superblock; the sizes are plausible.
pub struct Superblock {
    pub block_bytes: u64,
    pub blocks: u64,
    pub first_data_block: u64,
    pub blocks_per_group: u64,
    pub inodes_per_group: u64,
    pub inode_bytes: u64,
    pub descriptor_bytes: u64,
    pub reserved_descriptor_blocks: u64,
    /// Descriptor blocks from this one on are in their own groups.
    pub first_meta_group: Option<u64>,
    pub mmp_block: Option<u64>,
    pub uuid: [u8; 16],
    pub label: String,
    compat: u32,
    incompat: u32,
    ro_compat: u32,
    journal_inode: u32,
    orphan_inode: u32,
    backup_groups: [u32; 2],
}

impl Superblock {
    pub fn read(volume: &Volume, scan: &mut Scan<'_>) -> Option<Self> {
        let bytes: [u8; SUPERBLOCK_BYTES] = volume.read_array(scan, SUPERBLOCK_AT)?;
        let superblock = Self::parse(&bytes)?;
        // The kernel does not mount a file system that is larger than its device.
        let bytes = superblock.blocks.checked_mul(superblock.block_bytes)?;
        (bytes <= volume.bytes() && superblock.is_plausible()).then_some(superblock)
    }

    fn parse(bytes: &[u8; SUPERBLOCK_BYTES]) -> Option<Self> {
        let log_block = le32(bytes, 0x18);
        if le16(bytes, 0x38) != MAGIC || log_block > LOG_BLOCK_MAX {
            return None;
        }
        // Revision 0 has neither features nor other inode sizes.
        let has_features = le32(bytes, 0x4C) > 0;
        let feature = |at| if has_features { le32(bytes, at) } else { 0 };
        let incompat = feature(0x60);
        let is_64bit = incompat & incompat::IS_64BIT != 0;
        let high = if is_64bit { u64::from(le32(bytes, 0x150)) << 32 } else { 0 };
        let meta_groups = incompat & incompat::META_BG != 0;
        let has_mmp = incompat & incompat::MMP != 0;
        Some(Self {
            block_bytes: 1024 << log_block,
            blocks: u64::from(le32(bytes, 0x04)) | high,
            first_data_block: u64::from(le32(bytes, 0x14)),
            blocks_per_group: u64::from(le32(bytes, 0x20)),
            inodes_per_group: u64::from(le32(bytes, 0x28)),
            inode_bytes: if has_features { u64::from(le16(bytes, 0x58)) } else { 128 },
            descriptor_bytes: if is_64bit { u64::from(le16(bytes, 0xFE)) } else { 32 },
            reserved_descriptor_blocks: u64::from(le16(bytes, 0xCE)),
            first_meta_group: meta_groups.then(|| u64::from(le32(bytes, 0x104))),
            mmp_block: has_mmp.then(|| le64(bytes, 0x168)),
            uuid: array(bytes, 0x68),
            label: text(&bytes[0x78..0x88]),
            compat: feature(0x5C),
            incompat,
            ro_compat: feature(0x64),
            journal_inode: le32(bytes, 0xE0),
            orphan_inode: le32(bytes, 0x280),
            backup_groups: [le32(bytes, 0x24C), le32(bytes, 0x250)],
        })
    }

    fn is_plausible(&self) -> bool {
        if self.blocks == 0 {
            return false;
        }
        if self.is_journal_device() {
            return true;
        }
        self.first_data_block <= 1
            && self.blocks > self.first_data_block
            && self.blocks_per_group >= BLOCKS_PER_GROUP_MIN
            && self.groups() <= GROUPS_MAX
            && self.inodes_per_group > 0
            && self.inodes_per_group <= 8 * self.block_bytes
            && is_power_within(self.inode_bytes, 128, self.block_bytes)
            && is_power_within(self.descriptor_bytes, 32, self.block_bytes)
    }

    /// Returns whether it is an external journal, without a file system.
    pub fn is_journal_device(&self) -> bool {
        self.incompat & incompat::JOURNAL_DEV != 0
    }

    /// Returns its type: ext2, ext3 or ext4.
    pub fn kind(&self) -> &'static str {
        let has_journal = self.compat & compat::HAS_JOURNAL != 0;
        match (self.incompat & incompat::EXTENTS != 0, has_journal) {
            (true, _) => "ext4",
            (false, true) => "ext3",
            (false, false) => "ext2",
        }
    }

    /// Returns the block that contains the superblock.
    pub fn superblock_block(&self) -> u64 {
        SUPERBLOCK_AT / self.block_bytes
    }

    /// Returns the number of block groups.
    pub fn groups(&self) -> u64 {
        (self.blocks - self.first_data_block).div_ceil(self.blocks_per_group)
    }

    /// Returns the first block of a group.
    pub fn group_start(&self, group: u64) -> u64 {
        self.first_data_block.saturating_add(group.saturating_mul(self.blocks_per_group))
    }

    /// Returns whether a group begins with a copy of the superblock.
    pub fn has_superblock(&self, group: u64) -> bool {
        if group == 0 {
            return true;
        }
        if self.compat & compat::SPARSE_SUPER2 != 0 {
            return self.backup_groups.contains(&(u32::try_from(group).unwrap_or(0)));
        }
        if group == 1 || self.ro_compat & ro_compat::SPARSE_SUPER == 0 {
            return true;
        }
        [3, 5, 7].into_iter().any(|base| is_power_of(group, base))
    }

    /// Returns the inodes of internal files at fixed places, with the class of their blocks.
    pub fn files_that_never_move(&self) -> impl Iterator<Item = (u32, Class)> + use<> {
        let journal = (self.compat & compat::HAS_JOURNAL != 0).then_some(self.journal_inode);
        let orphans = (self.compat & compat::ORPHAN_FILE != 0).then_some(self.orphan_inode);
        let journal = journal.map(|inode| (inode, Class::Journal));
        let orphans = orphans.map(|inode| (inode, Class::Metadata));
        // An external journal has no inode here.
        journal.into_iter().chain(orphans).filter(|(inode, _)| *inode != 0)
    }
}

fn is_power_of(mut value: u64, base: u64) -> bool {
    while value.is_multiple_of(base) {
        value /= base;
    }
    value == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_told_from_multiples() {
        let powers: Vec<u64> = (1..130).filter(|group| is_power_of(*group, 5)).collect();
        assert_eq!(powers, [1, 5, 25, 125]);
    }

    #[test]
    fn a_label_that_would_move_the_cursor_does_not() {
        assert_eq!(text(b"root\0\0\0\0"), "root");
        assert_eq!(text(b"\x1b[2J"), "?[2J");
    }
}
