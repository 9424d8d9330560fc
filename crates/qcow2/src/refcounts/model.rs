//! Tests refcounts against a plain list of the users of each cluster.

use std::collections::BTreeMap;

use fastrand::Rng;
use flowstone_sim::{Call, Fault, Landed, SimDisk};

use super::*;

/// The table is in cluster 1, its first block in cluster 2.
const TABLE: u64 = 1;
const BLOCK: u64 = 2;

struct Model {
    shape: Shape,
    disk: SimDisk,
    file: BlockingFile,
    refcounts: Refcounts,
    /// Number of users of each used cluster.
    users: BTreeMap<u64, u64>,
    /// First cluster that has never been used.
    end: u64,
}

impl Model {
    fn new(refcount_order: u32) -> Self {
        let shape = Shape { version: 3, cluster_bits: 9, refcount_order };
        let disk = SimDisk::new(1 << 20);
        let cluster = shape.cluster_bytes();
        // Clusters that no refcount has been written to hold arbitrary data.
        disk.write_at(0, &vec![0xaa; 1 << 20]);
        disk.write_at(TABLE * cluster, &[0; 2 * 512]);
        disk.write_at(TABLE * cluster, &(BLOCK * cluster).to_be_bytes());
        let mut file = BlockingFile::new(&disk).unwrap();
        let refcounts = Refcounts::load(&mut file, shape, TABLE * cluster, 1, 512).unwrap();
        let mut model = Self { shape, disk, file, refcounts, users: BTreeMap::new(), end: 3 };
        model.refcounts.owe([0, TABLE, BLOCK].map(HostCluster));
        model.users.extend([0, TABLE, BLOCK].map(|cluster| (cluster, 1)));
        model.claim();
        model
    }

    /// Takes clusters from the first never used one on, and adds them to the model.
    fn take(&mut self, count: u64) -> Range<u64> {
        let run = self.end..self.end + count;
        self.end += count;
        self.users.extend(run.clone().map(|cluster| (cluster, 1)));
        run
    }

    /// Counts the owed clusters. Returns the number of clusters that this took.
    fn claim(&mut self) -> u64 {
        let mut next = self.end;
        let mut take = |count| {
            next += count;
            Some(next - count..next)
        };
        self.refcounts.count_owed(&mut self.file, &mut take).unwrap();
        let count = next - self.end;
        self.take(count);
        count
    }

    fn use_more(&mut self, count: u64) -> u64 {
        let run = self.take(count);
        self.refcounts.owe(run.map(HostCluster));
        self.claim()
    }

    fn drop_user(&mut self, cluster: u64) {
        let users = self.users.remove(&cluster).unwrap();
        let last = self.refcounts.drop_one(&mut self.file, HostCluster(cluster)).unwrap();
        assert_eq!(last, users == 1, "cluster {cluster}");
        if users > 1 {
            self.users.insert(cluster, users - 1);
        }
    }

    /// Writes as a commit does; old clusters of the table are dropped by the next one.
    fn write(&mut self) {
        assert!(!self.refcounts.owes());
        for cluster in self.refcounts.take_left() {
            self.drop_user(cluster.0);
        }
        self.refcounts.write_blocks(&mut self.file).unwrap();
        if self.refcounts.is_table_changed() {
            self.refcounts.write_table(&mut self.file).unwrap();
            self.refcounts.moved = false;
        }
        assert!(!self.refcounts.is_changed());
    }

    /// Compares the model with the file, and with memory.
    fn check(&mut self) {
        let clusters = self.refcounts.table_clusters();
        let clusters = clusters.end - clusters.start;
        let offset = self.refcounts.table_offset;
        let mut file = BlockingFile::new(&self.disk).unwrap();
        let mut stored = Refcounts::load(&mut file, self.shape, offset, clusters, 512).unwrap();
        assert!(!stored.is_changed());
        for cluster in 0..self.end + 100 {
            let users = self.users.get(&cluster).copied().unwrap_or(0);
            let at = HostCluster(cluster);
            assert_eq!(stored.get(&mut file, at), Ok(users), "stored, cluster {cluster}");
            assert_eq!(self.refcounts.get(&mut self.file, at), Ok(users), "cluster {cluster}");
        }
    }
}

