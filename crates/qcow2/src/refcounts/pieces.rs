//! Tests of the written parts of large refcount blocks and tables, and of their growth.

use flowstone_sim::SimDisk;

use super::*;

const SHAPE: Shape = Shape { version: 3, cluster_bits: 12, refcount_order: 4 };
const CLUSTER: u64 = 4096;
/// Refcounts in a block.
const COUNTS: u64 = 2048;

/// A file with arbitrary content, and in cluster 1 a table that is empty except for its first
/// block, which is cluster 2 and holds zeroes.
fn with_one_block() -> (SimDisk, BlockingFile, Refcounts) {
    let disk = SimDisk::from_bytes(&vec![0xaa; 16 * CLUSTER as usize]);
    disk.write_at(CLUSTER, &[0; 2 * CLUSTER as usize]);
    disk.write_at(CLUSTER, &(2 * CLUSTER).to_be_bytes());
    let mut file = BlockingFile::new(&disk).unwrap();
    let refcounts = Refcounts::load(&mut file, SHAPE, CLUSTER, 1, 512).unwrap();
    (disk, file, refcounts)
}

/// Returns the refcounts in the file of the clusters that two blocks count.
fn stored(disk: &SimDisk, refcounts: &Refcounts) -> Vec<(u64, u64)> {
    let mut file = BlockingFile::new(disk).unwrap();
    let clusters = refcounts.table_clusters();
    let (offset, count) = (refcounts.table_offset, clusters.end - clusters.start);
    let mut stored = Refcounts::load(&mut file, SHAPE, offset, count, 512).unwrap();
    let counted = (0..2 * COUNTS).map(|it| (it, stored.get(&mut file, HostCluster(it)).unwrap()));
    counted.filter(|(_, count)| *count != 0).collect()
}

/// Blocks of eight sectors, some of which change.
#[test]
fn changes_far_apart_in_a_block_and_all_of_a_new_one_are_written_where_they_belong() {
    let (disk, mut file, mut refcounts) = with_one_block();
    // A sector holds 256 refcounts.
    let mut expected: Vec<(u64, u64)> =
        [3, 256, 511, 1024, 1600, 2047].map(|it| (it, it % 7 + 1)).to_vec();
    for (cluster, count) in &expected {
        refcounts.set(&mut file, HostCluster(*cluster), *count).unwrap();
    }
    refcounts.write_blocks(&mut file).unwrap();
    assert!(!refcounts.is_changed());
    assert_eq!(stored(&disk, &refcounts), expected);
    refcounts.owe([HostCluster(COUNTS + 600)]);
    refcounts.count_owed(&mut file, &mut |count| Some(5..5 + count)).unwrap();
    refcounts.write_blocks(&mut file).unwrap();
    refcounts.write_table(&mut file).unwrap();
    expected.extend([(5, 1), (COUNTS + 600, 1)]);
    expected.sort_unstable();
    assert_eq!(stored(&disk, &refcounts), expected);
}

#[test]
fn a_table_moves_when_it_is_too_short_and_not_before() {
    let (_disk, mut file, mut refcounts) = with_one_block();
    let entries = CLUSTER / 8;
    assert_eq!(refcounts.needed_before(entries * COUNTS), entries - 1, "blocks and no table");
    let far = 10 * entries;
    assert_eq!(refcounts.needed_before(far * COUNTS), far - 1 + 10, "no more than they take");
    let mut next = 100;
    let mut take = |count| {
        next += count;
        Some(next - count..next)
    };
    refcounts.owe([HostCluster(entries * COUNTS)]);
    refcounts.count_owed(&mut file, &mut take).unwrap();
    assert_eq!(refcounts.table_entries() as u64, 2 * entries, "half as many again, as clusters");
    assert_eq!(refcounts.take_left(), [HostCluster(1)], "where it was");
    assert_eq!(refcounts.take_left(), []);
    let many = 8 * entries;
    for (index, expected) in [(many - 1, many), (many, many * 3 / 2)] {
        refcounts.owe([HostCluster(index * COUNTS)]);
        refcounts.count_owed(&mut file, &mut take).unwrap();
        assert_eq!(refcounts.table_entries() as u64, expected);
    }
}
