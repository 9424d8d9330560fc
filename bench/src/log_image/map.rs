//! The map alone, compared with a balanced tree as in the reshaping paper (S1.3: red/black trees).

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use flowstone_experiment::{Experiment, table};
use flowstone_log::BlockMap;
use flowstone_log_format::{Address, MapEntry};

use crate::run::Run;

const ENTRIES: usize = 10_000_000;
/// Blocks of the disk: 64 GiB, so that the entries are sparse, as with random writes.
const BLOCKS: u64 = 1 << 24;

/// Options.
#[derive(Clone, Debug, Args)]
pub struct MapArgs {
    #[command(flatten)]
    run: Run,
}

const MAP: &str = "map";
const TREE: &str = "BTreeMap";
const POINT: &str = "10 million random blocks of 64 GiB";
const INSERT_NS: &str = "insert_ns";
const LOOKUP_NS: &str = "lookup_ns";
const BYTES: &str = "bytes_per_block";

/// Measures both, and prints the table.
pub fn measure(args: &MapArgs) -> Result<()> {
    let mut experiment = args.run.experiment("log map")?;
    for seed in 1..=args.run.rounds as u64 {
        one_round(seed, &mut experiment);
    }
    args.run.publish(render, &experiment)
}

/// Renders the table.
pub fn render(experiment: &Experiment) -> String {
    let [map, tree] = [MAP, TREE].map(|name| experiment.at(POINT, name));
    let row = |(what, figure): (&str, &str)| {
        let own = map.spread(figure, 1);
        vec![what.to_owned(), own, tree.spread(figure, 1), tree.ratio(map, figure)]
    };
    let rows = [("insert, ns", INSERT_NS), ("lookup, ns", LOOKUP_NS), ("bytes of a block", BYTES)];
    table(&format!("{POINT} | {MAP} | {TREE} | ratio (95 %)"), rows.map(row))
}

fn one_round(seed: u64, experiment: &mut Experiment) {
    let mut random = fastrand::Rng::with_seed(seed);
    let keys: Vec<u64> = (0..ENTRIES).map(|_| random.u64(0..BLOCKS)).collect();
    let asked: Vec<u64> = (0..ENTRIES).map(|_| random.u64(0..BLOCKS)).collect();
    let word = |index: usize| MapEntry::new(Address::new(index as u32 + 1), index as u32);

    let map = BlockMap::default();
    let (insert, _) =
        time(|| keys.iter().enumerate().for_each(|(i, key)| drop_word(map.replace(*key, word(i)))));
    let (lookup, found) = time(|| asked.iter().filter(|key| map.get(**key).is_mapped()).count());
    let bytes = map.memory_bytes(BLOCKS) as f64 / map.mapped() as f64;
    experiment.add(POINT, MAP, &[(INSERT_NS, insert), (LOOKUP_NS, lookup), (BYTES, bytes)]);

    let mut tree = BTreeMap::new();
    let (insert, _) = time(|| {
        for (i, key) in keys.iter().enumerate() {
            tree.insert(*key, word(i).bits());
        }
    });
    let (lookup, tree_found) = time(|| asked.iter().filter(|key| tree.contains_key(key)).count());
    assert_eq!(found, tree_found, "both maps hold the same");
    experiment.add(POINT, TREE, &[(INSERT_NS, insert), (LOOKUP_NS, lookup)]);
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