#[test]
fn refcounts_are_those_of_a_plain_list() {
    for seed in 0..40 {
        let mut random = Rng::with_seed(seed);
        let mut model = Model::new(random.u32(0..=6));
        for _ in 0..random.u32(5..30) {
            match random.u32(0..10) {
                0 => {
                    // A hole in the file: its refcount blocks are added when needed.
                    model.end += random.u64(0..3000);
                    model.use_more(1);
                }
                1..=5 => {
                    model.use_more(random.u64(1..200));
                }
                6 | 7 => {
                    let used: Vec<u64> = model.users.keys().copied().collect();
                    let homes: Vec<u64> =
                        model.refcounts.blocks().map(|(_, home)| home.unwrap().0).collect();
                    let table = model.refcounts.table_clusters();
                    for _ in 0..random.usize(1..50) {
                        let cluster = *random.choice(&used).unwrap();
                        let is_ours = homes.contains(&cluster)
                            || table.contains(&cluster)
                            || model.refcounts.left.contains(&HostCluster(cluster));
                        if !is_ours && model.users.contains_key(&cluster) && cluster > 0 {
                            model.drop_user(cluster);
                        }
                    }
                }
                _ => {
                    model.write();
                    model.check();
                }
            }
        }
        // The old tables are dropped by one commit, and not counted after that.
        model.write();
        model.write();
        model.check();
        eprintln!("seed {seed}: {} clusters", model.end);
    }
}

/// Clusters are reserved for refcounts by this number, so it must match what is taken exactly.
#[test]
fn as_many_clusters_are_needed_as_are_taken() {
    for order in 0..=6 {
        for count in [1, 60, 250, 251, 252, 253, 254, 255, 256, 257, 1000, 5000, 20_000, 40_000] {
            let mut model = Model::new(order);
            let end = model.end + count;
            let needed = model.refcounts.needed_before(end);
            if needed >= count {
                continue;
            }
            // With their refcounts, they end at the requested cluster; or one before, if the last
            // block ends there.
            let taken = model.use_more(count - needed);
            let told = format!("order {order}, {count} clusters: {needed} needed, {taken} taken");
            assert!(taken == needed || taken + 1 == needed && model.end + 1 == end, "{told}");
            assert_eq!(model.refcounts.needed_before(model.end), 0);
        }
    }
}

/// A table that moves grows by half, so that it moves seldom.
#[test]
fn a_table_grows_by_half_or_as_far_as_it_must() {
    let mut model = Model::new(4);
    let per_block = model.shape.block_refcounts();
    let entries = |model: &Model| model.refcounts.table_entries() as u64;
    let before = entries(&model);
    model.end = before * per_block;
    model.use_more(1);
    // Clusters of a table hold 64 entries.
    assert_eq!(entries(&model), (before * 3 / 2).next_multiple_of(64));
    let before = entries(&model);
    model.end = 10 * before * per_block;
    model.use_more(1);
    assert_eq!(entries(&model), (10 * before + 1).next_multiple_of(64));
    model.write();
    model.write();
    model.check();
}

#[test]
fn a_table_that_could_not_be_written_is_written_later() {
    let moves = [false, true].into_iter();
    for (moves, landed) in moves.flat_map(|moves| Landed::ALL.map(|landed| (moves, landed))) {
        let mut model = Model::new(4);
        model.write();
        model.end = model.shape.block_refcounts() * if moves { 64 } else { 5 };
        model.use_more(1);
        assert!(model.refcounts.is_table_changed());
        model.refcounts.write_blocks(&mut model.file).unwrap();
        model.disk.inject(Fault::fail(Errno::IO).landed(landed).on(Call::Write));
        assert_eq!(model.refcounts.write_table(&mut model.file), Err(Errno::IO));
        assert!(model.refcounts.is_changed() && model.refcounts.is_table_changed());
        model.write();
        assert!(!model.refcounts.is_table_changed());
        model.write();
        model.check();
    }
}

