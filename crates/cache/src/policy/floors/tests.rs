//! Floors by themselves, and the curves that they rest on.

use super::*;

const FLOORS_CAPACITY: usize = 1000;

/// Two VMs that are alike: each is allowed 450 blocks. The first one holds `kept`.
fn floors(kept: u64) -> Floors {
    let mut floors = Floors::default();
    floors.set(&Vms::of_sizes(&[1, 1]), FLOORS_CAPACITY, FLOORS_CAPACITY);
    (0..kept).for_each(|block| floors.count_in(BlockId(block)));
    floors
}

/// The first VM uses `set` blocks so often.
fn use_blocks(floors: &mut Floors, set: u64, accesses: u64, is_hit: bool) {
    let mut random = fastrand::Rng::with_seed(set);
    (0..accesses).for_each(|_| _ = floors.access(BlockId(random.u64(0..set)), is_hit));
}

fn protects(floors: &Floors) -> bool {
    floors.keeps(BlockId(0))
}

#[test]
fn a_floor_rises_by_an_eighth_and_what_is_on_it_is_protected() {
    for (kept, expected) in [(56, true), (57, false)] {
        let mut floors = floors(kept);
        // Known at the look after the second quarter at the latest; one look with it.
        use_blocks(&mut floors, 400, 1, false);
        use_blocks(&mut floors, 400, 250, false);
        assert_eq!(protects(&floors), expected, "{kept}");
    }
}

#[test]
fn a_floor_is_what_the_promised_hits_take_and_no_more() {
    for (kept, expected) in [(80, true), (150, false)] {
        let mut floors = floors(kept);
        use_blocks(&mut floors, 100, 20_000, false);
        assert_eq!(protects(&floors), expected, "{kept}");
    }
}

#[test]
fn a_floor_sinks_while_there_are_more_hits_than_promised() {
    let mut floors = floors(200);
    use_blocks(&mut floors, 800, 20_000, false);
    assert!(protects(&floors));
    use_blocks(&mut floors, 800, 20_000, true);
    assert!(!protects(&floors));
}

#[test]
fn a_vm_is_idle_after_as_many_accesses_as_the_cache_has_blocks() {
    for capacity in [FLOORS_CAPACITY, 500] {
        let mut floors = floors(20);
        use_blocks(&mut floors, 400, 20_000, false);
        floors.resize(capacity);
        let other = |at: usize| BlockId::of_disk(1, at as u64);
        floors.access(BlockId(0), false);
        (0..capacity).for_each(|at| _ = floors.access(other(at), false));
        assert!(protects(&floors), "{capacity}");
        floors.access(other(capacity), false);
        assert!(!protects(&floors), "{capacity}");
    }
}

#[test]
fn floors_follow_the_capacity_at_once() {
    let mut floors = floors(100);
    use_blocks(&mut floors, 400, 20_000, false);
    assert!(protects(&floors));
    floors.resize(100);
    floors.access(BlockId(0), false);
    assert!(!protects(&floors), "45 are allowed");
}

#[test]
fn what_is_held_is_counted_again_when_vms_change() {
    let mut floors = floors(500);
    floors.set(&Vms::of_sizes(&[1, 1, 1]), FLOORS_CAPACITY, FLOORS_CAPACITY);
    use_blocks(&mut floors, 250, 20_000, false);
    assert!(!protects(&floors));
    (0..400).for_each(|block| floors.count_out(BlockId(block)));
    assert!(protects(&floors));
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
