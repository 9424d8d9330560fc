//! The map alone, compared with a balanced tree as in the reshaping paper (S1.3: red/black trees).

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use flowstone_log::BlockMap;
use flowstone_log_format::{Address, MapEntry};

const ENTRIES: usize = 10_000_000;
/// Blocks of the disk: 64 GiB, so that the entries are sparse, as with random writes.
const BLOCKS: u64 = 1 << 24;

/// Prints nanoseconds per operation and bytes per entry.
pub fn measure() {
    let mut random = fastrand::Rng::with_seed(1);
    let keys: Vec<u64> = (0..ENTRIES).map(|_| random.u64(0..BLOCKS)).collect();
    let asked: Vec<u64> = (0..ENTRIES).map(|_| random.u64(0..BLOCKS)).collect();
    let word = |index: usize| MapEntry::new(Address::new(index as u32 + 1), index as u32);

    let map = BlockMap::default();
    let (insert, _) =
        time(|| keys.iter().enumerate().for_each(|(i, key)| drop_word(map.replace(*key, word(i)))));
    let (lookup, found) = time(|| asked.iter().filter(|key| map.get(**key).is_mapped()).count());
    let bytes = map.memory_bytes(BLOCKS) as f64 / map.mapped() as f64;

    let mut tree = BTreeMap::new();
    let (tree_insert, _) = time(|| {
        for (i, key) in keys.iter().enumerate() {
            tree.insert(*key, word(i).bits());
        }
    });
    let (tree_lookup, tree_found) =
        time(|| asked.iter().filter(|key| tree.contains_key(key)).count());
    assert_eq!(found, tree_found, "both maps hold the same");

    println!("| 10 M random blocks of 64 GiB | map | BTreeMap | ratio |\n|---|---|---|---|");
    println!("| insert, ns | {insert:.0} | {tree_insert:.0} | {:.1} |", tree_insert / insert);
    println!("| lookup, ns | {lookup:.0} | {tree_lookup:.0} | {:.1} |", tree_lookup / lookup);
    println!("| bytes per mapped block | {bytes:.1} | - | - |");
}

fn drop_word(word: MapEntry) {
    black_box(word);
}

/// Returns nanoseconds per entry, and the result.
fn time<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let start = Instant::now();
    let result = black_box(work());
    (start.elapsed().as_nanos() as f64 / ENTRIES as f64, result)
}
