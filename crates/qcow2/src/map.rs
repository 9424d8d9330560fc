//! The map from guest clusters to host clusters: the L1 table, and as many L2 tables as memory
//! allows.
//!
//! A changed table stays in memory until a commit has written it, so evicted tables can always be
//! read again. Only changed sectors are written.

use super::entry;
use super::shape::{GuestCluster, HostCluster, Shape};

/// Memory for L2 tables that could be read again, in bytes: with clusters of 64 KiB enough for 512
/// GiB of disk.
const TABLES_BYTES_MAX: u64 = 64 << 20;

/// The map of a disk.
pub struct Map {
    pub shape: Shape,
    /// Entries in a sector, as a power of two.
    sector_bits: u32,
    /// As on the medium, or as it will be after the running commit.
    l1: Vec<u64>,
    tables: Vec<Option<Box<Table>>>,
    loaded: usize,
    /// Number of tables in memory that have no cluster on the medium.
    homeless: u64,
    /// Maximum memory of unchanged tables.
    pub memory_bytes: u64,
    /// Indices of the tables that have changed.
    changed: Vec<usize>,
    /// Position of the eviction clock's hand.
    hand: usize,
    /// Number of evictions: what was read before one may be out of date.
    pub evictions: u64,
}

/// An L2 table in memory.
struct Table {
    entries: Box<[u64]>,
    /// One bit for each sector.
    changed_sectors: Box<[u64]>,
    changed: bool,
    /// Host cluster of the table; `None` for a new one, or for a shared one that has changed.
    home: Option<HostCluster>,
    used: bool,
    /// Number of requests that are about to change entries, and of commits that have not written it
    /// yet.
    pins: usize,
}

/// The table that maps a cluster is not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    pub index: usize,
    pub home: HostCluster,
}

impl Map {
    /// The map with this L1 table, whose entries are as on the medium, in a file whose sectors have
    /// this size.
    pub fn new(shape: Shape, l1: Vec<u64>, sector_bytes: usize) -> Self {
        let tables = l1.iter().map(|_| None).collect();
        Self {
            shape,
            sector_bits: (sector_bytes / 8).ilog2(),
            l1,
            tables,
            loaded: 0,
            homeless: 0,
            memory_bytes: TABLES_BYTES_MAX,
            changed: Vec::new(),
            hand: 0,
            evictions: 0,
        }
    }

    /// Returns the number of entries in a sector.
    pub fn sector_entries(&self) -> usize {
        1 << self.sector_bits
    }

    /// Returns the L2 entry of a cluster.
    pub fn get(&mut self, guest: GuestCluster) -> Result<u64, Missing> {
        let index = self.shape.l1_index(guest);
        match self.tables.get_mut(index) {
            Some(Some(table)) => {
                table.used = true;
                Ok(table.entries[self.shape.l2_index(guest)])
            }
            Some(None) => self.missing(index).map_or(Ok(0), Err),
            None => Ok(0),
        }
    }

    /// Returns whether the table that maps this cluster does not exist.
    pub fn is_table_empty(&self, guest: GuestCluster) -> bool {
        let index = self.shape.l1_index(guest);
        self.tables.get(index).is_none_or(Option::is_none) && self.missing(index).is_none()
    }

    fn missing(&self, index: usize) -> Option<Missing> {
        // Checked when the L1 table was read.
        let home = entry::cluster(self.shape, *self.l1.get(index)?).ok().flatten()?;
        Some(Missing { index, home })
    }

    /// Changes an entry whose table is in memory, or does not exist yet.
    pub fn set(&mut self, guest: GuestCluster, raw: u64) {
        let (index, slot) = (self.shape.l1_index(guest), self.shape.l2_index(guest));
        let sector = slot >> self.sector_bits;
        let table = self.table(index);
        table.entries[slot] = raw;
        table.changed_sectors[sector / 64] |= 1 << (sector % 64);
        if !std::mem::replace(&mut table.changed, true) {
            self.changed.push(index);
        }
    }

    /// Returns a table in memory; a new one, if none exists.
    fn table(&mut self, index: usize) -> &mut Table {
        if self.tables[index].is_none() {
            assert!(self.missing(index).is_none(), "a table that is changed has been read");
            let entries = vec![0; self.shape.l2_entries() as usize].into();
            self.put(index, entries, None);
        }
        self.tables[index].as_mut().expect("put above")
    }

