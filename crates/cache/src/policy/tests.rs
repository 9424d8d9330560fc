use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::s3fifo::Shape;
use super::*;

fn all(capacity: usize) -> Vec<(&'static str, Box<dyn Policy>)> {
    let kinds = [PolicyKind::Lru, PolicyKind::S3Fifo, PolicyKind::MultiCache, PolicyKind::Adaptive];
    kinds.map(|kind| (kind.name(), kind.build(capacity, FREQ_THRESHOLD, 1))).into()
}

/// The last known state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Became {
    Hit,
    Inserted,
    Refused,
}

fn step(policy: &mut dyn Policy, block: u64) -> Became {
    match policy.access(BlockId(block), &mut Vec::new()) {
        Outcome::Hit(_) => Became::Hit,
        Outcome::Inserted(_) => Became::Inserted,
        Outcome::Refused => Became::Refused,
    }
}

fn hits(policy: &mut dyn Policy, blocks: impl Iterator<Item = u64>) -> usize {
    blocks.filter(|block| step(policy, *block) == Became::Hit).count()
}

/// Checks a policy's results against its reported evictions.
#[test]
fn what_is_kept_is_what_was_inserted_and_neither_evicted_nor_forgotten() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    for capacity in [1, 2, 3, 10, 500] {
        for (name, mut policy) in all(capacity) {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut kept: HashMap<u64, Place> = HashMap::new();
            let mut kept_most = 0;
            for _ in 0..20_000 {
                // Some blocks are used much more often than others.
                let range = if random.bool() { 20 } else { 2000 };
                let block = random.u64(0..range);
                if random.u8(0..20) == 0 {
                    assert_eq!(policy.forget(BlockId(block)), kept.remove(&block), "{name}");
                }
                let mut evicted = Vec::new();
                let outcome = policy.access(BlockId(block), &mut evicted);
                for gone in &evicted {
                    assert_eq!(kept.remove(&gone.block.0), Some(gone.place), "{name} {capacity}");
                }
                match outcome {
                    Outcome::Hit(place) => assert_eq!(kept.get(&block), Some(&place), "{name}"),
                    Outcome::Inserted(place) => {
                        assert!((place.0 as usize) < policy.places(), "{name} {capacity}");
                        assert_eq!(kept.insert(block, place), None, "{name} {capacity}");
                    }
                    Outcome::Refused => assert_eq!(kept.get(&block), None, "{name}"),
                }
                let asked = random.u64(0..20);
                assert_eq!(policy.find(BlockId(asked)), kept.get(&asked).copied(), "{name}");
                assert_eq!(policy.len(), kept.len(), "{name} {capacity}");
                kept_most = kept_most.max(kept.len());
                assert!(policy.len() <= capacity.max(2), "{name} {capacity}: {}", policy.len());
            }
            let places: HashSet<Place> = kept.values().copied().collect();
            assert_eq!(places.len(), kept.len(), "{name}: one place each");
            // At the end a cache of one block may just have forgotten it (seed
            // 16909029326798211617).
            assert!(kept_most >= capacity, "{name} {capacity}: {kept_most}");
        }
    }
}

#[test]
fn a_cache_that_becomes_smaller_gives_up_what_does_not_fit_in_steps_and_grows_again() {
    for (name, mut policy) in all(1000) {
        hits(&mut *policy, (0..1000).chain(0..1000));
        assert_eq!(policy.len(), 1000, "{name}");
        let mut evicted = Vec::new();
        for left in [900, 800, 700, 700] {
            policy.resize(700, 100, &mut evicted);
            assert_eq!((policy.len(), 1000 - evicted.len()), (left, left), "{name}");
        }
        assert!(evicted.iter().all(|gone| policy.find(gone.block).is_none()), "{name}");
        // An access evicts only a few.
        policy.resize(300, 0, &mut evicted);
        hits(&mut *policy, (5000..5010).chain(5000..5010));
        assert!((600..700).contains(&policy.len()), "{name}: {}", policy.len());
        while policy.len() > 300 {
            let before = policy.len();
            policy.resize(300, 100, &mut evicted);
            assert!(policy.len() < before, "{name}: {before}");
        }
        policy.resize(5000, 100, &mut evicted);
        hits(&mut *policy, (0..1000).chain(0..1000));
        assert!(policy.len() > 500 && policy.places() <= 2001 + (1 << 20), "{name}");
    }
}

