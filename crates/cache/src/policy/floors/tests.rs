//! Floors by themselves, and the curves that they are based on.

use super::*;

const FLOORS_CAPACITY: usize = 1000;

/// Two equal VMs, each with a part of 450 blocks. The first one holds `held`.
fn floors(held: u64) -> Floors {
    let mut floors = Floors::default();
    floors.set(&Vms::of_sizes(&[1, 1]), FLOORS_CAPACITY, FLOORS_CAPACITY);
    (0..held).for_each(|block| floors.count_in(BlockId(block)));
    floors
}

/// The first VM makes `accesses` accesses to `set` blocks.
fn use_blocks(floors: &mut Floors, set: u64, accesses: u64, is_hit: bool) {
    let mut random = fastrand::Rng::with_seed(set);
    (0..accesses).for_each(|_| _ = floors.access(BlockId(random.u64(0..set)), is_hit));
}

/// The second VM accesses `blocks` blocks once.
fn scan(floors: &mut Floors, blocks: u64) {
    (0..blocks).for_each(|at| _ = floors.access(BlockId::of_disk(1, at), false));
}

/// Returns whether the first VM loses nothing to the second one.
fn loses_none(floors: &Floors) -> bool {
    floors.keeps(0, usize::MAX, Some(1))
}

/// Returns whether this many blocks of the first VM may be protected.
fn protects(floors: &Floors, protected: usize) -> bool {
    floors.keeps(0, protected, Some(0))
}

#[test]
fn a_floor_rises_by_an_eighth_and_what_is_on_it_is_protected() {
    let mut floors = floors(1000);
    use_blocks(&mut floors, 800, 20_000, true);
    let mut looks = 0;
    while floors.states[0].floor == 0 {
        use_blocks(&mut floors, 800, 64, false);
        looks += 1;
    }
    assert!(protects(&floors, 56) && !protects(&floors, 57), "after {looks} looks");
}

#[test]
fn a_floor_is_what_the_promised_hits_take_and_no_more() {
    let mut floors = floors(1000);
    use_blocks(&mut floors, 100, 20_000, false);
    assert!(protects(&floors, 80) && !protects(&floors, 150));
}

#[test]
fn a_floor_sinks_while_there_are_more_hits_than_promised() {
    let mut floors = floors(1000);
    use_blocks(&mut floors, 800, 20_000, false);
    assert!(protects(&floors, 300));
    use_blocks(&mut floors, 800, 20_000, true);
    assert!(!protects(&floors, 10));
}

#[test]
fn a_vm_loses_nothing_to_others_while_it_holds_no_more_than_its_weight_allows() {
    for (held, expected) in [(450, true), (451, false)] {
        let mut floors = floors(held);
        use_blocks(&mut floors, 800, 20_000, false);
        assert_eq!(loses_none(&floors), expected, "{held}");
    }
}

/// The first VM has more hits than promised, and no floor, until another VM begins to scan.
#[test]
fn a_vm_that_has_had_many_hits_loses_no_more_than_others_are_allowed() {
    let mut floors = floors(800);
    use_blocks(&mut floors, 800, 20_000, true);
    let mut taken = 0;
    while !loses_none(&floors) {
        floors.count_out(BlockId(taken));
        taken += 1;
    }
    assert_eq!((taken, floors.states[0].floor), (350, 0));
}

/// It takes in one more block, for which one of its own is evicted.
#[test]
fn a_vm_that_holds_its_part_makes_room_for_itself() {
    let mut floors = floors(450);
    use_blocks(&mut floors, 800, 20_000, false);
    let keeps = [None, Some(0), Some(1)].map(|by| floors.keeps(0, usize::MAX, by));
    assert_eq!(keeps, [true, false, true]);
}

/// Regression: a VM that scanned removed the others' floors in a third of a second.
#[test]
fn accesses_of_other_vms_change_no_bound() {
    let mut floors = floors(400);
    use_blocks(&mut floors, 400, 20_000, false);
    use_blocks(&mut floors, 400, 400, true);
    let of_first = |floors: &Floors| (floors.states[0].floor, floors.states[0].needed);
    let before = of_first(&floors);
    assert!(before.0 > 100 && before.1 > 300, "{before:?}");
    scan(&mut floors, 1_000_000);
    floors.pass(Duration::from_secs(1));
    assert_eq!(of_first(&floors), before);
    assert!(floors.states[1].floor < 30, "a scan has next to none: {}", floors.states[1].floor);
}

