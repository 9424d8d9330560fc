//! The blocks of a file: an extent tree, or the block lists of ext2 and ext3.

use flowstone_block::Class;

use super::groups::INODE_HEAD_BYTES;
use super::{FileSystem, Marks};
use crate::fields::{le16, le32};
use crate::volume::Scan;

const FLAGS_AT: usize = 0x20;
const MAP_AT: usize = 0x28;
const MAP_BYTES: usize = 60;

const FLAG_EXTENTS: u32 = 0x80000;
const EXTENT_MAGIC: u16 = 0xF30A;
/// Size of the header and of each entry of a node.
const ENTRY_BYTES: usize = 12;
/// Greatest depth of an extent tree in the kernel.
const DEPTH_MAX: u16 = 5;
/// Greatest length of a written extent. A larger value marks an unwritten extent, whose length is
/// the excess.
const WRITTEN_BLOCKS_MAX: u16 = 32768;
/// Direct blocks of an inode, before the indirect lists.
const DIRECT_BLOCKS: usize = 12;
/// The most nodes or lists that are read: an extent tree of a journal has a few, the lists of one
/// of 1 GiB with blocks of 1 KiB about 4,000.
const NODES_MAX: u32 = 8192;

/// One walk over a file.
struct Walk<'a, 'b> {
    file_system: &'a FileSystem<'a>,
    marks: &'a mut Marks<'b>,
    class: Class,
    nodes_left: u32,
}

impl FileSystem<'_> {
    /// Marks all blocks of a file as `class`, and the blocks of its block map as metadata.
    /// Unreadable parts are left out.
    pub fn mark_file(
        &self,
        scan: &mut Scan<'_>,
        inode: &[u8; INODE_HEAD_BYTES],
        class: Class,
        marks: &mut Marks<'_>,
    ) -> Option<()> {
        let map = &inode[MAP_AT..MAP_AT + MAP_BYTES];
        let mut walk = Walk { file_system: self, marks, class, nodes_left: NODES_MAX };
        if le32(inode, FLAGS_AT) & FLAG_EXTENTS != 0 {
            return walk.extents(scan, map, DEPTH_MAX);
        }
        walk.direct(&map[..DIRECT_BLOCKS * 4])?;
        (1..=3).try_for_each(|depth| {
            let list = le32(map, (DIRECT_BLOCKS - 1 + depth) * 4);
            walk.indirect(scan, u64::from(list), depth)
        })
    }
}

impl Walk<'_, '_> {
    fn node(&mut self, scan: &mut Scan<'_>, block: u64) -> Option<Vec<u8>> {
        self.nodes_left = self.nodes_left.checked_sub(1)?;
        let block_bytes = self.file_system.superblock.block_bytes;
        let mut node = vec![0; block_bytes as usize];
        self.file_system.volume.read(scan, block.checked_mul(block_bytes)?, &mut node)?;
        self.marks.mark(block, 1, Class::Metadata).then_some(node)
    }

    fn extents(&mut self, scan: &mut Scan<'_>, node: &[u8], depth_max: u16) -> Option<()> {
        let (entries, depth) = (usize::from(le16(node, 2)), le16(node, 6));
        if le16(node, 0) != EXTENT_MAGIC || depth > depth_max {
            return None;
        }
        for entry in node[ENTRY_BYTES..].chunks_exact(ENTRY_BYTES).take(entries) {
            if depth == 0 {
                let length = le16(entry, 4);
                let written = length.checked_sub(WRITTEN_BLOCKS_MAX).filter(|it| *it > 0);
                let start = u64::from(le16(entry, 6)) << 32 | u64::from(le32(entry, 8));
                let blocks = u64::from(written.unwrap_or(length));
                self.marks.mark(start, blocks, self.class).then_some(())?;
            } else {
                let child = u64::from(le16(entry, 8)) << 32 | u64::from(le32(entry, 4));
                let child = self.node(scan, child)?;
                // Depth must decrease, or a loop of nodes would never end.
                self.extents(scan, &child, depth - 1)?;
            }
        }
        Some(())
    }

    fn direct(&mut self, blocks: &[u8]) -> Option<()> {
        let mut blocks = blocks.chunks_exact(4).map(|entry| le32(entry, 0)).filter(|it| *it != 0);
        blocks.all(|block| self.marks.mark(u64::from(block), 1, self.class)).then_some(())
    }

    fn indirect(&mut self, scan: &mut Scan<'_>, list: u64, depth: usize) -> Option<()> {
        if list == 0 {
            return Some(());
        }
        let blocks = self.node(scan, list)?;
        if depth == 1 {
            return self.direct(&blocks);
        }
        blocks
            .chunks_exact(4)
            .try_for_each(|entry| self.indirect(scan, u64::from(le32(entry, 0)), depth - 1))
    }
}
