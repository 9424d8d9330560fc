//! Files in an order, with their sizes: each file has a rank, the lowest goes first.

use std::collections::{BTreeMap, HashMap};

use crate::FileId;

/// Files by rank. Ranks are given once; a file that moves gets a new one.
#[derive(Debug)]
pub struct Ordered<R> {
    by_rank: BTreeMap<(R, u64), FileId>,
    files: HashMap<FileId, Entry<R>>,
    bytes: u64,
    /// Tells files of the same rank apart: the one that came first goes first.
    next: u64,
}

#[derive(Debug)]
struct Entry<R> {
    rank: (R, u64),
    bytes: u64,
}

impl<R: Ord + Copy> Ordered<R> {
    pub fn new() -> Self {
        Self { by_rank: BTreeMap::new(), files: HashMap::new(), bytes: 0, next: 0 }
    }

    /// Puts a file at a rank, wherever it has been before.
    pub fn insert(&mut self, file: FileId, bytes: u64, rank: R) {
        self.remove(file);
        let rank = (rank, self.next);
        self.next += 1;
        self.by_rank.insert(rank, file);
        self.files.insert(file, Entry { rank, bytes });
        self.bytes += bytes;
    }

    /// Takes a file out. Returns its size.
    pub fn remove(&mut self, file: FileId) -> Option<u64> {
        let entry = self.files.remove(&file)?;
        self.by_rank.remove(&entry.rank);
        self.bytes -= entry.bytes;
        Some(entry.bytes)
    }

    /// Takes the first file out.
    pub fn pop_first(&mut self) -> Option<(R, FileId, u64)> {
        let (&(rank, _), &file) = self.by_rank.first_key_value()?;
        let bytes = self.remove(file)?;
        Some((rank, file, bytes))
    }

    pub fn contains(&self, file: FileId) -> bool {
        self.files.contains_key(&file)
    }

    /// Size of a file.
    pub fn bytes_of(&self, file: FileId) -> Option<u64> {
        self.files.get(&file).map(|entry| entry.bytes)
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Files with their sizes, the one that goes first in front.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (FileId, u64)> {
        self.by_rank.values().map(|&file| (file, self.files[&file].bytes))
    }
}
