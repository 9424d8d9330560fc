//! Effects of power cuts and killed processes.

use std::collections::BTreeSet;

use super::*;
use crate::{EXHAUSTIVE_MAX, Fate, Moment};

const SEEDS: u64 = 200;

fn worst(disk: &SimDisk) -> SimDisk {
    disk.crash_at(disk.now(), &mut Fate::nothing_more())
}

/// Returns the results of seeded crashes of a disk at a moment.
fn outcomes(disk: &SimDisk, at: Moment) -> BTreeSet<Vec<u8>> {
    (0..SEEDS).map(|seed| disk.crash_at(at, &mut Fate::seeded(seed)).to_bytes()).collect()
}

/// Returns the first byte of the disk in each of the crashes at a moment.
fn first_bytes(disk: &SimDisk, at: Moment, fate: fn(u64) -> Fate) -> BTreeSet<u8> {
    (0..SEEDS).map(|seed| look(&disk.crash_at(at, &mut fate(seed)), 0)).collect()
}

#[test]
fn what_was_not_synced_may_be_lost_and_what_was_may_not() {
    let disk = SimDisk::new(8192);
    put(&disk, 0, 4096, 1);
    let unsynced = disk.now();
    assert_eq!(disk.undecided_at(unsynced), 1);
    sync(&disk);
    put(&disk, 4096, 4096, 2);
    assert_eq!(look(&disk.crash_at(unsynced, &mut Fate::nothing_more()), 0), 0);
    assert_eq!(look(&disk.crash_at(unsynced, &mut Fate::everything()), 0), 1);
    let after = worst(&disk);
    assert_eq!((look(&after, 0), look(&after, 4096)), (1, 0));
    let before_any = disk.crash_points().next().unwrap();
    assert_eq!(look(&disk.crash_at(before_any, &mut Fate::everything()), 0), 0);
}

#[test]
fn a_datasync_covers_what_had_completed_when_it_was_submitted() {
    let disk = SimDisk::new(8192);
    let mut writes = Queue::new(&disk);
    let mut syncs = Queue::new(&disk);
    put(&disk, 0, 512, 1);
    writes.submit(write(4096, 512), 2);
    syncs.submit(FileOp::Datasync, 0);
    writes.finish(1);
    let syncing = disk.now();
    syncs.finish(1);
    let crashed = worst(&disk);
    assert_eq!((look(&crashed, 0), look(&crashed, 4096)), (1, 0));
    assert_eq!(disk.undecided_at(disk.now()), 1);
    // Until it is done it guarantees nothing.
    assert_eq!(look(&disk.crash_at(syncing, &mut Fate::nothing_more()), 0), 0);
    sync(&disk);
    assert_eq!(look(&worst(&disk), 4096), 2);
}

#[test]
fn a_write_and_a_datasync_of_one_batch_have_nothing_to_do_with_each_other() {
    let disk = SimDisk::new(4096);
    let mut queue = Queue::new(&disk);
    queue.submit(write(0, 512), 1);
    queue.submit(FileOp::Datasync, 0);
    queue.finish(2);
    assert_eq!(look(&worst(&disk), 0), 0);
}

#[test]
fn a_durable_write_is_durable_by_itself_and_once_it_is_complete() {
    let disk = SimDisk::new(8192);
    put(&disk, 0, 512, 1);
    let mut queue = Queue::new(&disk);
    queue.submit(durable_write(4096, 512), 2);
    assert_eq!(look(&worst(&disk), 4096), 0);
    queue.finish(1);
    let crashed = worst(&disk);
    assert_eq!((look(&crashed, 0), look(&crashed, 4096)), (0, 2));
}

#[test]
fn an_earlier_write_that_was_not_durable_never_covers_a_later_durable_one() {
    let disk = SimDisk::new(1024);
    put(&disk, 0, 1024, 1);
    put_durably(&disk, 0, 512, 2);
    for crashed in outcomes(&disk, disk.now()) {
        assert_eq!(crashed[..512], [2; 512]);
    }
    let everything = disk.crash_at(disk.now(), &mut Fate::everything());
    assert_eq!((look(&everything, 0), look(&everything, 512)), (2, 1));
}