/// All counts are at their maximum: one access does not visit all blocks.
#[test]
fn one_block_goes_even_if_all_have_been_used() {
    let mut policy = S3Fifo::new(10_000, Shape::PAPER);
    for _ in 0..6 {
        hits(&mut policy, 0..10_000);
    }
    let mut evicted = Vec::new();
    policy.access(BlockId(20_000), &mut evicted);
    assert_eq!((evicted.len(), policy.len()), (1, 10_000));
    // Blocks that have had another turn.
    let turned = (0..10_000).filter(|block| policy.uses(BlockId(*block)) < Some(3)).count();
    assert!(turned <= 70, "{turned}");
}

#[test]
fn every_policy_has_a_name() {
    for kind in PolicyKind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
    }
    assert_eq!("multicache".parse(), Ok(PolicyKind::MultiCache));
    assert!("arc".parse::<PolicyKind>().unwrap_err().contains("lru, s3fifo"));
}

#[test]
fn what_fits_stays() {
    for (name, mut policy) in all(1000) {
        hits(&mut *policy, (0..500).chain(0..500));
        assert_eq!(hits(&mut *policy, 0..500), 500, "{name}");
    }
}

#[test]
fn lru_keeps_what_was_used_last() {
    let mut lru = Lru::new(3);
    hits(&mut lru, [1, 2, 3, 1, 4].into_iter());
    assert_eq!(hits(&mut lru, [1, 3, 4].into_iter()), 3);
    assert_eq!(step(&mut lru, 2), Became::Inserted);
}

/// A scan of ten times the cache does not displace hot blocks.
#[test]
fn a_scan_does_not_take_the_cache_from_what_is_used() {
    for (name, mut policy) in all(1000) {
        for round in 0..20u64 {
            for _ in 0..4 {
                hits(&mut *policy, 0..500);
            }
            hits(&mut *policy, 10_000 * (round + 1)..10_000 * (round + 2));
        }
        let kept = hits(&mut *policy, 0..500);
        match name {
            "lru" => assert_eq!(kept, 0),
            _ => assert!(kept > 400, "{name}: {kept}"),
        }
    }
}

#[test]
fn multicache_keeps_what_reaches_the_threshold() {
    let mut policy = MultiCache::new(10, 2.0, Rule::Weight);
    let became = [7, 7, 7].map(|block| step(&mut policy, block));
    assert_eq!(became, [Became::Refused, Became::Inserted, Became::Hit]);
}

/// Of four VMs one has half of all vCPUs and memory.
#[test]
fn a_heavy_vm_is_kept_sooner_and_the_relative_scale_does_not_shrink_with_the_number_of_vms() {
    let accesses = |rule, sizes: &[u32]| {
        let mut policy = MultiCache::new(10, 2.0, rule);
        policy.set_vms(&Vms::of_sizes(sizes));
        let is_in = |_: &u32| step(&mut policy, 1) == Became::Inserted;
        (1..100).find(is_in)
    };
    assert_eq!(accesses(Rule::Weight, &[1]), Some(2));
    assert_eq!(accesses(Rule::Weight, &[1, 1, 1, 1]), Some(32));
    assert_eq!(accesses(Rule::Weight, &[3, 1, 1, 1]), Some(8));
    assert_eq!(accesses(Rule::Count, &[3, 1, 1, 1]), Some(2));
    assert_eq!(accesses(Rule::Relative, &[1, 1, 1, 1]), Some(2));
    assert_eq!(accesses(Rule::Relative, &[3, 1, 1, 1]), Some(1));
    assert_eq!(accesses(Rule::Relative, &[1, 1, 1, 3]), Some(5));
}

