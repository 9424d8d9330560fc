//! Reference counts of the host clusters, as on the medium: a table of refcount blocks.
//!
//! Blocks are read when needed, and written with all changes since.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use flowstone_block::{AlignedBuf, Errno, Outcome, mutated};
use flowstone_fileio::{BlockingFile, FileOffset};

use super::map::{from_bytes, to_bytes};
use super::shape::{HostCluster, Shape};

/// Memory for blocks that could be read again, in bytes.
const BLOCKS_BYTES_MAX: u64 = 16 << 20;

/// The refcounts of an image.
pub struct Refcounts {
    shape: Shape,
    /// Offset of each block; 0 where there is none, and all its refcounts are 0.
    table: Vec<u64>,
    pub table_offset: u64,
    sector_bytes: usize,
    blocks: BTreeMap<usize, Block>,
    /// Entries of the table that have changed.
    changed_entries: BTreeSet<usize>,
    /// The table has moved: all of it must be written, then the header.
    pub moved: bool,
    /// Clusters that are in use and have no refcount yet. Each stays until it has been counted,
    /// however often that fails: no commit may succeed before.
    owed: Vec<HostCluster>,
    /// Clusters of the table before it moved, and of released blocks.
    left: Vec<HostCluster>,
}

struct Block {
    bytes: AlignedBuf,
    changed_sectors: BTreeSet<usize>,
}

/// Allocates a run of this many clusters for refcount blocks and tables.
pub type TakeRun<'a> = &'a mut dyn FnMut(u64) -> Option<Range<u64>>;

impl Refcounts {
    /// Reads the table from a file whose sectors have this size.
    pub fn load(
        file: &mut BlockingFile,
        shape: Shape,
        offset: u64,
        clusters: u64,
        sector_bytes: usize,
    ) -> Result<Self, Errno> {
        let mut bytes = AlignedBuf::zeroed((clusters * shape.cluster_bytes()) as usize);
        file.read(FileOffset::new(offset), &mut bytes)?;
        Ok(Self {
            shape,
            table: from_bytes(&bytes).into(),
            table_offset: offset,
            sector_bytes,
            blocks: BTreeMap::new(),
            changed_entries: BTreeSet::new(),
            moved: false,
            owed: Vec::new(),
            left: Vec::new(),
        })
    }

    /// Returns the number of refcount blocks that the table has room for.
    pub fn table_entries(&self) -> usize {
        self.table.len()
    }

    /// Returns the host clusters of the table.
    pub fn table_clusters(&self) -> Range<u64> {
        let start = self.shape.host_at(self.table_offset).0;
        start..start + self.shape.clusters(self.table.len() as u64 * 8)
    }

    /// Iterates over the blocks: number and host cluster.
    pub fn blocks(&self) -> impl Iterator<Item = (usize, Result<HostCluster, Errno>)> {
        let named = self.table.iter().enumerate().filter(|(_, entry)| **entry != 0);
        named.map(|(index, entry)| (index, self.home(*entry)))
    }

    fn home(&self, entry: u64) -> Result<HostCluster, Errno> {
        let sound = entry.is_multiple_of(self.shape.cluster_bytes()) && entry < 1 << 56;
        if sound { Ok(self.shape.host_at(entry)) } else { Err(Errno::IO) }
    }

    fn place(&self, cluster: HostCluster) -> (usize, usize) {
        let per_block = self.shape.block_refcounts();
        ((cluster.0 / per_block) as usize, (cluster.0 % per_block) as usize)
    }

    /// Returns the refcount of a cluster.
    pub fn get(&mut self, file: &mut BlockingFile, cluster: HostCluster) -> Result<u64, Errno> {
        let (index, slot) = self.place(cluster);
        let order = self.shape.refcount_order;
        Ok(self.block(file, index)?.map_or(0, |block| refcount(&block.bytes, order, slot)))
    }

    /// Returns all refcounts of a block; `None` if there is no such block.
    pub fn block_bytes(
        &mut self,
        file: &mut BlockingFile,
        index: usize,
    ) -> Result<Option<&[u8]>, Errno> {
        Ok(self.block(file, index)?.map(|block| &*block.bytes))
    }

    fn block(
        &mut self,
        file: &mut BlockingFile,
        index: usize,
    ) -> Result<Option<&mut Block>, Errno> {
        let entry = self.table.get(index).copied().unwrap_or(0);
        if entry == 0 {
            return Ok(None);
        }
        if !self.blocks.contains_key(&index) {
            self.make_room();
            let home = self.home(entry)?;
            let mut bytes = AlignedBuf::zeroed(self.shape.cluster_bytes() as usize);
            file.read(FileOffset::new(self.shape.offset(home)), &mut bytes)?;
            self.blocks.insert(index, Block { bytes, changed_sectors: BTreeSet::new() });
        }
        Ok(self.blocks.get_mut(&index))
    }

