//! Tests of a resize while guests go on, while power is cut, and while the host fails.

use std::rc::Rc;
use std::sync::Arc;

use flowstone_block::{Errno, OpKind, Outcome, SectorCount};
use flowstone_sim::{Call, Fate, Fault, Schedule};

use super::crash::{Tell, go_on, recover};
use super::fixture::{
    BLOCK_SECTORS, Failure, Fixture, Guests, Mix, SEGMENT_BYTES, Setup, contents_read_only,
};
use super::history_model::{End, HistoryModel};
use super::scheduler::with_hook;
use crate::command::Command;
use crate::load::load;

/// Does what `LogImage::resize` does, with guests going on meanwhile.
fn resize(fixture: &mut Fixture, blocks: u64) -> Outcome {
    resize_to(fixture, blocks * BLOCK_SECTORS)
}

/// The same, to `capacity` sectors.
fn resize_to(fixture: &mut Fixture, capacity: u64) -> Outcome {
    resize_while(fixture, capacity, |fixture| {
        fixture.step();
    })
}

/// The same, with no other requests meanwhile.
pub fn resize_alone(fixture: &mut Fixture, capacity: u64) -> Outcome {
    resize_while(fixture, capacity, |fixture| fixture.maintenance.run_commands())
}

fn resize_while(fixture: &mut Fixture, capacity: u64, work: impl FnOnce(&mut Fixture)) -> Outcome {
    let blocks = capacity.div_ceil(BLOCK_SECTORS);
    let segments = fixture.log.shape.segments_for(blocks).unwrap();
    let (log, volume) = (Arc::clone(&fixture.log), Arc::clone(&fixture.volume));
    volume.resize_while(SectorCount::new(capacity), || {
        let answer = log.inbox.ask(Command::Resize { capacity, segments });
        work(fixture);
        answer.wait()
    })
}

/// Runs a turn of a queue.
fn look(guests: &mut Guests) {
    guests.kick(0);
    guests.nap(0);
    guests.reap(0);
}

/// Guests that see the larger disk write there at once. A crash must not take away blocks that a
/// record of theirs concerns.
#[test]
fn nothing_is_written_behind_the_old_end_before_the_new_one_is_durable() {
    for seed in 0..6 {
        let _tell = Tell(format!("seed {seed}"));
        let setup = Setup { blocks: 64, ..Setup::default() };
        let mut fixture = setup.fixture(seed);
        fixture.write_blocks(0..64).unwrap();
        fixture.flush().unwrap();
        let larger = 128;
        let capacity = larger * BLOCK_SECTORS;
        fixture.guests().model.grow(capacity);
        let guests = Rc::clone(&fixture.guests);
        let mut next = 60;
        let try_behind_the_end = move || {
            let mut guests = guests.borrow_mut();
            let tag = guests.write(0, next * BLOCK_SECTORS..(next + 1) * BLOCK_SECTORS);
            while guests.is_in_flight(tag) {
                look(&mut guests);
            }
            // It may be behind a sync of the maintenance worker, which waits for the guest.
            if guests.in_flight() == 0 {
                guests.flush(0);
            }
            look(&mut guests);
            next = 60 + (next - 59) % 60;
        };
        resize_while(&mut fixture, capacity, |fixture| {
            with_hook(try_behind_the_end, || fixture.maintenance.run_commands());
        })
        .unwrap();
        fixture.write_blocks(60..70).unwrap();
        let early = fixture.guests().failures.clone();
        assert!(!early.is_empty(), "no request came too early");
        assert!(early.iter().all(|failure| failure.errno == Errno::INVAL), "{early:?}");
        let (disk, model) = fixture.abandon();
        for (index, moment) in disk.crash_points().enumerate() {
            let _tell = Tell(format!("seed {seed}, cut at {moment:?}"));
            let crashed = disk.crash_at(moment, &mut Fate::seeded(index as u64));
            let mut seen = contents_read_only(&crashed).unwrap();
            seen.resize(capacity as usize, 0);
            model.judge(&seen, moment, End::PowerCut).unwrap();
        }
    }
}

