//! Overlapping changes in flight, from several queues, which the history model never makes: the
//! order in which they take effect is undefined, but everything that a reader sees after a flush is
//! there after a power cut.

use flowstone_sim::{Fate, Schedule};

use super::crash::Tell;
use super::fixture::{Fixture, Setup, contents_read_only};

fn changes(fixture: &mut Fixture, count: u32) {
    for _ in 0..count {
        {
            let mut guests = fixture.guests();
            let queue = guests.random.usize(..3);
            let from = guests.random.u64(..40);
            let sectors = from..from + guests.random.u64(1..24);
            let zeroes = guests.random.u8(..3) == 0;
            guests.change_anyway(queue, sectors, zeroes, |_| ());
            for _ in 0..guests.random.u8(..3) {
                guests.turn();
            }
        }
        let stepping = fixture.guests().random.u8(..4) == 0;
        if stepping {
            fixture.step();
        }
    }
}

pub fn run(seed: u64) {
    let setup = Setup { queues: 3, split: seed % 2 == 1, ..Setup::default() };
    let fixture = setup.fixture(seed);
    fixture.disk.set_schedule(Schedule::Shuffled { seed });
    // Queues opened from now on keep this schedule.
    let mut fixture = fixture.reopen().unwrap();
    for round in 0..25u64 {
        changes(&mut fixture, 14);
        if round % 6 == 5 {
            fixture.checkpoint().unwrap();
        }
        fixture.drain();
        fixture.flush().unwrap();
        let seen = fixture.contents();
        fixture.audit();
        let now = fixture.disk.now();
        let fates = [Fate::nothing_more(), Fate::everything(), Fate::seeded(seed * 100 + round)];
        for mut fate in fates {
            let _tell = Tell(format!("seed {seed}, round {round}, {fate:?}"));
            let crashed = fixture.disk.crash_at(now, &mut fate);
            assert!(contents_read_only(&crashed).unwrap() == seen, "not what a reader saw");
        }
    }
    assert_eq!(fixture.guests().failures, []);
}

#[test]
fn what_overlapping_changes_have_made_is_what_a_power_cut_leaves() {
    (0..4).for_each(run);
}
