//! Requests that meet in one block, or meet the cleaner.

use flowstone_sim::Schedule;

use super::crash::Tell;
use super::driver::{BLOCK_SECTORS, Mix, Rig, Setup};

fn shuffled(seed: u64) -> Rig {
    let rig = Setup::default().rig(seed);
    rig.disk.set_schedule(Schedule::Shuffled { seed });
    // Queues that are opened from now on keep this schedule.
    rig.reopen().unwrap()
}

#[test]
fn two_parts_of_a_block_written_at_once_both_survive() {
    for seed in 0..30 {
        let _tell = Tell(format!("seed {seed}"));
        let mut rig = shuffled(seed);
        rig.write_blocks(0..2).unwrap();
        for round in 0..10 {
            let mut guests = rig.guests();
            guests.write(0, 0..3);
            guests.write(1, 3..5);
            guests.write(0, 5..8 + round % 3);
            guests.write(1, 12..16);
            if round % 2 == 0 {
                guests.kick(0);
            }
            guests.zero(1, 11..12);
            guests.kick(1);
            drop(guests);
            rig.settle();
        }
        rig.check();
        rig.reopen().unwrap().check();
    }
}

/// A block had no place when a part of it was trimmed, so there was nothing to do. By the time the
/// trim was put into a record another part had been written, and the whole block was trimmed.
#[test]
fn a_part_trimmed_of_an_unmapped_block_spares_what_is_written_beside_it() {
    for (trimmed, written) in [(4..8, 0..4), (0..4, 4..8), (4..16, 0..4), (4..20, 20..24)] {
        let mut rig = Setup::default().rig(1);
        rig.write_blocks(1..2).unwrap();
        rig.guests().zero(0, trimmed);
        // The first queue has not looked at its trim yet.
        rig.guests().write(1, written);
        while rig.guests().in_flight() > 1 {
            rig.guests().kick(1);
            rig.guests().reap(1);
            rig.step();
        }
        rig.settle();
        rig.check();
    }
}

/// Small changes to a full disk whose segments are cleaned meanwhile.
pub fn parts_and_cleaning(seed: u64) {
    let setup = Setup { queues: 3, split: seed % 2 == 1, ..Setup::default() };
    let mut rig = setup.rig(seed);
    rig.guests().mix = Mix::writes(0..setup.blocks);
    rig.run(1200);
    rig.disk.set_schedule(Schedule::Shuffled { seed });
    let mut rig = rig.reopen().unwrap();
    rig.guests().mix = Mix {
        unaligned_percent: 70,
        zero_percent: 20,
        read_percent: 25,
        depth: 20,
        ..Mix::on(setup.blocks)
    };
    let before = rig.core.tail().totals.relocated_blocks;
    rig.run(1500);
    assert!(rig.core.tail().totals.relocated_blocks > before + 100);
    assert_eq!(rig.guests().failures, []);
    rig.check();
    rig.reopen().unwrap().check();
}

#[test]
fn parts_written_trimmed_and_cleaned_at_once() {
    for seed in 0..3 {
        let _tell = Tell(format!("seed {seed}"));
        parts_and_cleaning(seed);
    }
}

/// A read is on its way to a place that is cleaned, given back and used for something else.
#[test]
fn a_read_finds_its_block_though_its_place_is_used_again_meanwhile() {
    let mut rig = shuffled(3);
    let blocks = rig.setup.blocks;
    rig.guests().mix = Mix::writes(10..blocks);
    for round in 0..6 {
        rig.write_blocks(0..8).unwrap();
        let place = rig.core.map.get(3).address();
        let (whole, part) = {
            let mut guests = rig.guests();
            let whole = guests.read(1, 0..8 * BLOCK_SECTORS);
            let part = guests.read(1, 3 * BLOCK_SECTORS + 1..3 * BLOCK_SECTORS + 3);
            guests.kick(1);
            (whole, part)
        };
        let mut tries = 0;
        while rig.core.map.get(3).address() == place || !rig.in_use_again(place) {
            let lba = 10 + rig.guests().random.u64(..blocks - 18);
            rig.guests().write(0, lba * BLOCK_SECTORS..(lba + 8) * BLOCK_SECTORS);
            while rig.guests().in_flight() > 2 {
                rig.guests().kick(0);
                rig.guests().nap(0);
                rig.guests().reap(0);
                rig.step_alone();
            }
            tries += 1;
            assert!(tries < 5000, "round {round}: the block stays where it is");
        }
        assert!(rig.guests().is_in_flight(whole) && rig.guests().is_in_flight(part));
        rig.settle();
    }
    assert!(rig.guests().failures.is_empty());
    rig.check();
}
