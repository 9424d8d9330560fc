//! The disk gets another size while guests go on, while power is cut, and while the host fails.

use std::rc::Rc;
use std::sync::Arc;

use flowstone_block::{Errno, OpKind, Outcome, SectorCount};
use flowstone_sim::{Call, Fate, Fault, Schedule};

use super::crash::{Tell, go_on, recover};
use super::driver::{
    BLOCK_SECTORS, Failure, Guests, Mix, Rig, SEGMENT_BYTES, Setup, contents_read_only,
};
use super::interleave::with_hook;
use super::oracle::{End, Story};
use crate::log::inbox::Command;
use crate::log::load::load;

/// Does what `LogImage::resize` does, with guests going on meanwhile.
fn resize(rig: &mut Rig, blocks: u64) -> Outcome {
    resize_to(rig, blocks * BLOCK_SECTORS)
}

/// The same, to so many sectors.
fn resize_to(rig: &mut Rig, capacity: u64) -> Outcome {
    resize_while(rig, capacity, |rig| {
        rig.step();
    })
}

/// The same, with nobody doing anything meanwhile.
pub fn resize_alone(rig: &mut Rig, capacity: u64) -> Outcome {
    resize_while(rig, capacity, |rig| rig.keeper.obey())
}

fn resize_while(rig: &mut Rig, capacity: u64, work: impl FnOnce(&mut Rig)) -> Outcome {
    let blocks = capacity.div_ceil(BLOCK_SECTORS);
    let segments = rig.core.shape.segments_for(blocks).unwrap();
    let core = Arc::clone(&rig.core);
    core.resize_while(SectorCount::new(capacity), || {
        let answer = core.inbox.ask(Command::Resize { capacity, segments });
        work(rig);
        answer.recv().unwrap()
    })
}

fn settle(guests: &mut Guests) {
    while guests.in_flight() > 0 {
        guests.kick(0);
        guests.nap(0);
        guests.reap(0);
    }
}

/// Guests that find the disk larger write there at once. A crash must not take away what a record
/// of theirs is about.
#[test]
fn nothing_is_written_behind_the_old_end_before_the_new_one_is_durable() {
    for seed in 0..6 {
        let _tell = Tell(format!("seed {seed}"));
        let setup = Setup { blocks: 64, ..Setup::default() };
        let mut rig = setup.rig(seed);
        rig.write_blocks(0..64).unwrap();
        rig.flush().unwrap();
        let larger = 128;
        let capacity = larger * BLOCK_SECTORS;
        rig.guests().story.grow(capacity);
        let guests = Rc::clone(&rig.guests);
        let mut next = 60;
        let try_behind_the_end = move || {
            let mut guests = guests.borrow_mut();
            guests.write(0, next * BLOCK_SECTORS..(next + 1) * BLOCK_SECTORS);
            settle(&mut guests);
            guests.flush(0);
            settle(&mut guests);
            next = 60 + (next - 59) % 60;
        };
        resize_while(&mut rig, capacity, |rig| {
            with_hook(try_behind_the_end, || rig.keeper.obey());
        })
        .unwrap();
        rig.write_blocks(60..70).unwrap();
        let early = rig.guests().failures.clone();
        assert!(!early.is_empty(), "no request came too early");
        assert!(early.iter().all(|failure| failure.errno == Errno::INVAL), "{early:?}");
        let (disk, story) = rig.abandon();
        for (index, moment) in disk.crash_points().enumerate() {
            let _tell = Tell(format!("seed {seed}, cut at {moment:?}"));
            let crashed = disk.crash_at(moment, &mut Fate::seeded(index as u64));
            let mut seen = contents_read_only(&crashed).unwrap();
            seen.resize(capacity as usize, 0);
            story.judge(&seen, moment, End::PowerCut).unwrap();
        }
    }
}