#[test]
fn a_resize_survives_power_cuts() {
    let setup = Setup::default();
    let mut fixture = setup.fixture(1);
    fixture.guests().mix = Mix::on(40);
    fixture.run(30);
    fixture.flush().unwrap();
    let larger = setup.blocks * 2;
    let capacity = larger * BLOCK_SECTORS;
    fixture.guests().quota = 10;
    resize(&mut fixture, larger).unwrap();
    let resized = fixture.disk.now();
    fixture.drain();
    fixture.guests().model.grow(capacity);
    fixture.write_blocks(larger - 4..larger).unwrap();
    fixture.flush().unwrap();
    let (disk, model) = fixture.abandon();
    for (index, moment) in disk.crash_points().enumerate() {
        let crashed = disk.crash_at(moment, &mut Fate::seeded(index as u64));
        let mut seen = contents_read_only(&crashed).unwrap();
        let sectors = seen.len();
        assert!(moment < resized || sectors as u64 == capacity, "the new size is forgotten");
        seen.resize(capacity as usize, 0);
        model.judge(&seen, moment, End::PowerCut).unwrap();
        seen.truncate(sectors);
        let setup = Setup { blocks: sectors as u64 / BLOCK_SECTORS, ..setup };
        let next = HistoryModel::new(seen, model.next_stamp());
        go_on(Fixture::open(&crashed, setup, next, 0).unwrap(), 15);
    }
}

/// A resize that could not be made durable must not become durable later without the guest's
/// knowledge.
#[test]
fn a_resize_that_fails_is_forgotten() {
    let setup = Setup::default();
    let mut fixture = setup.fixture(1);
    fixture.write_blocks(0..8).unwrap();
    fixture.disk.inject(Fault::fail(Errno::IO).on(Call::Write).within(0..SEGMENT_BYTES));
    resize(&mut fixture, 16).unwrap_err();
    fixture.write_blocks(100..108).unwrap();
    fixture.reopen().unwrap().check();
}

/// The map root still named the leaves of the part that was cut off.
#[test]
fn what_was_trimmed_before_a_disk_is_made_smaller_leaves_nothing_behind() {
    let setup = Setup { blocks: 5000, ..Setup::default() };
    let mut fixture = setup.fixture(1);
    fixture.write_blocks(0..8).unwrap();
    fixture.write_blocks(4990..5000).unwrap();
    fixture.checkpoint().unwrap();
    fixture.zero(4000 * BLOCK_SECTORS..5000 * BLOCK_SECTORS).unwrap();
    resize(&mut fixture, 1000).unwrap();
    let seen = fixture.contents();
    let model = HistoryModel::new(seen, 1000);
    let (disk, _) = fixture.close();
    let setup = Setup { blocks: 1000, ..setup };
    let fixture = Fixture::open(&disk, setup, model, 1).unwrap();
    go_on(fixture, 20);
}

/// A write to the part that is cut off was accepted before, and gets its place afterwards. Replay
/// took its record for the end of the log, and the image for damaged.
#[test]
fn a_write_beyond_the_new_end_that_was_on_its_way_does_no_harm() {
    let setup = Setup { blocks: 1000, ..Setup::default() };
    let mut fixture = setup.fixture(1);
    fixture.write_blocks(0..8).unwrap();
    fixture.guests().write(0, 900 * BLOCK_SECTORS..902 * BLOCK_SECTORS);
    fixture.guests().write(0, 10 * BLOCK_SECTORS..11 * BLOCK_SECTORS);
    resize(&mut fixture, 800).unwrap();
    fixture.drain();
    assert_eq!(fixture.guests().failures, [Failure { kind: OpKind::Write, errno: Errno::INVAL }]);
    let mut seen = fixture.contents();
    assert!(seen[80] > 0);
    seen.truncate(800 * BLOCK_SECTORS as usize);
    fixture.guests().failures.clear();
    fixture.guests().model = HistoryModel::new(seen.clone(), 1000);
    fixture.write_blocks(20..28).unwrap();
    fixture.flush().unwrap();
    let setup = Setup { blocks: 800, ..setup };
    let (disk, model) = fixture.abandon();
    let moment = disk.now();
    let crashed = disk.crash_at(moment, &mut Fate::nothing_more());
    let mut fixture = recover(&crashed, setup, &model, moment, End::PowerCut, 1);
    fixture.checkpoint().unwrap();
    fixture.reopen().unwrap().check();
}

