//! Block groups: the places of their descriptors, and the structures these point at.

use flowstone_block::Class;

use super::{FileSystem, Marks};
use crate::fields::le32;
use crate::volume::Scan;

/// Largest read of descriptors.
const READ_BYTES: u64 = 64 << 10;
/// The part of an inode up to its block map.
pub const INODE_HEAD_BYTES: usize = 128;

/// Fields of a group descriptor, in blocks.
struct Descriptor {
    block_bitmap: u64,
    inode_bitmap: u64,
    inode_table: u64,
}

impl FileSystem<'_> {
    /// Marks superblocks, descriptors, bitmaps and inode tables.
    pub fn mark_static(&self, scan: &mut Scan<'_>, marks: &mut Marks<'_>) {
        self.mark_superblocks(marks);
        let table_blocks = self.inode_table_blocks();
        self.for_each_descriptor(scan, |descriptor| {
            marks.mark(descriptor.block_bitmap, 1, Class::Metadata)
                && marks.mark(descriptor.inode_bitmap, 1, Class::Metadata)
                && marks.mark(descriptor.inode_table, table_blocks, Class::Metadata)
                && !marks.layout.is_full()
        });
    }

    /// Returns the first bytes of an inode.
    pub fn find_inode(&self, scan: &mut Scan<'_>, inode: u32) -> Option<[u8; INODE_HEAD_BYTES]> {
        let superblock = self.superblock;
        let index = u64::from(inode).checked_sub(1)?;
        let group = index / superblock.inodes_per_group;
        if group >= superblock.groups() {
            return None;
        }
        let per_block = self.descriptors_per_block();
        let block = self.descriptor_block(group / per_block);
        let at = block.checked_mul(superblock.block_bytes)?
            + group % per_block * superblock.descriptor_bytes;
        let mut bytes = vec![0; superblock.descriptor_bytes as usize];
        self.volume.read(scan, at, &mut bytes)?;
        let table = Descriptor::parse(&bytes).inode_table.checked_mul(superblock.block_bytes)?;
        let at = index % superblock.inodes_per_group * superblock.inode_bytes;
        self.volume.read_array(scan, table.checked_add(at)?)
    }

    fn inode_table_blocks(&self) -> u64 {
        let superblock = self.superblock;
        (superblock.inodes_per_group * superblock.inode_bytes).div_ceil(superblock.block_bytes)
    }

    fn descriptors_per_block(&self) -> u64 {
        self.superblock.block_bytes / self.superblock.descriptor_bytes
    }

    fn descriptor_blocks(&self) -> u64 {
        self.superblock.groups().div_ceil(self.descriptors_per_block())
    }

    /// Marks the copies of the superblock, and the descriptors behind each of them.
    fn mark_superblocks(&self, marks: &mut Marks<'_>) {
        let superblock = self.superblock;
        let kept_together = self.descriptor_blocks();
        let together =
            superblock.first_meta_group.map_or(kept_together, |it| it.min(kept_together));
        let reserved = if superblock.first_meta_group.is_some() {
            0
        } else {
            superblock.reserved_descriptor_blocks
        };
        let per_block = self.descriptors_per_block();
        for group in 0..superblock.groups() {
            if marks.layout.is_full() || !marks.layout.step(1) {
                return;
            }
            if superblock.has_superblock(group) {
                // A meta group has its descriptors in some of its groups only.
                let in_meta_group =
                    superblock.first_meta_group.is_some() && group / per_block >= together;
                let behind = if in_meta_group { 0 } else { together + reserved };
                marks.mark(self.after_superblock(group) - 1, 1 + behind, Class::Metadata);
            }
        }
        // The descriptors of a meta group are in its first, second and last group.
        for block in together..kept_together {
            for group in [0, 1, per_block - 1].map(|nth| block * per_block + nth) {
                if group < superblock.groups()
                    && !marks.mark(self.start_of_descriptors(group), 1, Class::Metadata)
                {
                    return;
                }
            }
            if marks.layout.is_full() {
                return;
            }
        }
    }

    /// Returns the block of the descriptors in a group of a meta group.
    fn start_of_descriptors(&self, group: u64) -> u64 {
        if self.superblock.has_superblock(group) {
            self.after_superblock(group)
        } else {
            self.superblock.group_start(group)
        }
    }

    /// Returns the block behind a group's copy of the superblock. With blocks of 1 KiB and clusters
    /// the first group begins at block 0, and the superblock is in block 1.
    fn after_superblock(&self, group: u64) -> u64 {
        let superblock = self.superblock;
        let first =
            if group == 0 { superblock.superblock_block() } else { superblock.group_start(group) };
        first + 1
    }

    /// Returns the block that holds descriptor block `number`.
    fn descriptor_block(&self, number: u64) -> u64 {
        match self.superblock.first_meta_group {
            Some(first) if number >= first => {
                self.start_of_descriptors(number * self.descriptors_per_block())
            }
            _ => self.superblock.superblock_block() + 1 + number,
        }
    }

    /// Calls `visit` with one descriptor after the other, until it returns `false`, or one cannot
    /// be read.
    fn for_each_descriptor(
        &self,
        scan: &mut Scan<'_>,
        mut visit: impl FnMut(&Descriptor) -> bool,
    ) -> Option<()> {
        let superblock = self.superblock;
        let read_blocks = (READ_BYTES / superblock.block_bytes).max(1);
        let mut left = superblock.groups();
        let mut number = 0;
        let mut bytes = Vec::new();
        while left > 0 {
            let first = self.descriptor_block(number);
            let blocks = (self.descriptor_blocks() - number).min(read_blocks);
            let follows = |nth: &u64| self.descriptor_block(number + nth) == first + nth;
            let blocks = (1..blocks).take_while(follows).count() as u64 + 1;
            bytes.resize((blocks * superblock.block_bytes) as usize, 0);
            self.volume.read(scan, first.checked_mul(superblock.block_bytes)?, &mut bytes)?;
            for descriptor in bytes.chunks_exact(superblock.descriptor_bytes as usize) {
                if left == 0 || !visit(&Descriptor::parse(descriptor)) {
                    return Some(());
                }
                left -= 1;
            }
            number += blocks;
        }
        Some(())
    }
}

impl Descriptor {
    fn parse(bytes: &[u8]) -> Self {
        let has_high = bytes.len() >= 64;
        let block = |low, high| {
            let upper = if has_high { u64::from(le32(bytes, high)) << 32 } else { 0 };
            u64::from(le32(bytes, low)) | upper
        };
        Self {
            block_bitmap: block(0x00, 0x20),
            inode_bitmap: block(0x04, 0x24),
            inode_table: block(0x08, 0x28),
        }
    }
}