/// Counts of blocks that are not kept take bounded memory.
#[test]
fn multicache_forgets_counts() {
    let mut policy = MultiCache::new(10, 2.0, Rule::Weight);
    hits(&mut policy, 0..1 << 22);
    assert_eq!(step(&mut policy, 1), Became::Refused, "it was counted too long ago");
    assert_eq!(step(&mut policy, (1 << 22) - 1), Became::Inserted);
    let counted = policy.ghosts();
    assert!(counted <= 1 << 20, "{counted}");
}

/// Reads and writes are counted separately, and both are accesses.
#[test]
fn multicache_counts_reads_and_writes() {
    let mut policy = MultiCache::new(10, 3.0, Rule::Count);
    let mut evicted = Vec::new();
    let block = BlockId(5);
    assert_eq!(policy.access(block, &mut evicted), Outcome::Refused);
    assert_eq!(policy.write(block, &mut evicted), Outcome::Refused);
    assert!(matches!(policy.write(block, &mut evicted), Outcome::Inserted(_)));
    assert!(policy.forget(block).is_some());
    assert_eq!(policy.write(block, &mut evicted), Outcome::Refused);
}

const SCAN_FILTER: Shape = Shape { small: 0.01, promote: 2, ghosts: 1.0, by_recency: false };

/// The oldest were evicted, until a small queue of all blocks was as short as it is to be: nothing
/// of a loop was hit in its second round.
#[test]
fn what_filled_the_cache_stays_as_the_small_queue_becomes_shorter() {
    let mut filter = S3Fifo::new(1000, SCAN_FILTER);
    hits(&mut filter, 0..1500);
    let kept = hits(&mut filter, 0..1000);
    assert!(kept > 900, "{kept} of 1,000");
}

/// The same when the shape changes.
#[test]
fn what_the_cache_has_stays_when_its_shape_changes() {
    let mut nearly_lru = S3Fifo::new(1000, Shape { small: 0.9, ..SCAN_FILTER });
    hits(&mut nearly_lru, 0..2000);
    nearly_lru.reshape(SCAN_FILTER);
    hits(&mut nearly_lru, 5000..5500);
    // In the order of a loop; the oldest made room for the small queue.
    let kept = hits(&mut nearly_lru, 1100..2000);
    assert!(kept > 800, "{kept} of 900");
}

/// A block of a loop that is longer than the cache comes back as a ghost; one that it displaces
/// would have been used sooner.
#[test]
fn a_ghost_displaces_only_what_was_used_before_it() {
    let of_loop = |by_recency| {
        let mut policy = S3Fifo::new(1000, Shape { by_recency, ..SCAN_FILTER });
        hits(&mut policy, (0..20).flat_map(|_| 0..1500))
    };
    let (always, by_recency) = (of_loop(false), of_loop(true));
    assert!(by_recency > 18 * 980 && by_recency > always * 5 / 4, "{by_recency}, {always}");
    // What is not used any more goes.
    let mut policy = S3Fifo::new(1000, Shape { by_recency: true, ..SCAN_FILTER });
    hits(&mut policy, (0..20).flat_map(|_| 0..1500));
    let later = hits(&mut policy, (0..20).flat_map(|_| 10_000..10_800));
    assert!(later > 17 * 780, "{later}");
}

/// Regression: the new room was in the small queue, and its blocks displaced each other.
#[test]
fn a_cache_that_grows_uses_the_new_room_for_a_loop() {
    let mut policy = S3Fifo::new(2000, Shape { by_recency: true, ..SCAN_FILTER });
    policy.resize(1000, 1000, &mut Vec::new());
    hits(&mut policy, (0..10).flat_map(|_| 0..3000));
    policy.resize(2000, 0, &mut Vec::new());
    hits(&mut policy, (0..2).flat_map(|_| 0..3000));
    let kept = hits(&mut policy, 0..3000);
    assert!(kept > 1900, "{kept} of 2,000");
}

/// Regression: the times of blocks that nothing displaced began anew, and they looked recent.
#[test]
fn a_long_scan_does_not_make_old_blocks_look_recent() {
    for scan in [0, 14_000, 17_000, 20_000, 40_000] {
        let mut policy = S3Fifo::new(1000, Shape { by_recency: true, ..SCAN_FILTER });
        hits(&mut policy, (0..20).flat_map(|_| 0..1500));
        hits(&mut policy, 1_000_000..1_000_000 + scan);
        hits(&mut policy, (0..6).flat_map(|_| 10_000..10_800));
        let kept = hits(&mut policy, 10_000..10_800);
        assert!(kept > 700, "{kept} of 800 after {scan}");
    }
}

