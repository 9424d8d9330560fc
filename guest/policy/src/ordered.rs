//! Files with their sizes, ordered by rank: the lowest rank is evicted first.

use std::collections::{BTreeMap, HashMap};

use crate::FileId;

/// Files by rank. A rank is assigned at insertion; a file that moves gets a new one.
#[derive(Debug)]
pub struct Ordered<R> {
    by_rank: BTreeMap<(R, u64), FileId>,
    files: HashMap<FileId, Entry<R>>,
    bytes: u64,
    /// Sequence number among files of the same rank: the first inserted is the first evicted.
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

    /// Inserts a file at a rank, removing it from its old one.
    pub fn insert(&mut self, file: FileId, bytes: u64, rank: R) {
        self.remove(file);
        let rank = (rank, self.next);
        self.next += 1;
        self.by_rank.insert(rank, file);
        self.files.insert(file, Entry { rank, bytes });
        self.bytes += bytes;
    }

    /// Removes a file. Returns its size.
    pub fn remove(&mut self, file: FileId) -> Option<u64> {
        let entry = self.files.remove(&file)?;
        self.by_rank.remove(&entry.rank);
        self.bytes -= entry.bytes;
        Some(entry.bytes)
    }

    /// Removes the first file.
    pub fn pop_first(&mut self) -> Option<(R, FileId, u64)> {
        let (&(rank, _), &file) = self.by_rank.first_key_value()?;
        let bytes = self.remove(file)?;
        Some((rank, file, bytes))
    }

    pub fn contains(&self, file: FileId) -> bool {
        self.files.contains_key(&file)
    }

    /// Returns the size of a file.
    pub fn bytes_of(&self, file: FileId) -> Option<u64> {
        self.files.get(&file).map(|entry| entry.bytes)
    }

    /// Returns the bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the files with their sizes, in order of eviction.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (FileId, u64)> {
        self.by_rank.values().map(|&file| (file, self.files[&file].bytes))
    }
}
