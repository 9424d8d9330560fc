use super::adaptive::Adaptive;
use super::lru::Lru;
use super::multicache::{MultiCache, Scale};
use super::s3fifo::{S3Fifo, Shape};
use super::*;

fn all(capacity: usize) -> Vec<(&'static str, Box<dyn Policy>)> {
    vec![
        ("lru", Box::new(Lru::new(capacity))),
        ("s3fifo", Box::new(S3Fifo::new(capacity, Shape::PAPER))),
        ("multicache", Box::new(MultiCache::new(capacity, 2.0, Scale::Literal))),
        ("default", Box::new(Adaptive::new(capacity))),
    ]
}

fn access(block: u64) -> Access {
    Access { block: BlockId(block), share: VmShare::ALONE }
}

fn hits(policy: &mut dyn Policy, blocks: impl Iterator<Item = u64>) -> usize {
    blocks.filter(|block| policy.access(access(*block)) == Outcome::Hit).count()
}

#[test]
fn a_cache_never_holds_more_than_it_may_and_a_hit_was_inserted() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    for capacity in [1, 2, 3, 10, 500] {
        for (name, mut policy) in all(capacity) {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut inserted = std::collections::HashSet::new();
            for _ in 0..20_000 {
                // Some blocks are used much more often than others.
                let range = if random.bool() { 20 } else { 2000 };
                let block = random.u64(0..range);
                match policy.access(access(block)) {
                    Outcome::Hit => assert!(inserted.contains(&block), "{name} {capacity}"),
                    Outcome::Inserted => drop(inserted.insert(block)),
                    Outcome::Refused => {}
                }
                assert!(policy.len() <= capacity.max(2), "{name} {capacity}: {}", policy.len());
            }
            assert!(!policy.is_empty());
        }
    }
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
    assert_eq!(lru.access(access(2)), Outcome::Inserted);
}

/// A scan of ten times the cache passes by; what is used all the time stays.
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
    let mut policy = MultiCache::new(10, 2.0, Scale::Literal);
    let outcomes = [7, 7, 7].map(|block| policy.access(access(block)));
    assert_eq!(outcomes, [Outcome::Refused, Outcome::Inserted, Outcome::Hit]);
}

/// Of four VMs one has half of all vCPUs and memory.
#[test]
fn a_heavy_vm_is_kept_sooner_and_the_relative_scale_does_not_shrink_with_the_number_of_vms() {
    let accesses = |scale, cpus, vms| {
        let mut policy = MultiCache::new(10, 2.0, scale);
        let share = VmShare { cpus, memory: cpus, vms };
        let is_in =
            |_: &u32| policy.access(Access { block: BlockId(1), share }) == Outcome::Inserted;
        (1..100).find(is_in)
    };
    assert_eq!(accesses(Scale::Literal, 1.0, 1), Some(2));
    assert_eq!(accesses(Scale::Literal, 0.25, 4), Some(32));
    assert_eq!(accesses(Scale::Literal, 0.5, 4), Some(8));
    assert_eq!(accesses(Scale::Relative, 0.25, 4), Some(2));
    assert_eq!(accesses(Scale::Relative, 0.5, 4), Some(1));
    assert_eq!(accesses(Scale::Relative, 1.0 / 6.0, 4), Some(5));
}

/// Counts of blocks that are not kept take bounded room.
#[test]
fn multicache_forgets_counts() {
    let mut policy = MultiCache::new(10, 2.0, Scale::Literal);
    hits(&mut policy, 0..(1 << 20) + 2);
    assert_eq!(policy.access(access(1)), Outcome::Refused, "it was counted too long ago");
    assert_eq!(policy.access(access(100)), Outcome::Inserted);
}

/// A load that wants another shape than the one before gets it.
#[test]
fn the_default_follows_the_load() {
    let (mut adaptive, mut lru) = (Adaptive::new(4096), Lru::new(4096));
    let mut random = fastrand::Rng::with_seed(3);
    // Loops somewhat larger than the cache, which LRU never hits.
    let loops: Vec<u64> = (0..40).flat_map(|_| 0..6000).collect();
    assert_eq!(hits(&mut lru, loops.iter().copied()), 0);
    let kept = hits(&mut adaptive, loops.iter().copied());
    assert!(kept > loops.len() / 3, "{kept} of {}", loops.len());
    // Then what is used twice within the length of the cache, and never again: LRU's best case.
    let recent: Vec<u64> = (0..200_000u64)
        .map(|at| 1_000_000 + if random.bool() { at } else { at.saturating_sub(3000) })
        .collect();
    let (of_lru, ours) =
        (hits(&mut lru, recent.iter().copied()), hits(&mut adaptive, recent.iter().copied()));
    assert!(ours * 10 > of_lru * 8, "{ours} against {of_lru}");
}
