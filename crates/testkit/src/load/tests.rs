use proptest::prelude::*;

use super::map::{Content, VerifyMap};
use super::options::{Mix, Order, Workload};
use super::pattern::{Stamp, check, check_zero, fill};
use super::source::{Kind, Source};
use crate::Error;

const STAMP: Stamp = Stamp { offset: 8 << 20, generation: 7, seed: 42 };

fn block() -> Vec<u8> {
    let mut data = vec![0; 8192];
    fill(&mut data, STAMP);
    data
}

fn complaint(data: &[u8], stamp: Stamp) -> String {
    match check(data, stamp) {
        Err(Error::Verify(what)) => what,
        other => panic!("expected a complaint, got {other:?}"),
    }
}

#[test]
fn what_was_filled_checks() {
    check(&block(), STAMP).unwrap();
    let mut sector = vec![0; 512];
    fill(&mut sector, STAMP);
    check(&sector, STAMP).unwrap();
}

#[test]
fn every_kind_of_damage_has_a_name() {
    let stale = Stamp { generation: 8, ..STAMP };
    assert!(complaint(&block(), stale).contains("holds generation 7"));
    let elsewhere = Stamp { offset: 0, ..STAMP };
    assert!(complaint(&block(), elsewhere).contains("misplaced"));
    let foreign = Stamp { seed: 1, ..STAMP };
    assert!(complaint(&block(), foreign).contains("seed 42"));
    assert!(complaint(&[0; 4096], STAMP).contains("all zeroes"));
}

#[test]
fn halves_of_two_generations_are_torn() {
    let mut newer = vec![0; 8192];
    fill(&mut newer, Stamp { generation: 8, ..STAMP });
    let mut torn = block();
    torn[..512].copy_from_slice(&newer[..512]);
    assert!(complaint(&torn, STAMP).contains("torn"));
}

#[test]
fn units_that_changed_places_are_found() {
    let mut data = block();
    let (first, second) = data.split_at_mut(4096);
    first.swap_with_slice(second);
    assert!(complaint(&data, STAMP).contains("misplaced"));
}

#[test]
fn one_byte_that_is_not_zero_is_found() {
    let mut data = vec![0; 4096];
    check_zero(&data, 0).unwrap();
    data[4095] = 1;
    assert!(check_zero(&data, 0).is_err());
}

proptest! {
    #[test]
    fn any_flipped_bit_is_found(at in 0_usize..8192, bit in 0_u32..8) {
        let mut data = block();
        data[at] ^= 1 << bit;
        prop_assert!(check(&data, STAMP).is_err());
    }

    #[test]
    fn a_map_survives_being_split_and_joined(
        blocks in 1_u64..200, parts in 1_u64..9, known in prop::collection::vec(0_u64..200, 0..50)
    ) {
        let mut map = VerifyMap::new(4096, 0, blocks);
        for (generation, block) in known.into_iter().filter(|&b| b < blocks).enumerate() {
            map.set(block, Content::Written(generation as u32 + 1));
        }
        let before: Vec<_> = (0..blocks).map(|b| map.get(b)).collect();
        let joined = VerifyMap::join(map.split(parts));
        let after: Vec<_> = (0..blocks).map(|b| joined.get(b)).collect();
        prop_assert_eq!(before, after);
        prop_assert!(joined.fits(4096, 0, blocks));
    }
}

#[test]
fn known_blocks_are_found_in_order() {
    let mut map = VerifyMap::new(4096, 0, 10);
    map.set(3, Content::Zero);
    map.set(7, Content::Written(1));
    assert_eq!(map.next_known(0), Some(3));
    assert_eq!(map.next_known(4), Some(7));
    assert_eq!(map.next_known(8), None);
    assert_eq!(map.known(), 2);
}

#[test]
fn sequential_sources_visit_their_part_again_and_again() {
    let workload = Workload { order: Order::Sequential, mix: Mix::READ };
    let mut source = Source::new(workload, 10, 3, 1);
    let blocks: Vec<_> = (0..7).map(|_| source.block()).collect();
    assert_eq!(blocks, [10, 11, 12, 10, 11, 12, 10]);
}

#[test]
fn random_sources_keep_to_their_part_and_their_mix() {
    let workload: Workload = "mix".parse().unwrap();
    let mut source = Source::new(workload, 100, 50, 1);
    let mut counts = [0_u32; 5];
    for _ in 0..10_000 {
        counts[source.kind() as usize] += 1;
        assert!((100..150).contains(&source.block()));
    }
    assert!((4200..4800).contains(&counts[Kind::Read as usize]), "{counts:?}");
    assert!((4200..4800).contains(&counts[Kind::Write as usize]), "{counts:?}");
    assert!((350..650).contains(&counts[Kind::Discard as usize]), "{counts:?}");
    assert_eq!(counts[Kind::Flush as usize], 0);
}

#[test]
fn workloads_that_do_not_exist_are_refused() {
    assert!("randwriet".parse::<Workload>().is_err());
}

/// The cost of the generator itself: a device on the same thread completes everything at once, so
/// the figure is an upper bound. Run with `--release -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement, not a test"]
fn cost_of_one_request() {
    use super::lane::{Lane, LaneOptions};
    use super::stats::Stats;
    use crate::client::Ring;
    use crate::driver::{Memory, MemoryLayout, QueueOptions};

    const DEPTH: u16 = 32;
    const ROUNDS: u64 = 200_000;
    let memory = Memory::new(MemoryLayout::single(8 << 20)).unwrap();
    let queue = QueueOptions { size: 128, event_idx: true, indirect: true };
    let ring = Ring::new(&memory, queue).unwrap();
    let options = LaneOptions {
        iodepth: DEPTH,
        commits: None,
        block_bytes: 4096,
        segment_bytes: usize::MAX,
        kinds: vec![Kind::Read],
        offset_bytes: 0,
        flush_every: 0,
        zero_data: false,
    };
    let source = Source::new("randread".parse().unwrap(), 0, 1 << 20, 1);
    let mut lane = Lane::new(&memory, ring, options, source, None, u64::MAX).unwrap();
    let mut stats = [Stats::new(), Stats::new()];
    let (avail, used) = (lane.ring.queue.avail.clone(), lane.ring.queue.used.clone());
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    let clock = std::time::Instant::now();
    for round in 0..ROUNDS {
        let now_ns = clock.elapsed().as_nanos() as u64;
        lane.reap(now_ns, &mut stats).unwrap();
        lane.refill(now_ns);
        lane.ring.queue.publish();
        lane.ring.queue.needs_kick();
        for entry in round * u64::from(DEPTH)..(round + 1) * u64::from(DEPTH) {
            let at = (entry % 128) as usize;
            let head = avail.cell16(4 + 2 * at).load(relaxed);
            used.cell32(4 + 8 * at).store(u32::from(head), relaxed);
        }
        let done = ((round + 1) * u64::from(DEPTH)) as u16;
        lane.ring.queue.used.cell16(2).store(done.to_le(), relaxed);
    }
    let requests = ROUNDS * u64::from(DEPTH);
    let cost_ns = clock.elapsed().as_nanos() as f64 / requests as f64;
    println!("{cost_ns:.1} ns per request, {:.1} M/s", 1000.0 / cost_ns);
}