#[test]
fn a_resize_survives_power_cuts() {
    let setup = Setup::default();
    let mut rig = setup.rig(1);
    rig.guests().mix = Mix::on(40);
    rig.run(30);
    rig.flush().unwrap();
    let larger = setup.blocks * 2;
    let capacity = larger * BLOCK_SECTORS;
    rig.guests().quota = 10;
    resize(&mut rig, larger).unwrap();
    let resized = rig.disk.now();
    rig.settle();
    rig.guests().story.grow(capacity);
    rig.write_blocks(larger - 4..larger).unwrap();
    rig.flush().unwrap();
    let (disk, story) = rig.abandon();
    for (index, moment) in disk.crash_points().enumerate() {
        let crashed = disk.crash_at(moment, &mut Fate::seeded(index as u64));
        let mut seen = contents_read_only(&crashed).unwrap();
        let sectors = seen.len();
        assert!(moment < resized || sectors as u64 == capacity, "the new size is forgotten");
        seen.resize(capacity as usize, 0);
        story.judge(&seen, moment, End::PowerCut).unwrap();
        seen.truncate(sectors);
        let setup = Setup { blocks: sectors as u64 / BLOCK_SECTORS, ..setup };
        let next = Story::new(seen, story.next_stamp());
        go_on(Rig::open(&crashed, setup, next, 0).unwrap(), 15);
    }
}

/// A resize that could not be made durable must not become so later behind the guest's back.
#[test]
fn a_resize_that_fails_is_forgotten() {
    let setup = Setup::default();
    let mut rig = setup.rig(1);
    rig.write_blocks(0..8).unwrap();
    rig.disk.inject(Fault::fail(Errno::IO).on(Call::Write).within(0..SEGMENT_BYTES));
    resize(&mut rig, 16).unwrap_err();
    rig.write_blocks(100..108).unwrap();
    rig.reopen().unwrap().check();
}

/// The map root went on naming the leaves of the part that was cut off.
#[test]
fn what_was_trimmed_before_a_disk_is_made_smaller_leaves_nothing_behind() {
    let setup = Setup { blocks: 5000, ..Setup::default() };
    let mut rig = setup.rig(1);
    rig.write_blocks(0..8).unwrap();
    rig.write_blocks(4990..5000).unwrap();
    rig.checkpoint().unwrap();
    rig.zero(4000 * BLOCK_SECTORS..5000 * BLOCK_SECTORS).unwrap();
    resize(&mut rig, 1000).unwrap();
    let seen = rig.contents();
    let story = Story::new(seen, 1000);
    let (disk, _) = rig.close();
    let setup = Setup { blocks: 1000, ..setup };
    let rig = Rig::open(&disk, setup, story, 1).unwrap();
    go_on(rig, 20);
}

/// A write to the part that is cut off was accepted before, and gets its place afterwards. Replay
/// took its record for the end of the log, and the image for damaged.
#[test]
fn a_write_beyond_the_new_end_that_was_on_its_way_does_no_harm() {
    let setup = Setup { blocks: 1000, ..Setup::default() };
    let mut rig = setup.rig(1);
    rig.write_blocks(0..8).unwrap();
    rig.guests().write(0, 900 * BLOCK_SECTORS..902 * BLOCK_SECTORS);
    rig.guests().write(0, 10 * BLOCK_SECTORS..11 * BLOCK_SECTORS);
    resize(&mut rig, 800).unwrap();
    rig.settle();
    assert_eq!(rig.guests().failures, [Failure { kind: OpKind::Write, errno: Errno::INVAL }]);
    let mut seen = rig.contents();
    assert!(seen[80] > 0);
    seen.truncate(800 * BLOCK_SECTORS as usize);
    rig.guests().failures.clear();
    rig.guests().story = Story::new(seen.clone(), 1000);
    rig.write_blocks(20..28).unwrap();
    rig.flush().unwrap();
    let setup = Setup { blocks: 800, ..setup };
    let (disk, story) = rig.abandon();
    let moment = disk.now();
    let crashed = disk.crash_at(moment, &mut Fate::nothing_more());
    let mut rig = recover(&crashed, setup, &story, moment, End::PowerCut, 1);
    rig.checkpoint().unwrap();
    rig.reopen().unwrap().check();
}

