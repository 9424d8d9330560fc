//! `compact`, interrupted: by power cuts at every moment, by guests, and by a host without room.

use flowstone_block::{Errno, Outcome};
use flowstone_fileio::FileIo;
use flowstone_sim::{Call, Fate, Fault, Schedule, SimDisk};

use super::crash::{Tell, go_on, recover, some_moments};
use super::driver::{Mix, Rig, SEGMENT_BYTES, Setup, without_history};
use super::oracle::{End, Story};
use crate::log::keeper::Keeper;

/// A disk of which so many blocks are in use, in no order, on an image that uses all its segments.
fn disordered(setup: Setup, live: u64, seed: u64) -> (SimDisk, Story) {
    let mut rig = setup.rig(seed);
    rig.guests().mix = Mix { blocks_max: 3, ..Mix::writes(0..live) };
    rig.run(setup.blocks as u32 * 4);
    rig.flush().unwrap();
    let (disk, story) = rig.close();
    (without_history(&disk), Story::new(story.latest(), story.next_stamp()))
}

fn compact(rig: &mut Rig) -> Outcome {
    rig.keeper(Keeper::compact)
}

/// Every cut must leave an image that opens with all its data, and goes on.
fn cut_everywhere(rig: Rig, setup: Setup, moments: usize) {
    let opened = rig.opened;
    let (disk, story) = rig.abandon();
    for (index, moment) in some_moments(&disk, moments).filter(|it| *it >= opened).enumerate() {
        let _tell = Tell(format!("cut {index} at {moment:?}"));
        let crashed = disk.crash_at(moment, &mut Fate::seeded(index as u64));
        let rig = recover(&crashed, setup, &story, moment, End::PowerCut, index as u64);
        if index % 5 == 0 {
            go_on(rig, 40);
        }
    }
}

#[test]
fn compact_survives_power_cuts() {
    for seed in 0..4 {
        let _tell = Tell(format!("seed {seed}"));
        let setup = Setup { split: seed % 2 == 1, ..Setup::default() };
        let (disk, story) = disordered(setup, setup.blocks, seed);
        disk.set_schedule(Schedule::Shuffled { seed });
        let mut rig = Rig::open(&disk, setup, story, seed).unwrap();
        compact(&mut rig).unwrap();
        rig.check();
        cut_everywhere(rig, setup, 120);
    }
}

/// Guests may get segments that `compact` has borrowed: the superblock knows of them before.
#[test]
fn compact_with_guests_going_on_survives_power_cuts() {
    for seed in 0..6 {
        let _tell = Tell(format!("seed {seed}"));
        let setup = Setup { split: seed % 2 == 1, ..Setup::default() };
        let (disk, story) = disordered(setup, setup.blocks, seed);
        disk.set_schedule(Schedule::Shuffled { seed });
        let mut rig = Rig::open(&disk, setup, story, seed).unwrap();
        rig.guests().mix = Mix { depth: 12, ..Mix::on(setup.blocks) };
        for _ in 0..3 {
            rig.guests().quota = 400;
            compact(&mut rig).unwrap();
            rig.run(60);
        }
        rig.guests().quota = 0;
        rig.settle();
        assert_eq!(rig.guests().failures, []);
        rig.check();
        cut_everywhere(rig, setup, 120);
    }
}

/// The image stays usable: within its session, after the next start, and after a crash.
fn stays_usable(mut rig: Rig, setup: Setup, told: &str) {
    let _tell = Tell(told.to_owned());
    let live = setup.blocks / 2;
    rig.guests().mix = Mix { blocks_max: 2, ..Mix::writes(0..live) };
    rig.run(300);
    assert_eq!(rig.guests().failures, [], "{}", rig.describe());
    rig.check();
    let mut rig = rig.reopen().unwrap();
    rig.guests().mix = Mix { blocks_max: 2, ..Mix::writes(0..live) };
    rig.run(300);
    assert_eq!(rig.guests().failures, [], "reopened: {}", rig.describe());
    rig.check();
}

/// The host had room for a part of the job. What was done of it lay beyond the usual limit, and all
/// segments within it were in use: nobody could take one any more, no checkpoint either.
#[test]
fn a_compact_that_runs_out_of_room_leaves_an_image_that_can_be_written() {
    for more in 1..14 {
        let setup = Setup { blocks: 512, ..Setup::default() };
        let live = setup.blocks / 2;
        let (disk, story) = disordered(setup, live, more);
        let mut rig = Rig::open(&disk, setup, story, more).unwrap();
        let room = disk.allocated_bytes().unwrap() + more * SEGMENT_BYTES;
        disk.set_capacity(Some(room));
        let before = rig.describe();
        compact(&mut rig).unwrap();
        disk.set_capacity(None);
        rig.check();
        let (disk, story) = rig.close();
        let latest = Story::new(story.latest(), story.next_stamp());
        let disk = without_history(&disk);
        let rig = Rig::open(&disk, setup, latest, 1).unwrap();
        stays_usable(rig, setup, &format!("{more} more: {before}"));
    }
}

/// The same, cut short by an error of the host: a block that cannot be read.
#[test]
fn a_compact_that_fails_half_way_leaves_an_image_that_can_be_written() {
    for after in [3u64, 40, 90, 150, 200] {
        let setup = Setup { blocks: 2048, ..Setup::default() };
        let (disk, story) = disordered(setup, setup.blocks, after);
        let mut rig = Rig::open(&disk, setup, story, after).unwrap();
        let fault = Fault::fail(Errno::IO).on(Call::Read).within(SEGMENT_BYTES..u64::MAX);
        disk.inject(fault.after(1024 + after));
        let before = rig.describe();
        let _ = compact(&mut rig);
        disk.clear_faults();
        let after_it = rig.describe();
        rig.check();
        stays_usable(rig, setup, &format!("after {after}: {before} ------ {after_it}"));
    }
}

/// Copies from many segments are not replayed, so their sources wait for a checkpoint; also when the one
/// that should have ended the job has failed, and cleaning frees what it may.
#[test]
fn sources_of_a_compact_that_failed_wait_for_a_checkpoint() {
    for seed in 0..6 {
        let _tell = Tell(format!("seed {seed}"));
        let setup = Setup::default();
        let (disk, story) = disordered(setup, setup.blocks, seed);
        let mut rig = Rig::open(&disk, setup, story, seed).unwrap();
        let superblocks = Fault::fail(Errno::IO).on(Call::Write).within(0..SEGMENT_BYTES);
        disk.inject(superblocks.after(1).always());
        rig.keeper.compact().unwrap_err();
        disk.clear_faults();
        let failed = disk.now();
        rig.guests().mix = Mix { flush_percent: 10, ..Mix::writes(0..setup.blocks) };
        rig.run(250);
        let (disk, story) = rig.abandon();
        for (index, moment) in some_moments(&disk, 80).filter(|it| *it >= failed).enumerate() {
            let _tell = Tell(format!("cut at {moment:?}"));
            let crashed = disk.crash_at(moment, &mut Fate::seeded(index as u64));
            drop(recover(&crashed, setup, &story, moment, End::PowerCut, seed));
        }
    }
}