#[test]
fn a_vm_that_stops_is_idle_after_some_minutes_however_much_it_has_accessed() {
    for accesses in [2000, 1_000_000] {
        let mut floors = floors(200);
        use_blocks(&mut floors, 800, accesses, false);
        let pass = |floors: &mut Floors, seconds| {
            (0..2 * seconds).for_each(|_| floors.pass(Duration::from_millis(500)));
        };
        pass(&mut floors, 30);
        assert!(loses_none(&floors), "{accesses}");
        pass(&mut floors, 120);
        assert!(!loses_none(&floors) && !protects(&floors, 100), "{accesses}");
        use_blocks(&mut floors, 800, 1000, false);
        assert!(loses_none(&floors), "{accesses}: it wakes");
    }
}

#[test]
fn bounds_follow_the_capacity_at_once() {
    let mut floors = floors(100);
    use_blocks(&mut floors, 400, 20_000, false);
    assert!(loses_none(&floors) && protects(&floors, 100));
    floors.resize(100);
    assert!(!loses_none(&floors) && !protects(&floors, 100), "45 are allowed");
    floors.resize(FLOORS_CAPACITY);
    assert!(loses_none(&floors));
}

#[test]
fn what_is_held_is_counted_again_when_vms_change() {
    let mut floors = floors(500);
    floors.set(&Vms::of_sizes(&[1, 1, 1]), FLOORS_CAPACITY, FLOORS_CAPACITY);
    use_blocks(&mut floors, 250, 20_000, false);
    assert!(!loses_none(&floors));
    (0..400).for_each(|block| floors.count_out(BlockId(block)));
    assert!(loses_none(&floors));
}

#[test]
fn uses_of_a_vm_count_by_how_much_more_than_the_mean_it_has() {
    let mut floors = Floors::default();
    floors.set(&Vms::of_sizes(&[3, 1, 1, 1]), FLOORS_CAPACITY, FLOORS_CAPACITY);
    let uses = [0, 1, 9].map(|disk| floors.access(BlockId::of_disk(disk, 1), false));
    assert_eq!(uses, [3, 1, 1]);
    let mut sizes = vec![1; 100];
    sizes[0] = 100;
    floors.set(&Vms::of_sizes(&sizes), FLOORS_CAPACITY, FLOORS_CAPACITY);
    assert_eq!(floors.access(BlockId(0), false), 16);
}

/// Regression: a VM that scans made a hundred times as many accesses as one with a working set, so
/// no size of the cache seemed to bring hits.
#[test]
fn hits_of_vms_count_by_weight_and_not_by_rate() {
    let mut floors = floors(450);
    use_blocks(&mut floors, 450, 20_000, true);
    (0..550).for_each(|at| floors.count_in(BlockId::of_disk(1, at)));
    scan(&mut floors, 2_000_000);
    let [all, less] = [1000, 900].map(|blocks| floors.hit_ratio(blocks).unwrap());
    assert!((0.47..0.53).contains(&all), "{all:.3}");
    assert!(all - less > 0.03, "{less:.3} of {all:.3} with a tenth less");
}

/// In a shrinking cache, blocks of a scan are evicted first.
#[test]
fn a_vm_that_needs_less_than_its_part_loses_nothing_when_a_cache_becomes_smaller() {
    let mut floors = floors(200);
    use_blocks(&mut floors, 200, 20_000, true);
    (0..800).for_each(|at| floors.count_in(BlockId::of_disk(1, at)));
    scan(&mut floors, 20_000);
    let [all, less, least] = [1000, 500, 300].map(|blocks| floors.hit_ratio(blocks).unwrap());
    assert!((all - less).abs() < 0.002 && all - least > 0.1, "{all:.3} {less:.3} {least:.3}");
}

#[test]
fn a_vm_that_accesses_next_to_nothing_does_not_hide_what_is_known_of_others() {
    let mut floors = floors(450);
    assert_eq!(floors.hit_ratio(1000), None);
    use_blocks(&mut floors, 450, 20_000, true);
    scan(&mut floors, 2);
    assert!(floors.hit_ratio(1000).is_some_and(|ratio| ratio > 0.9));
    scan(&mut floors, 90);
    assert_eq!(floors.hit_ratio(1000), None, "half of the weight is not known");
}