#[test]
fn of_two_that_overlap_in_time_either_may_lie_on_top_until_both_are_durable() {
    let disk = SimDisk::new(512);
    let mut queue = Queue::new(&disk);
    queue.submit(write(0, 512), 1);
    queue.submit(write(0, 512), 2);
    let in_flight = disk.now();
    queue.finish(2);
    let all_kept = |seed| Fate::seeded(seed).keep_percent(100).torn_percent(0);
    assert_eq!(first_bytes(&disk, in_flight, all_kept), BTreeSet::from([1, 2]));
    assert_eq!(first_bytes(&disk, disk.now(), all_kept), BTreeSet::from([1, 2]));
    sync(&disk);
    assert_eq!(
        first_bytes(&disk, disk.now(), Fate::seeded),
        BTreeSet::from([2]),
        "readers have seen 2"
    );

    let disk = SimDisk::new(1024);
    put(&disk, 512, 512, 3);
    let (mut first, mut second) = (Queue::new(&disk), Queue::new(&disk));
    first.submit(durable_write(0, 512), 1);
    second.submit(durable_write(0, 512), 2);
    second.finish(1);
    first.finish(1);
    assert_eq!(
        first_bytes(&disk, disk.now(), Fate::seeded),
        BTreeSet::from([1]),
        "readers have seen 1"
    );

    let disk = SimDisk::new(512);
    put(&disk, 0, 512, 1);
    put(&disk, 0, 512, 2);
    for seed in 0..SEEDS {
        let crashed = disk.crash_at(disk.now(), &mut all_kept(seed));
        assert_eq!(look(&crashed, 0), 2, "the second began when the first had ended, seed {seed}");
    }
}

#[test]
fn writes_tear_by_sectors_and_pages_but_never_within_a_sector() {
    let disk = SimDisk::new(16384);
    put(&disk, 512, 512, 9);
    sync(&disk);
    put(&disk, 0, 16384, 1);
    let mut shapes = BTreeSet::new();
    for crashed in outcomes(&disk, disk.now()) {
        let sectors: Vec<u8> = crashed.chunks(512).map(|sector| sector[0]).collect();
        for (sector, first) in crashed.chunks(512).zip(&sectors) {
            assert!(sector.iter().all(|byte| byte == first), "half a sector");
        }
        assert!(sectors[1] == 1 || sectors[1] == 9, "what was there before went missing");
        shapes.insert(sectors);
    }
    let kept = |sectors: &&Vec<u8>| sectors.iter().filter(|byte| **byte == 1).count();
    assert!(shapes.iter().any(|shape| kept(&shape) % 8 != 0), "no 512-byte sector was torn off");
    let prefixes = shapes.iter().filter(|shape| shape.is_sorted_by(|a, b| a == b || *a == 1));
    assert!(prefixes.count() > 2 && shapes.len() > 20, "{} ways to tear", shapes.len());
}

#[test]
fn punches_and_zeroes_are_lost_kept_or_torn_by_pages() {
    for op in [punch(512, 16384 - 512), zero(512, 16384 - 512)] {
        let disk = SimDisk::from_bytes(&[5; 16384]);
        disk.run(op, &mut []).unwrap();
        let outcomes = outcomes(&disk, disk.now());
        for crashed in &outcomes {
            assert_eq!(crashed[..512], [5; 512]);
            for page in crashed[512..4096].chunks(3584).chain(crashed[4096..].chunks(4096)) {
                assert!(page.iter().all(|byte| *byte == page[0]), "{op:?} torn within a page");
            }
        }
        assert!(outcomes.len() > 6, "{op:?}: {} outcomes", outcomes.len());
    }
}