/// A load that needs another shape than the last one gets it.
#[test]
fn the_default_follows_the_load() {
    let (mut adaptive, mut lru) = (Adaptive::new(4096, 1), Lru::new(4096));
    let mut random = fastrand::Rng::with_seed(3);
    // Loops somewhat larger than the cache, which LRU never hits.
    let loops: Vec<u64> = (0..40).flat_map(|_| 0..6000).collect();
    assert_eq!(hits(&mut lru, loops.iter().copied()), 0);
    let kept = hits(&mut adaptive, loops.iter().copied());
    assert!(kept * 10 > loops.len() * 6, "{kept} of {}", loops.len());
    // Then blocks used twice within the length of the cache, and never again: LRU's best case.
    let recent: Vec<u64> = (0..200_000u64)
        .map(|at| 1_000_000 + if random.bool() { at } else { at.saturating_sub(3000) })
        .collect();
    let (of_lru, ours) =
        (hits(&mut lru, recent.iter().copied()), hits(&mut adaptive, recent.iter().copied()));
    assert!(ours * 10 > of_lru * 8, "{ours} against {of_lru}");
}

/// Returns the hits of 10,000 accesses of the first VM to its working set, beside a second VM that
/// accesses nine times as often and uses each block of a set larger than the cache more often than
/// the first VM its own.
fn hits_beside_a_hog(sizes: &[u32], capacity: usize) -> usize {
    let mut policy = Adaptive::new(capacity, 1);
    policy.set_vms(&Vms::of_sizes(sizes));
    let mut random = fastrand::Rng::with_seed(5);
    let (mut evicted, mut hits) = (Vec::new(), 0);
    for at in 0..200_000u64 {
        let block = if at % 10 == 0 {
            BlockId::of_disk(0, random.u64(0..500))
        } else {
            BlockId::of_disk(1, random.u64(0..3000))
        };
        let is_hit = matches!(policy.access(block, &mut evicted), Outcome::Hit(_));
        hits += usize::from(is_hit && block.disk() == 0 && at >= 100_000);
        evicted.clear();
    }
    hits
}

/// The working set is a quarter of the cache: a VM with a part of a half keeps it whatever another
/// one does.
#[test]
fn no_vm_takes_from_another_what_its_weight_allows() {
    let shares: [&[u32]; 3] = [&[1], &[1, 1], &[1, 3]];
    let [unweighted, equal, light] = shares.map(|sizes| hits_beside_a_hog(sizes, 2000));
    assert!(unweighted < 5000, "the hog is no hog: {unweighted} of 10,000");
    assert!(equal > 9000, "{equal} of 10,000");
    assert!(light < equal, "{light} of 10,000 are more than a tenth of the cache allows");
}

/// Others use the part of an idle VM, which has it again when it becomes active.
#[test]
fn what_an_idle_vm_has_is_used_by_others_until_it_wakes() {
    let mut policy = Adaptive::new(4000, 1);
    policy.set_vms(&Vms::of_sizes(&[1, 1]));
    let disk =
        |disk, numbers: Range<u64>| numbers.map(move |number| BlockId::of_disk(disk, number).0);
    for _ in 0..20 {
        hits(&mut policy, disk(0, 0..1500).chain(disk(1, 0..3500)));
    }
    for _ in 0..150 {
        policy.pass(Duration::from_secs(1));
        hits(&mut policy, disk(1, 0..3500));
    }
    assert_eq!(hits(&mut policy, disk(1, 0..3500)), 3500, "the idle one keeps something from it");
    for _ in 0..20 {
        hits(&mut policy, disk(0, 0..1500).chain(disk(1, 0..3500)));
    }
    let kept = hits(&mut policy, disk(0, 0..1500));
    assert!(kept > 1350, "{kept} of 1,500 that its weight allows");
}
