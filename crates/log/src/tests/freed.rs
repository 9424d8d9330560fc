//! Segments that must not be reused or appended to yet, and images that must not be marked clean
//! yet.

use std::rc::Rc;

use flowstone_block::Errno;
use flowstone_sim::{Call, Fate, Fault};

use super::crash::recover;
use super::fixture::{BLOCK_SECTORS, Fixture, Setup, contents_read_only, without_history};
use super::history_model::{End, HistoryModel};
use super::scheduler::with_hook;

/// A clean image is appended to in the segments that it was closed with. Replay begins there, so
/// they are not reused before a checkpoint, dead or not.
#[test]
fn the_segment_that_an_image_goes_on_in_is_not_used_again_before_a_checkpoint() {
    let mut fixture = Setup::default().fixture(1);
    fixture.write_blocks(0..4).unwrap();
    let mut fixture = fixture.reopen().unwrap();
    for _ in 0..12 {
        fixture.write_blocks(0..9).unwrap();
    }
    fixture.flush().unwrap();
    let generation = fixture.log.append_state().generation();
    fixture.maintenance.writer.release_freeable().unwrap();
    for round in 0..9 {
        let first = 10 + round % 8 * 9;
        fixture.write_blocks(first..first + 9).unwrap();
    }
    fixture.flush().unwrap();
    assert_eq!(fixture.log.append_state().generation(), generation, "no checkpoint meanwhile");
    let (disk, model) = fixture.abandon();
    let now = disk.now();
    let crashed = disk.crash_at(now, &mut Fate::nothing_more());
    let seen = contents_read_only(&crashed).unwrap();
    model.judge(&seen, now, End::PowerCut).unwrap();
}

/// Dead segments are freed by a sync of the records that replaced their blocks. A segment that dies
/// during the sync was replaced by records that the sync may not cover: a power cut loses these,
/// and the blocks would be gone.
#[test]
fn a_segment_that_dies_during_the_sync_that_frees_others_is_not_freed_by_it() {
    let mut fixture = Setup::default().fixture(1);
    for at in (0..90).step_by(9) {
        fixture.write_blocks(at..at + 9).unwrap();
    }
    fixture.flush().unwrap();
    fixture.checkpoint().unwrap();
    let guests = Rc::clone(&fixture.guests);
    let mut is_done = false;
    let overwrite = move || {
        if std::mem::replace(&mut is_done, true) {
            return;
        }
        let mut guests = guests.borrow_mut();
        for at in (0..54).step_by(9) {
            guests.write(0, at * BLOCK_SECTORS..(at + 9) * BLOCK_SECTORS);
            for _ in 0..4 {
                guests.kick(0);
                guests.nap(0);
                guests.reap(0);
            }
        }
    };
    with_hook(overwrite, || fixture.maintenance.writer.release_freeable().unwrap());
    assert_eq!(fixture.guests().in_flight(), 0);
    for at in (100..200).step_by(9) {
        fixture.write_blocks(at..at + 9).unwrap();
    }
    let (disk, model) = fixture.abandon();
    let now = disk.now();
    for seed in 0..200 {
        let crashed = disk.crash_at(now, &mut Fate::seeded(seed));
        let seen = contents_read_only(&crashed).unwrap();
        model.judge(&seen, now, End::PowerCut).unwrap();
    }
}

/// "Clean" means that nothing follows the checkpoint. A record in flight then would not be
/// replayed, though it is in the file and its guest has been told.
#[test]
fn an_image_that_is_closed_beside_a_record_on_its_way_is_not_called_clean() {
    let mut fixture = Setup::default().fixture(1);
    fixture.write_blocks(0..9).unwrap();
    fixture.guests().write(0, 80..88);
    fixture.guests().kick(0);
    let _ = fixture.maintenance.close();
    let (disk, model) = fixture.abandon();
    let now = disk.now();
    let crashed = disk.crash_at(now, &mut Fate::everything());
    let seen = contents_read_only(&crashed).unwrap();
    model.judge(&seen, now, End::Kill).unwrap();
}

/// Power was cut when the first record at the head was torn and the second one whole: replay finds
/// nothing. Opens the image on a host with or without space.
fn behind_a_torn_head(has_space: bool) -> Fixture {
    let setup = Setup::default();
    let mut fixture = setup.fixture(1);
    fixture.write_blocks(0..1).unwrap();
    fixture.checkpoint().unwrap();
    for block in [10, 20] {
        let mut guests = fixture.guests();
        guests.write(0, block * BLOCK_SECTORS..(block + 1) * BLOCK_SECTORS);
        guests.kick(0);
        guests.reap(0);
    }
    let (disk, model) = fixture.abandon();
    let now = disk.now();
    let last = disk.undecided_at(now) - 1;
    let crashed = disk.crash_at(now, &mut Fate::subset(1 << last));
    if !has_space {
        crashed.inject(Fault::fail(Errno::NOSPC).on(Call::Allocate).always());
    }
    recover(&crashed, setup, &model, now, End::PowerCut, 1)
}

/// A new record in the place of the torn one, of the same length, must not lead to the one behind.
fn write_and_judge(mut fixture: Fixture) {
    fixture.write_blocks(30..31).unwrap();
    fixture.flush().unwrap();
    let (disk, model) = fixture.abandon();
    let now = disk.now();
    let seen = contents_read_only(&disk.crash_at(now, &mut Fate::everything())).unwrap();
    model.judge(&seen, now, End::PowerCut).unwrap();
}

#[test]
fn a_record_behind_a_torn_one_does_not_follow_a_new_one_though_replay_found_nothing() {
    write_and_judge(behind_a_torn_head(true));
}

/// The first open after the power cut meets a full host, and is closed there: that must not make
/// the torn head clean, to which the next session would append.
#[test]
fn a_close_on_a_full_host_does_not_make_a_torn_head_clean() {
    let (disk, model) = behind_a_torn_head(false).close();
    let model = HistoryModel::new(model.latest(), model.next_stamp());
    let setup = Setup::default();
    write_and_judge(Fixture::open(&without_history(&disk), setup, model, 1).unwrap());
}

/// Nothing is lost, and the next open recovers.
#[test]
fn a_close_on_a_full_host_after_a_kill_is_no_failure() {
    let setup = Setup::default();
    let mut fixture = setup.fixture(1);
    fixture.write_blocks(0..1).unwrap();
    let (disk, model) = fixture.abandon();
    let now = disk.now();
    let crashed = disk.crash_at(now, &mut Fate::everything());
    crashed.inject(Fault::fail(Errno::NOSPC).on(Call::Allocate).always());
    let mut fixture = recover(&crashed, setup, &model, now, End::Kill, 1);
    assert_eq!(fixture.maintenance.close(), Ok(()));
}