/// It already had its place in the log, so it is there, and the disk stays as large as it is.
#[test]
fn a_disk_is_not_made_smaller_under_a_write() {
    let setup = Setup { blocks: 1000, ..Setup::default() };
    let rig = setup.rig(1);
    rig.disk.set_schedule(Schedule::Shuffled { seed: 1 });
    let mut rig = rig.reopen().unwrap();
    rig.write_blocks(0..8).unwrap();
    rig.guests().write(0, 900 * BLOCK_SECTORS..902 * BLOCK_SECTORS);
    rig.guests().kick(0);
    assert_eq!(resize(&mut rig, 800), Err(Errno::BUSY));
    rig.settle();
    rig.check();
    rig.reopen().unwrap().check();
}

/// Its segments were used all the same. A seal led to one that no superblock knew of, and after a
/// crash the image was refused.
#[test]
fn segments_of_a_resize_that_failed_are_not_used() {
    let setup = Setup::default();
    let mut rig = setup.rig(1);
    rig.guests().mix = Mix::writes(0..setup.blocks);
    rig.run(200);
    rig.disk.inject(Fault::fail(Errno::IO).on(Call::Write).within(0..SEGMENT_BYTES));
    resize(&mut rig, setup.blocks * 8).unwrap_err();
    for _ in 0..60 {
        rig.run(12);
        let now = rig.disk.now();
        let crashed = rig.disk.crash_at(now, &mut Fate::everything());
        drop(contents_read_only(&crashed).unwrap());
    }
}

/// Those that the larger disk had used and freed were handed out to the smaller one.
#[test]
fn segments_beyond_a_smaller_disk_are_not_used() {
    let setup = Setup { blocks: 2048, ..Setup::default() };
    let mut rig = setup.rig(1);
    rig.guests().mix = Mix::writes(0..setup.blocks);
    rig.run(1500);
    rig.zero(0..setup.blocks * BLOCK_SECTORS).unwrap();
    rig.flush().unwrap();
    for _ in 0..2 {
        rig.checkpoint().unwrap();
        rig.quiet();
    }
    resize(&mut rig, 256).unwrap();
    rig.guests().mix = Mix::writes(0..256);
    let told = rig.describe();
    let limit = rig.core.tail().segments.limit();
    for _ in 0..100 {
        rig.run(12);
        let now = rig.disk.now();
        let crashed = rig.disk.crash_at(now, &mut Fate::everything());
        if let Err(error) = contents_read_only(&crashed) {
            panic!("{error}: limit {limit}, {told} now {}", rig.describe());
        }
    }
}

/// The same for a `compact` whose checkpoints failed: the limit that it raised for the time afterwards
/// was in no superblock.
#[test]
fn segments_of_a_compact_that_failed_are_not_used() {
    for seed in 0..8 {
        let blocks = 320;
        let setup = Setup { blocks, reserve: Some(3), split: seed % 2 == 1, ..Setup::default() };
        let mut rig = setup.rig(seed);
        rig.guests().mix = Mix::writes(0..setup.blocks);
        for first in (0..blocks).step_by(8) {
            rig.write_blocks(first..first + 8).unwrap();
        }
        rig.run(150);
        rig.disk.inject(Fault::fail(Errno::IO).on(Call::Write).within(0..SEGMENT_BYTES).always());
        rig.keeper(|keeper| keeper.compact()).unwrap_err();
        rig.disk.clear_faults();
        let (limit, known) =
            (rig.core.tail().segments.limit(), load(&rig.disk).unwrap().superblock);
        assert!(limit <= known.segments, "seed {seed}: {limit} segments, {} known", known.segments);
        for _ in 0..20 {
            rig.run(25);
            let now = rig.disk.now();
            let crashed = rig.disk.crash_at(now, &mut Fate::everything());
            if let Err(error) = contents_read_only(&crashed) {
                panic!("seed {seed}: {error}: {}", rig.describe());
            }
        }
    }
}
