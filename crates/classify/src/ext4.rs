//! ext2, ext3 and ext4 ("ext4" below), from the superblock down to the journal.
//!
//! Source: Linux, Documentation/filesystems/ext4 (super, group_descr, inodes, ifork, journal), and
//! the output of mke2fs and dumpe2fs for the same image, which the tests compare. Only structures
//! at fixed places are read: superblocks, group descriptors and the space reserved for their
//! growth, bitmaps, inode tables, the journal, the orphan file. Directories and extent blocks are
//! anywhere and change with the files: they are known from the journal (`listed`).

mod groups;
mod inode;
mod superblock;

use std::ops::Range;

use flowstone_block::Class;

use self::superblock::{SUPERBLOCK_AT, SUPERBLOCK_BYTES, Superblock};
use crate::layout::Builder;
use crate::listed::jbd2;
use crate::listed::journal::Kind;
use crate::volume::{Scan, Volume};

/// Adds the file system on `volume` to the layout; `None` if there is none.
pub fn read(volume: &Volume, scan: &mut Scan<'_>, depth: u8, layout: &mut Builder) -> Option<()> {
    let superblock = Superblock::read(volume, scan)?;
    let bytes = superblock.blocks * superblock.block_bytes;
    let volume = volume.part(0, bytes);
    // Whatever replaces the file system begins before the superblock's end: a boot sector, another
    // superblock.
    layout.definer(&volume, 0..SUPERBLOCK_AT + SUPERBLOCK_BYTES as u64);
    layout.file_system(&volume, bytes);
    let (block_bytes, journal) = (superblock.block_bytes, Vec::new());
    let mut marks = Marks { volume: &volume, block_bytes, layout, journal };
    if superblock.is_journal_device() {
        marks.layout.found("ext4 journal", &volume, depth, &superblock.label);
        let first = superblock.superblock_block() + 1;
        marks.mark(first, superblock.blocks.saturating_sub(first), Class::Journal);
        return Some(());
    }
    marks.layout.found(superblock.kind(), &volume, depth, &superblock.label);
    // The structures below may be half written, or wrong: the readable part is used. The journal
    // comes first, before the descriptors of a huge file system have used up the read limit.
    let file_system = FileSystem { superblock: &superblock, volume: &volume };
    for (inode, class) in superblock.files_that_never_move() {
        if let Some(map) = file_system.find_inode(scan, inode) {
            let is_whole = file_system.mark_file(scan, &map, class, &mut marks).is_some();
            if class == Class::Journal && !is_whole {
                marks.journal.clear();
            }
        }
    }
    marks.follow_journal(scan, superblock.uuid);
    file_system.mark_static(scan, &mut marks);
    if let Some(block) = superblock.mmp_block {
        marks.mark(block, 1, Class::Metadata);
    }
    Some(())
}

/// A file system, whose block groups and files are read.
struct FileSystem<'a> {
    superblock: &'a Superblock,
    volume: &'a Volume,
}

/// Adds blocks of the file system to the layout as regions.
struct Marks<'a> {
    volume: &'a Volume,
    block_bytes: u64,
    layout: &'a mut Builder,
    /// Byte ranges marked as journal, up to [`JOURNAL_RANGES_MAX`].
    journal: Vec<Range<u64>>,
}

/// The most ranges of a journal that are kept: a journal of more is not followed.
const JOURNAL_RANGES_MAX: usize = 1024;

impl Marks<'_> {
    /// Marks blocks with a class. Returns `false` when the reader is to stop.
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
        if class == Class::Journal {
            self.remember_journal(start..end);
        }
        self.layout.counted(class, end - start);
        self.layout.region(self.volume, start..end, class)
    }

    /// Adds a range of the journal, merged with the last one: block lists name each block
    /// separately.
    fn remember_journal(&mut self, range: Range<u64>) {
        let count = self.journal.len();
        match self.journal.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ if count <= JOURNAL_RANGES_MAX => self.journal.push(range),
            _ => {}
        }
    }

    /// Adds the journal to the layout, so that its writes will be read.
    fn follow_journal(&mut self, scan: &mut Scan<'_>, uuid: [u8; 16]) {
        let Some(first) = self.journal.first().map(|range| range.start) else { return };
        if self.journal.len() > JOURNAL_RANGES_MAX {
            return;
        }
        let superblock: Option<[u8; jbd2::SUPERBLOCK_BYTES]> = self.volume.read_array(scan, first);
        let format = superblock.and_then(|it| jbd2::Format::parse(&it, self.block_bytes));
        let file_system = (uuid, self.block_bytes);
        self.layout.journal(self.volume, file_system, Kind::Jbd2(format), &self.journal);
    }
}
