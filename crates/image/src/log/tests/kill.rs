//! The daemon is killed and its host lives: everything that had completed is there, at every moment.
//! What was not durable may still be lost to a power cut afterwards.

use flowstone_fileio::sim::{Fate, Schedule};

use super::crash::{Tell, go_on, recover, some_moments, three_fates};
use super::driver::{Mix, Rig, Setup};
use super::oracle::End;

fn used(setup: Setup, seed: u64) -> Rig {
    let mut rig = setup.rig(seed);
    rig.disk.set_schedule(Schedule::Shuffled { seed });
    rig.guests().mix = Mix::on(60);
    rig.run(70);
    rig.checkpoint().unwrap();
    rig.run(50);
    rig
}

/// A kill at every moment.
pub fn kills(seed: u64, moments: usize) {
    let setup = Setup { split: seed % 2 == 1, ..Setup::default() };
    let (disk, story) = used(setup, seed).close();
    for (index, moment) in some_moments(&disk, moments).enumerate() {
        let _tell = Tell(format!("kill at {moment:?}"));
        let fate = three_fates(index).swap_remove(index % 3);
        let killed = disk.kill_at(moment, &mut fate.clone());
        let rig = recover(&killed, setup, &story, moment, End::Kill, seed);
        if index % 17 == 0 {
            go_on(rig, 20);
        }
    }
}

#[test]
fn what_had_completed_is_there_after_a_kill() {
    for seed in 0..2 {
        let _tell = Tell(format!("seed {seed}"));
        kills(seed, usize::MAX);
    }
}

/// A kill, and power is cut at every moment of the recovery.
pub fn cut_after_kill(seed: u64, moments: usize) {
    let setup = Setup { split: seed % 2 == 1, ..Setup::default() };
    let (disk, story) = used(setup, seed).close();
    for (index, moment) in some_moments(&disk, moments).enumerate() {
        let killed = disk.kill_at(moment, &mut Fate::seeded(seed + index as u64));
        drop(recover(&killed, setup, &story, moment, End::Kill, seed));
        for (number, second) in killed.crash_points().enumerate() {
            let _tell = Tell(format!("kill at {moment:?}, cut at {second:?}"));
            let cut = killed.crash_at(second, &mut Fate::seeded(seed + number as u64));
            drop(recover(&cut, setup, &story, moment, End::PowerCut, seed));
        }
    }
}

#[test]
fn a_power_cut_while_recovering_from_a_kill_loses_no_more_than_any_power_cut() {
    for seed in 0..2 {
        let _tell = Tell(format!("seed {seed}"));
        cut_after_kill(seed, 10);
    }
}

/// One kill after the other, and a power cut.
pub fn kills_in_a_row(seed: u64) {
    let setup = Setup { split: seed % 2 == 1, ..Setup::default() };
    let mut rig = setup.rig(seed);
    for round in 0..12 {
        rig.guests().mix = Mix::on(setup.blocks);
        rig.run(60);
        let (disk, story) = rig.abandon();
        let moment = some_moments(&disk, 10).nth(round % 9).unwrap();
        let killed = disk.kill_at(moment, &mut Fate::seeded(seed + round as u64));
        rig = recover(&killed, setup, &story, moment, End::Kill, seed + round as u64);
    }
    rig.run(40);
    // Before, what the last kill had left need not have been durable.
    let opened = rig.opened;
    let (disk, story) = rig.abandon();
    for moment in some_moments(&disk, 30).filter(|moment| *moment >= opened) {
        let cut = disk.crash_at(moment, &mut Fate::seeded(seed));
        drop(recover(&cut, setup, &story, moment, End::PowerCut, seed));
    }
}

#[test]
fn many_kills_in_a_row_and_a_power_cut_at_the_end() {
    for seed in 0..3 {
        let _tell = Tell(format!("seed {seed}"));
        kills_in_a_row(seed);
    }
}
