//! An image file, and the tools that make file systems on it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use flowstone_block::{Extent, SECTOR_BYTES, Sector, SectorCount};
use flowstone_classify::{Layout, Place, ReadBytes, recognise};
use flowstone_testkit::truth::{Holds, Truth, run};
use tempfile::NamedTempFile;

pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// A sparse file.
pub struct Disk {
    pub file: NamedTempFile,
    bytes: u64,
}

impl Disk {
    pub fn new(bytes: u64) -> Self {
        let file = NamedTempFile::new().unwrap();
        file.as_file().set_len(bytes).unwrap();
        Self { file, bytes }
    }

    pub fn path(&self) -> &str {
        self.file.path().to_str().unwrap()
    }

    pub fn layout(&self) -> Layout {
        recognise(&mut FileBytes(self.file.as_file()), self.bytes)
    }

    /// Copies another disk into it.
    pub fn insert(&self, at: u64, other: &Self) {
        let mut buffer = vec![0; MIB as usize];
        for from in (0..other.bytes).step_by(buffer.len()) {
            other.file.as_file().read_exact_at(&mut buffer, from).unwrap();
            if buffer.iter().any(|byte| *byte != 0) {
                self.file.as_file().write_all_at(&buffer, at + from).unwrap();
            }
        }
    }
}

/// A file read through [`ReadBytes`].
pub struct FileBytes<'a>(pub &'a File);

impl ReadBytes for FileBytes<'_> {
    fn read(&mut self, at: u64, target: &mut [u8]) -> Option<()> {
        self.0.read_exact_at(target, at).ok()
    }
}

/// Compares the layout's answer for each block, or each sector, with the truth.
pub fn compare(layout: &Layout, truth: &Truth, piece: u64) {
    let mut wrong = Vec::new();
    for start in (0..truth.bytes).step_by(piece as usize) {
        let expected = match truth.at(start) {
            Some(Holds::Journal) => Place::Journal,
            Some(_) => Place::Metadata,
            None => Place::FileSystem,
        };
        let place = layout.place(extent(start, piece));
        if place != expected {
            wrong.push(format!("{}: {place:?} for {expected:?}", start / piece));
        }
    }
    assert!(wrong.is_empty(), "{} wrong, first {:?}", wrong.len(), &wrong[..wrong.len().min(10)]);
    let found = &layout.found()[0];
    assert_eq!(found.bytes, truth.bytes);
    assert_eq!(found.journal_bytes, truth.bytes_of(Holds::Journal));
    assert_eq!(found.metadata_bytes, truth.bytes_of(Holds::FixedMetadata));
    assert_eq!(found.label, "called");
}

pub fn extent(start: u64, bytes: u64) -> Extent {
    let count = SectorCount::new(bytes / SECTOR_BYTES);
    Extent::new(Sector::new(start / SECTOR_BYTES), count).unwrap()
}

/// Runs `mkfs.ext4` or the like.
pub fn make(program: &str, options: &str, path: &Path) {
    let mut arguments: Vec<&str> = options.split_whitespace().collect();
    arguments.push(path.to_str().unwrap());
    run(program, &arguments, "");
}