/// Blocks that count nothing but each other are released, and no others.
#[test]
fn blocks_that_count_only_themselves_are_given_up() {
    for order in [3, 4, 6] {
        let mut model = Model::new(order);
        let per_block = model.shape.block_refcounts();
        // Blocks for three distant places, each counted by itself or by another one of them.
        let mut used = Vec::new();
        for place in 1..4 {
            model.end = model.end.max(place * 20 * per_block);
            used.push(model.end);
            model.use_more(1);
        }
        model.write();
        let named = |model: &Model| model.refcounts.blocks().count();
        let before = named(&model);
        assert!(before >= 4);
        assert_eq!(model.refcounts.release_empty(&mut model.file), Ok(vec![]));
        assert_eq!(named(&model), before, "all of them count something");
        used.iter().for_each(|cluster| model.drop_user(*cluster));
        let freed = model.refcounts.release_empty(&mut model.file).unwrap();
        freed.iter().for_each(|cluster| assert_eq!(model.users.remove(&cluster.0), Some(1)));
        model.write();
        model.check();
        assert!(named(&model) < before, "order {order}: {before} blocks");
        let left = model.refcounts.blocks().map(|(_, home)| home.unwrap().0);
        assert!(left.into_iter().all(|home| model.users.contains_key(&home)));
    }
}

/// Blocks that can be read again are evicted when they take too much memory; changes are not.
#[test]
fn blocks_in_memory_are_bounded_and_changes_are_kept() {
    let shape = Shape { version: 3, cluster_bits: 9, refcount_order: 4 };
    let most = (BLOCKS_BYTES_MAX / shape.cluster_bytes()) as usize;
    let blocks = most + 1000;
    let disk = SimDisk::new(1 << 20);
    let table_clusters = shape.clusters(blocks as u64 * 8);
    let home = |index: usize| (1 + table_clusters + index as u64) * shape.cluster_bytes();
    let table: Vec<u64> = (0..blocks).map(home).collect();
    disk.write_at(512, &to_bytes(&table));
    disk.write_at(home(blocks), &[0]);
    let mut file = BlockingFile::new(&disk).unwrap();
    let mut refcounts = Refcounts::load(&mut file, shape, 512, table_clusters, 512).unwrap();
    let changed = HostCluster(3 * shape.block_refcounts() + 7);
    refcounts.set(&mut file, changed, 1).unwrap();
    for index in 0..blocks as u64 {
        let cluster = HostCluster(index * shape.block_refcounts());
        assert_eq!(refcounts.get(&mut file, cluster), Ok(0));
        assert!(refcounts.blocks.len() <= most);
        // As many as fit in memory are kept.
        assert!(index >= most as u64 || refcounts.blocks.len() as u64 > index);
    }
    refcounts.write_blocks(&mut file).unwrap();
    let mut stored = Refcounts::load(&mut file, shape, 512, table_clusters, 512).unwrap();
    assert_eq!(stored.get(&mut file, changed), Ok(1));
}

#[test]
fn a_table_that_names_no_cluster_is_an_error() {
    for entry in [513, 1 << 8, 1 << 56, 1 << 63, u64::MAX] {
        let shape = Shape { version: 3, cluster_bits: 9, refcount_order: 4 };
        let disk = SimDisk::new(1 << 20);
        disk.write_at(512, &u64::to_be_bytes(entry));
        let mut file = BlockingFile::new(&disk).unwrap();
        let mut refcounts = Refcounts::load(&mut file, shape, 512, 1, 512).unwrap();
        assert_eq!(refcounts.get(&mut file, HostCluster(3)), Err(Errno::IO), "{entry:#x}");
        assert!(refcounts.blocks().all(|(_, home)| home == Err(Errno::IO)));
        assert_eq!(refcounts.table_entries(), 64);
    }
}
