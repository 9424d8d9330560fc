//! The daemon is killed and its host stays up: everything that had completed is there, at every
//! moment. Changes that were not durable may still be lost to a later power cut.

use flowstone_log_format::SUPERBLOCK_AREA_BYTES;
use flowstone_sim::{Fate, Schedule, SimDisk};

use super::crash::{Tell, go_on, recover, some_moments, three_fates};
use super::fixture::{Fixture, Mix, Setup, contents_read_only};
use super::history_model::{End, HistoryModel};

fn used(setup: Setup, seed: u64) -> Fixture {
    let mut fixture = setup.fixture(seed);
    fixture.disk.set_schedule(Schedule::Shuffled { seed });
    fixture.guests().mix = Mix::on(60);
    fixture.run(70);
    fixture.checkpoint().unwrap();
    fixture.run(50);
    fixture
}

/// A kill at every moment.
pub fn kills(seed: u64, moments: usize) {
    let setup = Setup { split: seed % 2 == 1, ..Setup::default() };
    let (disk, model) = used(setup, seed).close();
    for (index, moment) in some_moments(&disk, moments).enumerate() {
        let _tell = Tell(format!("kill at {moment:?}"));
        let fate = three_fates(index).swap_remove(index % 3);
        let killed = disk.kill_at(moment, &mut fate.clone());
        let fixture = recover(&killed, setup, &model, moment, End::Kill, seed);
        if index % 17 == 0 {
            go_on(fixture, 20);
        }
    }
}

#[test]
fn what_had_completed_is_there_after_a_kill() {
    for seed in 0..2 {
        let _tell = Tell(format!("seed {seed}"));
        kills(seed, 90);
    }
}

/// A kill, and power is cut at every moment of the recovery.
pub fn cut_after_kill(seed: u64, moments: usize) {
    let setup = Setup { split: seed % 2 == 1, ..Setup::default() };
    let (disk, model) = used(setup, seed).close();
    for (index, moment) in some_moments(&disk, moments).enumerate() {
        let killed = disk.kill_at(moment, &mut Fate::seeded(seed + index as u64));
        drop(recover(&killed, setup, &model, moment, End::Kill, seed));
        for (number, second) in killed.crash_points().enumerate() {
            let _tell = Tell(format!("kill at {moment:?}, cut at {second:?}"));
            let cut = killed.crash_at(second, &mut Fate::seeded(seed + number as u64));
            drop(recover(&cut, setup, &model, moment, End::PowerCut, seed));
        }
    }
}

#[test]
fn a_power_cut_while_recovering_from_a_kill_loses_no_more_than_any_power_cut() {
    for seed in 0..2 {
        let _tell = Tell(format!("seed {seed}"));
        cut_after_kill(seed, 6);
    }
}

/// One kill after the other, and a power cut.
pub fn kills_in_a_row(seed: u64) {
    let setup = Setup { split: seed % 2 == 1, ..Setup::default() };
    let mut fixture = setup.fixture(seed);
    for round in 0..12 {
        fixture.guests().mix = Mix::on(setup.blocks);
        fixture.run(60);
        let (disk, model) = fixture.abandon();
        let moment = some_moments(&disk, 10).nth(round % 9).unwrap();
        let killed = disk.kill_at(moment, &mut Fate::seeded(seed + round as u64));
        fixture = recover(&killed, setup, &model, moment, End::Kill, seed + round as u64);
    }
    fixture.run(40);
    // Before that, changes left by the last kill need not have been durable.
    let opened = fixture.opened;
    let (disk, model) = fixture.abandon();
    for moment in some_moments(&disk, 30).filter(|moment| *moment >= opened) {
        let cut = disk.crash_at(moment, &mut Fate::seeded(seed));
        drop(recover(&cut, setup, &model, moment, End::PowerCut, seed));
    }
}

#[test]
fn many_kills_in_a_row_and_a_power_cut_at_the_end() {
    for seed in 0..3 {
        let _tell = Tell(format!("seed {seed}"));
        kills_in_a_row(seed);
    }
}

/// The killed daemon had written a superblock and not made it durable. The next one wrote the other
/// slot, and power was cut: both could be torn.
#[test]
fn a_kill_and_a_power_cut_do_not_cost_both_superblocks() {
    let setup = Setup::default();
    let (disk, model) = used(setup, 1).close();
    for moment in disk.crash_points() {
        let killed = disk.kill_at(moment, &mut Fate::everything());
        let durable = disk.crash_at(moment, &mut Fate::nothing_more());
        if superblocks(&killed) == superblocks(&durable) {
            continue;
        }
        drop(Fixture::open(&killed, setup, HistoryModel::new(vec![0; 1], 1), 1).unwrap());
        for second in killed.crash_points().take(4) {
            for seed in 0..20 {
                let mut fate = Fate::seeded(seed).torn_percent(100);
                let cut = killed.crash_at(second, &mut fate);
                let _tell = Tell(format!("kill at {moment:?}, cut at {second:?}"));
                let seen = contents_read_only(&cut).unwrap();
                model.judge(&seen, moment, End::PowerCut).unwrap();
            }
        }
    }
}

fn superblocks(disk: &SimDisk) -> [u8; SUPERBLOCK_AREA_BYTES as usize] {
    let mut bytes = [0; SUPERBLOCK_AREA_BYTES as usize];
    disk.read_at(0, &mut bytes);
    bytes
}