    /// Keeps the table of an entry in memory for a later change. The table is in memory, or does
    /// not exist.
    pub fn pin(&mut self, guest: GuestCluster) {
        self.table(self.shape.l1_index(guest)).pins += 1;
    }

    /// Releases the pin: the entry will not be changed.
    pub fn unpin(&mut self, guest: GuestCluster) {
        self.table(self.shape.l1_index(guest)).pins -= 1;
    }

    /// Adds a table that has been read from the medium.
    pub fn insert(&mut self, missing: Missing, entries: Box<[u64]>) {
        if self.tables[missing.index].is_some() || self.missing(missing.index) != Some(missing) {
            return;
        }
        let most = (self.memory_bytes / self.shape.cluster_bytes()).max(1) as usize;
        if self.loaded >= most.max(2 * self.changed.len()) {
            self.evict();
        }
        let ours = self.l1[missing.index] & entry::COPIED != 0;
        self.put(missing.index, entries, ours.then_some(missing.home));
    }

    fn put(&mut self, index: usize, entries: Box<[u64]>, home: Option<HostCluster>) {
        let sectors = entries.len().div_ceil(self.sector_entries());
        let changed_sectors = vec![0; sectors.div_ceil(64)].into();
        self.homeless += u64::from(home.is_none());
        let table = Table { entries, changed_sectors, changed: false, home, used: true, pins: 0 };
        self.tables[index] = Some(Box::new(table));
        self.loaded += 1;
    }

    /// Evicts an unchanged table that has not been used for a while.
    fn evict(&mut self) {
        for _ in 0..2 * self.tables.len() {
            self.hand = (self.hand + 1) % self.tables.len();
            let Some(table) = &mut self.tables[self.hand] else { continue };
            if table.changed || table.pins > 0 || std::mem::take(&mut table.used) {
                continue;
            }
            self.homeless -= u64::from(table.home.is_none());
            self.tables[self.hand] = None;
            self.loaded -= 1;
            self.evictions += 1;
            return;
        }
    }

    /// Returns whether so much has changed that a commit should make it clean.
    pub fn is_crowded(&self) -> bool {
        self.changed.len() as u64 * self.shape.cluster_bytes() > self.memory_bytes / 2
    }

    /// Returns whether anything has changed.
    pub fn is_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Returns the indices of changed tables without a cluster on the medium.
    pub fn homeless(&self) -> Vec<usize> {
        let homeless =
            |index: &usize| self.tables[*index].as_ref().is_some_and(|table| table.home.is_none());
        self.changed.iter().copied().filter(homeless).collect()
    }

    /// Returns the number of tables in memory without a cluster in the file.
    pub fn homeless_count(&self) -> u64 {
        self.homeless
    }

    /// Sets the cluster of a table. Returns the previous one, if any, which was shared.
    pub fn set_home(&mut self, index: usize, home: HostCluster) -> Option<HostCluster> {
        let before = self.missing(index).map(|missing| missing.home);
        let table = self.tables[index].as_mut().expect("a table without a place is in memory");
        self.homeless -= u64::from(table.home.is_none());
        table.home = Some(home);
        self.l1[index] = entry::ours(self.shape, home);
        before
    }

    /// Takes all changes; the tables count as unchanged from now on. They stay in memory until they
    /// have been written, or put back.
    pub fn take_changes(&mut self) -> Vec<ChangedTable> {
        let (mut changes, sector_entries) = (Vec::new(), self.sector_entries());
        for index in std::mem::take(&mut self.changed) {
            let table = self.tables[index].as_mut().expect("a changed table stays in memory");
            let home = table.home.expect("settled before");
            let runs = runs_of(&bits(&table.changed_sectors), |run| {
                let start = run.start * sector_entries;
                let end = (run.end * sector_entries).min(table.entries.len());
                to_bytes(&table.entries[start..end])
            });
            table.changed_sectors.fill(0);
            table.changed = false;
            table.pins += 1;
            changes.push(ChangedTable { index, home, runs });
        }
        changes
    }

    /// Returns the cluster of a table that has one.
    pub fn home(&self, index: usize) -> HostCluster {
        let table = self.tables[index].as_ref().expect("a changed table is in memory");
        table.home.expect("settled before")
    }

    /// Returns the bytes of a whole table.
    pub fn table_bytes(&self, index: usize) -> Vec<u8> {
        to_bytes(&self.tables[index].as_ref().expect("a changed table is in memory").entries)
    }