#[test]
fn a_size_does_not_survive_without_the_sizes_before_it() {
    let disk = SimDisk::from_bytes(&[5; 8192]);
    disk.set_size(512).unwrap();
    disk.set_size(16384).unwrap();
    let mut sizes = BTreeSet::new();
    for crashed in outcomes(&disk, disk.now()) {
        sizes.insert(crashed.len());
        let grown = crashed.len() == 16384;
        assert!(!grown || crashed[512..].iter().all(|byte| *byte == 0), "old content came back");
    }
    assert_eq!(sizes, BTreeSet::from([512, 8192, 16384]));
    sync(&disk);
    assert_eq!(worst(&disk).size().unwrap(), 16384);
    assert_eq!(look(&worst(&disk), 512), 0);
}

#[test]
fn a_file_is_as_long_as_what_survives_makes_it() {
    let disk = SimDisk::new(0);
    put(&disk, 4096, 4096, 1);
    disk.run(allocate(8192, 4096), &mut []).unwrap();
    let sizes: BTreeSet<u64> = (0..SEEDS)
        .map(|seed| disk.crash_at(disk.now(), &mut Fate::seeded(seed)).size().unwrap())
        .collect();
    assert!(sizes.contains(&0) && sizes.contains(&8192) && sizes.contains(&12288));
    assert!(sizes.iter().any(|size| size % 4096 != 0), "no torn write ended the file: {sizes:?}");
    sync(&disk);
    let crashed = worst(&disk);
    assert_eq!((crashed.size().unwrap(), crashed.allocated_bytes().unwrap()), (12288, 8192));
}

#[test]
fn all_subsets_of_a_few_and_no_more() {
    let disk = SimDisk::new(512 * 16);
    for n in 0..3 {
        put(&disk, n * 512, 512, 1);
    }
    let crashed: BTreeSet<Vec<u8>> =
        disk.every_crash_at(disk.now()).unwrap().map(|disk| disk.to_bytes()).collect();
    assert_eq!(crashed.len(), 8);
    for n in 3..EXHAUSTIVE_MAX as u64 + 1 {
        assert!(disk.every_crash_at(disk.now()).is_some());
        put(&disk, n * 512, 512, 1);
    }
    assert!(disk.every_crash_at(disk.now()).is_none());
}

#[test]
fn the_same_seed_makes_the_same_disk_and_another_one_another() {
    let disk = SimDisk::new(1 << 20);
    for n in 0..50 {
        put(&disk, n * 8192, 8192, n as u8 + 1);
    }
    let image = |seed| disk.crash_at(disk.now(), &mut Fate::seeded(seed)).to_bytes();
    assert!(image(7) == image(7));
    assert!(outcomes(&disk, disk.now()).len() as u64 > SEEDS / 2);
}

#[test]
fn seeded_crashes_leave_out_one_let_one_alone_through_or_stop_after_the_first_ones() {
    // So many that even odds, or one in twenty, never lead to this.
    let disk = SimDisk::new(512 * 400);
    for n in 0..400 {
        put(&disk, n * 512, 512, 1);
    }
    let kept = |crashed: &Vec<u8>| crashed.chunks(512).filter(|sector| sector[0] == 1).count();
    let outcomes = outcomes(&disk, disk.now());
    let first_ones = |crashed: &&Vec<u8>| {
        (2..399).contains(&kept(crashed)) && crashed.is_sorted_by(|a, b| a >= b)
    };
    assert!(outcomes.iter().filter(first_ones).count() > 5, "order was never kept");
    let counts: BTreeSet<usize> = outcomes.iter().map(kept).collect();
    assert!([0, 1, 399, 400].iter().all(|count| counts.contains(count)), "{counts:?}");
}

#[test]
fn a_crashed_disk_has_no_past_and_crashes_in_turn() {
    let disk = SimDisk::new(8192);
    put(&disk, 0, 4096, 1);
    let crashed = disk.crash_at(disk.now(), &mut Fate::everything());
    assert_eq!(crashed.crash_points().count(), 1);
    assert_eq!(crashed.undecided_at(crashed.now()), 0);
    put(&crashed, 4096, 4096, 2);
    let again = worst(&crashed);
    assert_eq!((look(&again, 0), look(&again, 4096)), (1, 0), "what survived is durable");
    assert_eq!(look(&disk, 4096), 0, "the old disk is another disk");
}