    fn make_room(&mut self) {
        if self.blocks.len() as u64 * self.shape.cluster_bytes() >= BLOCKS_BYTES_MAX {
            self.blocks.retain(|_, block| !block.changed_sectors.is_empty());
        }
    }

    /// Changes a refcount, whose block must exist.
    pub fn set(&mut self, file: &mut BlockingFile, cluster: HostCluster, value: u64) -> Outcome {
        let (index, slot) = self.place(cluster);
        let (order, sector_bytes) = (self.shape.refcount_order, self.sector_bytes);
        let block = self.block(file, index)?.ok_or(Errno::IO)?;
        put_refcount(&mut block.bytes, order, slot, value);
        block.changed_sectors.insert(((slot << order) / 8) / sector_bytes);
        Ok(())
    }

    /// Notes that these clusters have their first user; [`count_owed`](Self::count_owed) will count
    /// it.
    pub fn owe(&mut self, clusters: impl IntoIterator<Item = HostCluster>) {
        self.owed.extend(clusters);
    }

    /// Returns whether there are clusters in use that are not counted.
    pub fn owes(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Counts the first user of each owed cluster, and adds blocks where needed. After a failure,
    /// the next call continues.
    pub fn count_owed(&mut self, file: &mut BlockingFile, take: TakeRun<'_>) -> Outcome {
        // A new block or table takes clusters that need refcounts themselves.
        while let Some(&next) = self.owed.last() {
            let is_counted = self.claim(file, next, take);
            let (is_done, has_ended) = (is_counted == Ok(true), is_counted != Ok(false));
            let is_done = mutated("qcow2.refcounts.forgets-a-failed-count", is_done, has_ended);
            if is_done {
                self.owed.pop();
            }
            is_counted?;
        }
        Ok(())
    }

    /// Counts a cluster, or adds the block or table that it needs first. Returns whether it has
    /// been counted.
    fn claim(
        &mut self,
        file: &mut BlockingFile,
        cluster: HostCluster,
        take: TakeRun<'_>,
    ) -> Result<bool, Errno> {
        let (index, _) = self.place(cluster);
        if index >= self.table.len() {
            self.grow_table(index, take)?;
        } else if self.table[index] == 0 {
            self.add_block(index, take)?;
        } else {
            self.set(file, cluster, 1)?;
            return Ok(true);
        }
        Ok(false)
    }

    fn add_block(&mut self, index: usize, take: TakeRun<'_>) -> Outcome {
        let home = HostCluster(take(1).ok_or(Errno::NOSPC)?.start);
        self.table[index] = self.shape.offset(home);
        self.changed_entries.insert(index);
        let bytes = AlignedBuf::zeroed(self.shape.cluster_bytes() as usize);
        let changed_sectors = (0..bytes.len() / self.sector_bytes).collect();
        self.blocks.insert(index, Block { bytes, changed_sectors });
        self.owed.push(home);
        Ok(())
    }

    /// Returns the clusters that further blocks, and a table with room for them, take if all
    /// clusters before `end` become used.
    pub fn needed_before(&self, end: u64) -> u64 {
        let blocks = end.div_ceil(self.shape.block_refcounts()) as usize;
        let here = self.table.iter().take(blocks).filter(|entry| **entry != 0).count();
        let table = if blocks > self.table.len() { self.clusters_for(blocks - 1) } else { 0 };
        (blocks - here) as u64 + table
    }

    /// Returns the clusters of a table with room for this block, and some more.
    fn clusters_for(&self, index: usize) -> u64 {
        let wanted = (index + 1).max(self.table.len() * 3 / 2) as u64;
        self.shape.clusters(wanted * 8)
    }

    /// Moves the table to a larger run of clusters.
    fn grow_table(&mut self, index: usize, take: TakeRun<'_>) -> Outcome {
        let clusters = self.clusters_for(index);
        let place = take(clusters).ok_or(Errno::NOSPC)?;
        self.left.extend(self.table_clusters().map(HostCluster));
        self.owed.extend(place.clone().map(HostCluster));
        self.table.resize((clusters * self.shape.l2_entries()) as usize, 0);
        self.table_offset = self.shape.offset(HostCluster(place.start));
        self.moved = true;
        Ok(())
    }

    /// Returns tables and blocks that the table no longer names: to be dropped once that is
    /// durable.
    pub fn take_left(&mut self) -> Vec<HostCluster> {
        std::mem::take(&mut self.left)
    }

    /// Releases blocks that count nothing but such blocks. The next commit makes that durable; only
    /// then are the returned clusters, which nothing counts any more, free.
    pub fn release_empty(&mut self, file: &mut BlockingFile) -> Result<Vec<HostCluster>, Errno> {
        let mut released = BTreeSet::new();
        let mut known = usize::MAX;
        while std::mem::replace(&mut known, released.len()) != released.len() {
            for (index, home) in self.blocks().collect::<Vec<_>>() {
                let home = home?;
                if !released.contains(&home) && self.counts_only(file, index, home, &released)? {
                    released.insert(home);
                }
            }
        }
        for (index, home) in self.blocks().collect::<Vec<_>>() {
            if released.contains(&home?) {
                self.table[index] = 0;
                self.changed_entries.insert(index);
                self.blocks.remove(&index);
            }
        }
        let is_counted = |home: &HostCluster| self.table[self.place(*home).0] != 0;
        let (counted, uncounted): (Vec<_>, Vec<_>) = released.into_iter().partition(is_counted);
        self.left.extend(counted);
        Ok(uncounted)
    }

    /// Returns whether a block counts no users except itself and these.
    fn counts_only(
        &mut self,
        file: &mut BlockingFile,
        index: usize,
        home: HostCluster,
        others: &BTreeSet<HostCluster>,
    ) -> Result<bool, Errno> {
        let (order, slots) = (self.shape.refcount_order, self.shape.block_refcounts());
        let Some(bytes) = self.block_bytes(file, index)? else { return Ok(false) };
        let used = (0..slots).filter(|slot| refcount(bytes, order, *slot as usize) != 0);
        let mut clusters = used.map(|slot| HostCluster(index as u64 * slots + slot));
        Ok(clusters.all(|cluster| cluster == home || others.contains(&cluster)))
    }

    /// Decrements a refcount. Returns whether it has become 0.
    pub fn drop_one(
        &mut self,
        file: &mut BlockingFile,
        cluster: HostCluster,
    ) -> Result<bool, Errno> {
        match self.get(file, cluster)? {
            // Damage: a cluster without a refcount was in use. It is not freed.
            0 => Ok(false),
            count => {
                self.set(file, cluster, count - 1)?;
                Ok(count == 1)
            }
        }
    }

    /// Returns whether there is anything to write.
    pub fn is_changed(&self) -> bool {
        self.blocks.values().any(|block| !block.changed_sectors.is_empty())
            || !self.changed_entries.is_empty()
            || self.moved
    }

    /// Returns whether the table must be written, after the blocks that it names are durable.
    pub fn is_table_changed(&self) -> bool {
        !self.changed_entries.is_empty() || self.moved
    }

    /// Writes the changed blocks.
    pub fn write_blocks(&mut self, file: &mut BlockingFile) -> Outcome {
        let (mut writes, sector_bytes) = (Vec::new(), self.sector_bytes);
        for (index, block) in &mut self.blocks {
            let sectors: Vec<usize> = block.changed_sectors.iter().copied().collect();
            let (mut rest, mut at) = (&mut block.bytes[..], 0);
            for run in sectors.chunk_by(|before, after| before + 1 == *after) {
                let range = run[0] * sector_bytes..(run[run.len() - 1] + 1) * sector_bytes;
                let (source, others) = rest[range.start - at..].split_at_mut(range.len());
                writes.push((FileOffset::new(self.table[*index] + range.start as u64), source));
                (rest, at) = (others, range.end);
            }
        }
        file.write_many(&mut writes)?;
        self.blocks.values_mut().for_each(|block| block.changed_sectors.clear());
        self.make_room();
        Ok(())
    }

    /// Writes the changed part of the table.
    pub fn write_table(&mut self, file: &mut BlockingFile) -> Outcome {
        let (mut bytes, sector_bytes) = (to_bytes(&self.table), self.sector_bytes);
        let sectors: BTreeSet<usize> = match self.moved {
            true => (0..bytes.len() / sector_bytes).collect(),
            false => self.changed_entries.iter().map(|entry| entry * 8 / sector_bytes).collect(),
        };
        let sectors: Vec<usize> = sectors.into_iter().collect();
        for run in sectors.chunk_by(|before, after| before + 1 == *after) {
            let range = run[0] * sector_bytes..(run[run.len() - 1] + 1) * sector_bytes;
            let offset = self.table_offset + range.start as u64;
            file.write(FileOffset::new(offset), &mut bytes[range])?;
        }
        self.changed_entries.clear();
        Ok(())
    }
}

/// Returns the refcount in this slot of a block.
pub fn refcount(block: &[u8], order: u32, slot: usize) -> u64 {
    match order {
        0..=2 => {
            let bits = 1 << order;
            let shift = (slot * bits) % 8;
            u64::from(block[slot * bits / 8] >> shift) & ((1 << bits) - 1)
        }
        _ => {
            let bytes = 1 << (order - 3);
            let found = &block[slot * bytes..(slot + 1) * bytes];
            found.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
        }
    }
}

/// Changes the refcount in this slot of a block.
pub fn put_refcount(block: &mut [u8], order: u32, slot: usize, value: u64) {
    match order {
        0..=2 => {
            let bits = 1 << order;
            let shift = (slot * bits) % 8;
            let mask = ((1u8 << bits) - 1) << shift;
            let byte = &mut block[slot * bits / 8];
            *byte = *byte & !mask | (value as u8) << shift & mask;
        }
        _ => {
            let bytes = 1 << (order - 3);
            let all = value.to_be_bytes();
            block[slot * bytes..(slot + 1) * bytes].copy_from_slice(&all[8 - bytes..]);
        }
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod pieces;

#[cfg(test)]
mod tests {
    use flowstone_sim::{Call, Fault, SimDisk};

    use super::*;

    const SHAPE: Shape = Shape { version: 3, cluster_bits: 9, refcount_order: 4 };

    /// A table in cluster 1 whose first block is cluster 2; there are no others.
    fn one_block() -> (SimDisk, BlockingFile, Refcounts) {
        let disk = SimDisk::new(1 << 20);
        disk.write_at(512, &1024u64.to_be_bytes());
        let mut file = BlockingFile::new(&disk).unwrap();
        let refcounts = Refcounts::load(&mut file, SHAPE, 512, 1, 512).unwrap();
        (disk, file, refcounts)
    }

    /// A cluster whose refcount block found no room was forgotten, and so was one in each later
    /// call; in the end a commit succeeded that had not counted them.
    #[test]
    fn a_refcount_that_found_no_room_is_owed_until_it_is_there() {
        let (_disk, mut file, mut refcounts) = one_block();
        let wanted = [5, 300, 301, 600].map(HostCluster);
        refcounts.owe(wanted);
        for _ in 0..10 {
            let outcome = refcounts.count_owed(&mut file, &mut |_| None);
            assert_eq!(outcome, Err(Errno::NOSPC));
            assert!(refcounts.owes());
        }
        let mut next = 20..;
        let mut take = |count| (count == 1).then(|| next.next().map(|it| it..it + 1)).flatten();
        assert_eq!(refcounts.count_owed(&mut file, &mut take), Ok(()));
        assert!(!refcounts.owes());
        // The new blocks are in clusters 20 and 21.
        for cluster in wanted.into_iter().chain([20, 21].map(HostCluster)) {
            assert_eq!(refcounts.get(&mut file, cluster), Ok(1), "{cluster:?}");
        }
    }

    #[test]
    fn a_refcount_that_cannot_be_read_is_owed_until_it_can() {
        let (disk, mut file, mut refcounts) = one_block();
        disk.inject(Fault::fail(Errno::IO).on(Call::Read).always());
        refcounts.owe([5, 6].map(HostCluster));
        for _ in 0..10 {
            assert_eq!(refcounts.count_owed(&mut file, &mut |_| None), Err(Errno::IO));
            assert!(refcounts.owes());
        }
        disk.clear_faults();
        assert_eq!(refcounts.count_owed(&mut file, &mut |_| None), Ok(()));
        assert_eq!(refcounts.get(&mut file, HostCluster(5)), Ok(1));
        assert_eq!(refcounts.get(&mut file, HostCluster(6)), Ok(1));
    }

    #[test]
    fn refcounts_of_every_width_are_kept_apart() {
        for order in 0..=6 {
            let mut block = vec![0; 512];
            let most = if order == 6 { u64::MAX } else { (1 << (1 << order)) - 1 };
            put_refcount(&mut block, order, 3, most);
            put_refcount(&mut block, order, 5, 1);
            let found: Vec<u64> = (2..7).map(|slot| refcount(&block, order, slot)).collect();
            assert_eq!(found, [0, most, 0, 1, 0], "order {order}");
            put_refcount(&mut block, order, 3, 0);
            assert_eq!(refcount(&block, order, 3), 0);
        }
    }

    #[test]
    fn small_refcounts_begin_at_the_low_bits() {
        let mut block = vec![0; 512];
        put_refcount(&mut block, 1, 1, 2);
        assert_eq!(block[0], 0b1000);
        put_refcount(&mut block, 4, 1, 0x102);
        assert_eq!(block[2..4], [1, 2]);
    }
}
