//! ext2, ext3 and ext4 ("ext4" below), from the superblock down to the journal.
//!
//! Source: Linux, Documentation/filesystems/ext4 (super, group_descr, inodes, ifork, journal), and
//! what mke2fs and dumpe2fs say of the same image, which the tests compare. Only what never moves
//! while the file system is in use counts: superblocks, group descriptors and the room kept for
//! more of them, bitmaps, inode tables, the journal, the orphan file. Directories and extent blocks
//! lie anywhere and change with the files: they stay data.

mod groups;
mod inode;
mod superblock;

use flowstone_block::Class;

use self::groups::Groups;
use self::inode::BlockMap;
use self::superblock::{SUPERBLOCK_AT, SUPERBLOCK_BYTES, Superblock};
use crate::layout::Builder;
use crate::volume::{Scan, Volume};

/// Adds the file system on `volume` to the layout; `None` if there is none.
pub fn read(volume: &Volume, scan: &mut Scan<'_>, depth: u8, layout: &mut Builder) -> Option<()> {
    let superblock = Superblock::read(volume, scan)?;
    let bytes = superblock.blocks * superblock.block_bytes;
    let volume = volume.part(0, bytes);
    // What replaces it begins before that: a boot sector, another superblock.
    layout.definer(&volume, 0..SUPERBLOCK_AT + SUPERBLOCK_BYTES as u64);
    layout.file_system(&volume, bytes);
    let mut marks = Marks { volume: &volume, block_bytes: superblock.block_bytes, layout };
    if superblock.is_journal_device() {
        marks.layout.found("ext4 journal", &volume, depth, &superblock.label);
        let first = superblock.superblock_block() + 1;
        marks.mark(first, superblock.blocks.saturating_sub(first), Class::Journal);
        return Some(());
    }
    marks.layout.found(superblock.kind(), &volume, depth, &superblock.label);
    // What follows may be half written, or wrong: what can be read of it counts. The journal comes
    // first, before the descriptors of a huge file system have used up what may be read.
    let groups = Groups { superblock: &superblock, volume: &volume };
    for (inode, class) in superblock.files_that_never_move() {
        if let Some(map) = groups.find_inode(scan, inode) {
            BlockMap { superblock: &superblock, volume: &volume }
                .mark(scan, &map, class, &mut marks);
        }
    }
    groups.mark_static(scan, &mut marks);
    if let Some(block) = superblock.mmp_block {
        marks.mark(block, 1, Class::Metadata);
    }
    Some(())
}

/// Blocks of the file system become regions of the layout.
struct Marks<'a> {
    volume: &'a Volume,
    block_bytes: u64,
    layout: &'a mut Builder,
}

impl Marks<'_> {
    /// Returns `false` when the reader is to stop.
    fn mark(&mut self, block: u64, count: u64, class: Class) -> bool {
        let (Some(start), Some(bytes)) =
            (block.checked_mul(self.block_bytes), count.checked_mul(self.block_bytes))
        else {
            return self.layout.step(1);
        };
        let end = start.saturating_add(bytes).min(self.volume.bytes());
        if start >= end {
            return self.layout.step(1);
        }
        self.layout.counted(class, end - start);
        self.layout.region(self.volume, start..end, class)
    }
}