#[test]
fn a_killed_process_loses_only_what_was_in_flight_in_any_part() {
    let disk = SimDisk::new(16384);
    put(&disk, 0, 4096, 1);
    let mut queue = Queue::new(&disk);
    queue.submit(write(4096, 8192), 2);
    let mut seen = BTreeSet::new();
    for seed in 0..SEEDS {
        let next = disk.kill_at(disk.now(), &mut Fate::seeded(seed));
        assert_eq!(look(&next, 0), 1, "a completed write was lost, seed {seed}");
        seen.insert((look(&next, 4096), look(&next, 12287)));
    }
    assert_eq!(seen, BTreeSet::from([(0, 0), (0, 2), (2, 0), (2, 2)]));
    assert_eq!(look(&disk.kill_at(disk.now(), &mut Fate::everything()), 4096), 2);
    let in_flight = disk.now();
    queue.finish(1);
    assert_eq!(look(&disk.kill_at(in_flight, &mut Fate::nothing_more()), 4096), 0);
    assert_eq!(look(&disk.kill_at(disk.now(), &mut Fate::nothing_more()), 4096), 2);
}

/// Partial writes of a killed process are as little durable as the rest.
#[test]
fn pieces_that_a_killed_process_left_may_be_lost_in_a_power_cut() {
    let disk = SimDisk::new(16384);
    let mut queue = Queue::new(&disk);
    queue.submit(write(0, 16384), 2);
    let mut seen = BTreeSet::new();
    for seed in 0..SEEDS {
        let killed = disk.kill_at(disk.now(), &mut Fate::seeded(seed).torn_percent(100));
        let left = (0..32).filter(|sector| look(&killed, sector * 512) == 2).count();
        assert_eq!((0..32).filter(|sector| look(&worst(&killed), sector * 512) == 2).count(), 0);
        sync(&killed);
        let kept = (0..32).filter(|sector| look(&worst(&killed), sector * 512) == 2).count();
        assert_eq!(kept, left, "seed {seed}");
        seen.insert(left);
    }
    assert!(seen.len() > 5, "{seen:?}");
}

#[test]
fn what_a_killed_process_left_unsynced_still_is() {
    let disk = SimDisk::new(8192);
    put(&disk, 0, 4096, 1);
    put_durably(&disk, 4096, 4096, 3);
    let next = disk.kill_at(disk.now(), &mut Fate::everything());
    assert_eq!(next.crash_points().count(), 1);
    let crashed = worst(&next);
    assert_eq!((look(&crashed, 0), look(&crashed, 4096)), (0, 3));
    sync(&next);
    assert_eq!(look(&worst(&next), 0), 1);
}

#[test]
fn a_turned_bit_stays_turned() {
    let disk = SimDisk::new(8192);
    put(&disk, 0, 4096, 4);
    sync(&disk);
    put(&disk, 0, 4096, 8);
    disk.flip_bit(100, 0);
    disk.flip_bit(5000, 0);
    assert_eq!((look(&disk, 100), look(&disk, 5000)), (9, 0));
    assert_eq!(look(&worst(&disk), 100), 5);
    put(&disk, 0, 4096, 16);
    sync(&disk);
    assert_eq!(look(&worst(&disk), 100), 16);
}

#[test]
fn what_was_put_there_behind_everyones_back_is_durable() {
    let disk = SimDisk::new(0);
    disk.write_at(100, b"magic");
    let crashed = worst(&disk);
    assert_eq!(crashed.size().unwrap(), 105);
    assert_eq!(&crashed.to_bytes()[100..], b"magic");
    assert_eq!(SimDisk::from_bytes(&crashed.to_bytes()).to_bytes(), crashed.to_bytes());
}