/// It already had its place in the log, so it takes effect, and the disk keeps its size.
#[test]
fn a_disk_is_not_made_smaller_under_a_write() {
    let setup = Setup { blocks: 1000, ..Setup::default() };
    let fixture = setup.fixture(1);
    fixture.disk.set_schedule(Schedule::Shuffled { seed: 1 });
    let mut fixture = fixture.reopen().unwrap();
    fixture.write_blocks(0..8).unwrap();
    fixture.guests().write(0, 900 * BLOCK_SECTORS..902 * BLOCK_SECTORS);
    fixture.guests().kick(0);
    assert_eq!(resize(&mut fixture, 800), Err(Errno::BUSY));
    fixture.drain();
    fixture.check();
    fixture.reopen().unwrap().check();
}

/// Its segments were used all the same. A seal led to one that no superblock covered, and after a
/// crash the image was refused.
#[test]
fn segments_of_a_resize_that_failed_are_not_used() {
    let setup = Setup::default();
    let mut fixture = setup.fixture(1);
    fixture.guests().mix = Mix::writes(0..setup.blocks);
    fixture.run(200);
    fixture.disk.inject(Fault::fail(Errno::IO).on(Call::Write).within(0..SEGMENT_BYTES));
    resize(&mut fixture, setup.blocks * 8).unwrap_err();
    for _ in 0..60 {
        fixture.run(12);
        let now = fixture.disk.now();
        let crashed = fixture.disk.crash_at(now, &mut Fate::everything());
        drop(contents_read_only(&crashed).unwrap());
    }
}

/// Segments that the larger disk had used and freed were handed out to the smaller one.
#[test]
fn segments_beyond_a_smaller_disk_are_not_used() {
    let setup = Setup { blocks: 2048, ..Setup::default() };
    let mut fixture = setup.fixture(1);
    fixture.guests().mix = Mix::writes(0..setup.blocks);
    fixture.run(1500);
    fixture.zero(0..setup.blocks * BLOCK_SECTORS).unwrap();
    fixture.flush().unwrap();
    for _ in 0..2 {
        fixture.checkpoint().unwrap();
        fixture.quiet();
    }
    resize(&mut fixture, 256).unwrap();
    fixture.guests().mix = Mix::writes(0..256);
    let told = fixture.describe();
    let limit = fixture.log.append_state().segments().limit();
    for _ in 0..100 {
        fixture.run(12);
        let now = fixture.disk.now();
        let crashed = fixture.disk.crash_at(now, &mut Fate::everything());
        if let Err(error) = contents_read_only(&crashed) {
            panic!("{error}: limit {limit}, {told} now {}", fixture.describe());
        }
    }
}

/// The same for a `compact` whose checkpoints failed: the limit that it raised for afterwards was
/// in no superblock.
#[test]
fn segments_of_a_compact_that_failed_are_not_used() {
    for seed in 0..8 {
        let blocks = 320;
        let setup = Setup { blocks, reserve: Some(3), split: seed % 2 == 1, ..Setup::default() };
        let mut fixture = setup.fixture(seed);
        fixture.guests().mix = Mix::writes(0..setup.blocks);
        for first in (0..blocks).step_by(8) {
            fixture.write_blocks(first..first + 8).unwrap();
        }
        fixture.run(150);
        fixture
            .disk
            .inject(Fault::fail(Errno::IO).on(Call::Write).within(0..SEGMENT_BYTES).always());
        fixture.maintenance(|maintenance| maintenance.compact()).unwrap_err();
        fixture.disk.clear_faults();
        let (limit, known) = (
            fixture.log.append_state().segments().limit(),
            load(&fixture.disk, None).unwrap().superblock,
        );
        assert!(limit <= known.segments, "seed {seed}: {limit} segments, {} known", known.segments);
        for _ in 0..20 {
            fixture.run(25);
            let now = fixture.disk.now();
            let crashed = fixture.disk.crash_at(now, &mut Fate::everything());
            if let Err(error) = contents_read_only(&crashed) {
                panic!("seed {seed}: {error}: {}", fixture.describe());
            }
        }
    }
}
