//! Usage history (S5.1): the hash of a file selects a slot in each of λ history tables, whose
//! records have the size and the usage count of a file.
//!
//! The paper specifies the tables and their purpose (collisions), but not the replacement when all
//! λ slots of a hash are taken: here the file with the lowest count is replaced, and a new file
//! that has been rejected often enough by an equal count takes its place. The tables are bounded,
//! so the memory of a history does not grow with its age.

use crate::{FileId, Link};

/// λ of the paper.
const TABLES: usize = 4;

/// The record of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The file.
    pub file: FileId,
    /// Its size at its last use.
    pub bytes: u64,
    /// Its number of uses.
    pub uses: u32,
}

/// Usage counts of files.
#[derive(Debug)]
pub struct History {
    tables: [Box<[Option<Record>]>; TABLES],
}

impl History {
    /// Makes a history of about `files` files.
    pub fn new(files: usize) -> Self {
        let slots = (files / TABLES).max(1);
        Self { tables: [(); TABLES].map(|()| vec![None; slots].into_boxed_slice()) }
    }

    /// Counts a use. Returns the usage count, this one included.
    pub fn used(&mut self, file: FileId, bytes: u64) -> u32 {
        let record = self.slot(file);
        match record {
            Some(known) if known.file == file => {
                known.uses = known.uses.saturating_add(1);
                known.bytes = bytes;
                return known.uses;
            }
            // Decrements the count of the file in this slot, so that an old file does not keep it
            // forever.
            Some(other) if other.uses > 1 => other.uses -= 1,
            _ => *record = Some(Record { file, bytes, uses: 1 }),
        }
        1
    }

    /// Returns the usage count of a file.
    pub fn uses(&self, file: FileId) -> u32 {
        let at = hash(file) as usize % self.tables[0].len();
        let slots = self.tables.iter().filter_map(|table| table[at]);
        slots.filter(|known| known.file == file).map(|known| known.uses).next().unwrap_or(0)
    }

    /// Forgets a file that is gone.
    pub fn forget(&mut self, file: FileId) {
        let slot = self.slot(file);
        if slot.is_some_and(|known| known.file == file) {
            *slot = None;
        }
    }

    /// Returns the slot of a file: its own, else a free one, else that of the file with the lowest
    /// count.
    fn slot(&mut self, file: FileId) -> &mut Option<Record> {
        let at = hash(file) as usize % self.tables[0].len();
        let order = |table: &usize| match &self.tables[*table][at] {
            Some(known) if known.file == file => (0, 0),
            None => (1, 0),
            Some(other) => (2, other.uses),
        };
        let table = (0..TABLES).min_by_key(order).expect("there are tables");
        &mut self.tables[table][at]
    }

    /// Returns all records.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        self.tables.iter().flat_map(|table| table.iter().flatten().copied())
    }

    /// Adds a record of an earlier life, unless its slots are taken by files with higher counts.
    pub fn restore(&mut self, record: Record) {
        let slot = self.slot(record.file);
        if slot.is_none_or(|known| known.file == record.file || known.uses < record.uses) {
            *slot = Some(record);
        }
    }

    /// Returns the files to prefetch (S5.4) into `bytes` bytes: those used at least `uses_min`
    /// times, in descending order of time saved per byte.
    pub fn prefetch(&self, bytes: u64, uses_min: u32, link: Link) -> Vec<FileId> {
        let mut wanted: Vec<Record> = self.records().filter(|it| it.uses >= uses_min).collect();
        let gain =
            |it: &Record| f64::from(it.uses) * link.seconds(it.bytes) / it.bytes.max(1) as f64;
        wanted.sort_by(|one, other| {
            gain(other).total_cmp(&gain(one)).then(one.file.cmp(&other.file))
        });
        let mut left = bytes;
        wanted.retain(|it| {
            let fits = it.bytes <= left;
            left -= if fits { it.bytes } else { 0 };
            fits
        });
        wanted.into_iter().map(|it| it.file).collect()
    }
}

/// Spreads inode numbers, which follow each other, over the slots.
fn hash(file: FileId) -> u64 {
    let mixed = (file.0 ^ file.0 >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ mixed >> 29
}