    /// Releases a change that a commit has written to the medium.
    pub fn written(&mut self, change: &ChangedTable) {
        self.table(change.index).pins -= 1;
    }

    /// Marks as changed again what a commit could not write.
    pub fn put_back(&mut self, change: &ChangedTable) {
        self.written(change);
        let sector_bytes = self.sector_entries() * 8;
        let table = self.tables[change.index].as_mut().expect("a pinned table is in memory");
        for run in &change.runs {
            for sector in run.first..run.first + run.bytes.len().div_ceil(sector_bytes) {
                table.changed_sectors[sector / 64] |= 1 << (sector % 64);
            }
        }
        if !std::mem::replace(&mut table.changed, true) {
            self.changed.push(change.index);
        }
    }

    /// Returns the L1 table, as it should be on the medium.
    pub fn l1(&self) -> &[u64] {
        &self.l1
    }

    /// Makes the L1 table longer.
    pub fn grow_l1(&mut self, entries: usize) {
        self.l1.resize(entries.max(self.l1.len()), 0);
        self.tables.resize_with(self.l1.len(), || None);
    }
}

/// The changed parts of an L2 table.
pub struct ChangedTable {
    pub index: usize,
    pub home: HostCluster,
    pub runs: Vec<SectorRun>,
}

/// Consecutive sectors.
pub struct SectorRun {
    /// Index of the first sector in the table.
    pub first: usize,
    pub bytes: Vec<u8>,
}

fn bits(words: &[u64]) -> Vec<usize> {
    let mut found = Vec::new();
    for (index, word) in words.iter().enumerate() {
        let mut rest = *word;
        while rest != 0 {
            found.push(index * 64 + rest.trailing_zeros() as usize);
            rest &= rest - 1;
        }
    }
    found
}

/// Groups consecutive numbers into runs, with the content that `bytes` returns for each run.
pub fn runs_of(
    numbers: &[usize],
    mut bytes: impl FnMut(std::ops::Range<usize>) -> Vec<u8>,
) -> Vec<SectorRun> {
    numbers
        .chunk_by(|before, after| before + 1 == *after)
        .map(|run| SectorRun { first: run[0], bytes: bytes(run[0]..run[0] + run.len()) })
        .collect()
}

/// Encodes entries as on the medium.
pub fn to_bytes(entries: &[u64]) -> Vec<u8> {
    entries.iter().flat_map(|entry| entry.to_be_bytes()).collect()
}

/// Decodes entries from the medium.
pub fn from_bytes(bytes: &[u8]) -> Box<[u64]> {
    let (entries, _) = bytes.as_chunks::<8>();
    entries.iter().map(|entry| u64::from_be_bytes(*entry)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { version: 3, cluster_bits: 9, refcount_order: 4 };

    #[test]
    fn a_disk_without_tables_is_empty_and_gets_them_when_written() {
        let mut map = Map::new(SHAPE, vec![0; 4], 512);
        assert_eq!(map.get(GuestCluster(70)), Ok(0));
        map.set(GuestCluster(70), 0x8000_0000_0000_0a00);
        assert_eq!(map.get(GuestCluster(70)), Ok(0x8000_0000_0000_0a00));
        assert_eq!(map.homeless(), [1]);
        assert_eq!(map.set_home(1, HostCluster(9)), None);
        let changes = map.take_changes();
        assert_eq!((changes[0].index, changes[0].home), (1, HostCluster(9)));
        assert_eq!(changes[0].runs[0].bytes[48..56], 0x8000_0000_0000_0a00u64.to_be_bytes());
        assert!(!map.is_changed());
        map.put_back(&changes[0]);
        assert!(map.is_changed());
    }

    #[test]
    fn a_table_that_others_share_moves_when_it_changes() {
        let mut map = Map::new(SHAPE, vec![0x600, entry::COPIED | 0x800], 512);
        let missing = map.get(GuestCluster(0)).unwrap_err();
        assert_eq!(missing, Missing { index: 0, home: HostCluster(3) });
        map.insert(missing, vec![0; 64].into());
        let other = map.get(GuestCluster(64)).unwrap_err();
        map.insert(other, vec![0; 64].into());
        map.set(GuestCluster(0), 1);
        map.set(GuestCluster(64), 1);
        assert_eq!(map.homeless(), [0]);
        assert_eq!(map.set_home(0, HostCluster(7)), Some(HostCluster(3)));
        assert_eq!(map.l1()[0], entry::COPIED | 0xe00);
    }
}
