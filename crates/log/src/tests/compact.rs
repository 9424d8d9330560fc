//! Tests of `compact`, interrupted: by power cuts at every moment, by guests, and by a host without
//! space.

use flowstone_block::{Errno, Outcome};
use flowstone_fileio::FileIo;
use flowstone_sim::{Call, Fate, Fault, Schedule, SimDisk};

use super::crash::{Tell, go_on, recover, some_moments};
use super::fixture::{Fixture, Mix, SEGMENT_BYTES, Setup, without_history};
use super::history_model::{End, HistoryModel};
use crate::maintenance::Maintenance;

/// A disk with `live` blocks in use, in no order, on an image that uses all its segments.
pub fn disordered(setup: Setup, live: u64, seed: u64) -> (SimDisk, HistoryModel) {
    let mut fixture = setup.fixture(seed);
    fixture.guests().mix = Mix { blocks_max: 3, ..Mix::writes(0..live) };
    fixture.run(setup.blocks as u32 * 4);
    fixture.flush().unwrap();
    let (disk, model) = fixture.close();
    (without_history(&disk), HistoryModel::new(model.latest(), model.next_stamp()))
}

fn compact(fixture: &mut Fixture) -> Outcome {
    fixture.maintenance(Maintenance::compact)
}

/// Cuts power at every moment: each must leave an image that opens with all its data, and is
/// usable.
pub fn cut_everywhere(fixture: Fixture, setup: Setup, moments: usize) {
    let opened = fixture.opened;
    let (disk, model) = fixture.abandon();
    for (index, moment) in some_moments(&disk, moments).filter(|it| *it >= opened).enumerate() {
        let _tell = Tell(format!("cut {index} at {moment:?}"));
        let crashed = disk.crash_at(moment, &mut Fate::seeded(index as u64));
        let fixture = recover(&crashed, setup, &model, moment, End::PowerCut, index as u64);
        if index % 5 == 0 {
            go_on(fixture, 40);
        }
    }
}

#[test]
fn compact_survives_power_cuts() {
    for seed in 0..4 {
        let _tell = Tell(format!("seed {seed}"));
        let setup = Setup { split: seed % 2 == 1, ..Setup::default() };
        let (disk, model) = disordered(setup, setup.blocks, seed);
        disk.set_schedule(Schedule::Shuffled { seed });
        let mut fixture = Fixture::open(&disk, setup, model, seed).unwrap();
        compact(&mut fixture).unwrap();
        fixture.check();
        cut_everywhere(fixture, setup, 120);
    }
}

/// Guests may get segments that `compact` has borrowed: the superblock covers them before.
#[test]
fn compact_with_guests_going_on_survives_power_cuts() {
    for seed in 0..6 {
        let _tell = Tell(format!("seed {seed}"));
        let setup = Setup { split: seed % 2 == 1, ..Setup::default() };
        let (disk, model) = disordered(setup, setup.blocks, seed);
        disk.set_schedule(Schedule::Shuffled { seed });
        let mut fixture = Fixture::open(&disk, setup, model, seed).unwrap();
        fixture.guests().mix = Mix { depth: 12, ..Mix::on(setup.blocks) };
        for _ in 0..3 {
            fixture.guests().quota = 400;
            compact(&mut fixture).unwrap();
            fixture.run(60);
        }
        fixture.guests().quota = 0;
        fixture.drain();
        assert_eq!(fixture.guests().failures, []);
        fixture.check();
        cut_everywhere(fixture, setup, 120);
    }
}

/// The image stays usable: within its session, after the next start, and after a crash.
fn stays_usable(mut fixture: Fixture, setup: Setup, told: &str) {
    let _tell = Tell(told.to_owned());
    let live = setup.blocks / 2;
    fixture.guests().mix = Mix { blocks_max: 2, ..Mix::writes(0..live) };
    fixture.run(300);
    assert_eq!(fixture.guests().failures, [], "{}", fixture.describe());
    fixture.check();
    let mut fixture = fixture.reopen().unwrap();
    fixture.guests().mix = Mix { blocks_max: 2, ..Mix::writes(0..live) };
    fixture.run(300);
    assert_eq!(fixture.guests().failures, [], "reopened: {}", fixture.describe());
    fixture.check();
}

/// The host had space for a part of the job. The sorted part lay beyond the usual limit, and all
/// segments within it were in use: none could be opened any more, not even for a checkpoint.
#[test]
fn a_compact_that_runs_out_of_room_leaves_an_image_that_can_be_written() {
    for more in 1..14 {
        let setup = Setup { blocks: 512, ..Setup::default() };
        let live = setup.blocks / 2;
        let (disk, model) = disordered(setup, live, more);
        let mut fixture = Fixture::open(&disk, setup, model, more).unwrap();
        let room = disk.allocated_bytes().unwrap() + more * SEGMENT_BYTES;
        disk.set_capacity(Some(room));
        let before = fixture.describe();
        compact(&mut fixture).unwrap();
        disk.set_capacity(None);
        fixture.check();
        let (disk, model) = fixture.close();
        let latest = HistoryModel::new(model.latest(), model.next_stamp());
        let disk = without_history(&disk);
        let fixture = Fixture::open(&disk, setup, latest, 1).unwrap();
        stays_usable(fixture, setup, &format!("{more} more: {before}"));
    }
}

/// The same, interrupted by an error of the host: an unreadable block.
#[test]
fn a_compact_that_fails_half_way_leaves_an_image_that_can_be_written() {
    for after in [3u64, 40, 90, 150, 200] {
        let setup = Setup { blocks: 2048, ..Setup::default() };
        let (disk, model) = disordered(setup, setup.blocks, after);
        let mut fixture = Fixture::open(&disk, setup, model, after).unwrap();
        let fault = Fault::fail(Errno::IO).on(Call::Read).within(SEGMENT_BYTES..u64::MAX);
        disk.inject(fault.after(1024 + after));
        let before = fixture.describe();
        let _ = compact(&mut fixture);
        disk.clear_faults();
        let after_it = fixture.describe();
        fixture.check();
        stays_usable(fixture, setup, &format!("after {after}: {before} ------ {after_it}"));
    }
}

/// Copies from many segments are not replayed, so their sources wait for a checkpoint; also when
/// the final checkpoint has failed, and cleaning frees segments.
#[test]
fn sources_of_a_compact_that_failed_wait_for_a_checkpoint() {
    for seed in 0..6 {
        let _tell = Tell(format!("seed {seed}"));
        let setup = Setup::default();
        let (disk, model) = disordered(setup, setup.blocks, seed);
        let mut fixture = Fixture::open(&disk, setup, model, seed).unwrap();
        let superblocks = Fault::fail(Errno::IO).on(Call::Write).within(0..SEGMENT_BYTES);
        disk.inject(superblocks.after(1).always());
        fixture.maintenance.compact().unwrap_err();
        disk.clear_faults();
        let failed = disk.now();
        fixture.guests().mix = Mix { flush_percent: 10, ..Mix::writes(0..setup.blocks) };
        fixture.run(250);
        let (disk, model) = fixture.abandon();
        for (index, moment) in some_moments(&disk, 80).filter(|it| *it >= failed).enumerate() {
            let _tell = Tell(format!("cut at {moment:?}"));
            let crashed = disk.crash_at(moment, &mut Fate::seeded(index as u64));
            drop(recover(&crashed, setup, &model, moment, End::PowerCut, seed));
        }
    }
}
