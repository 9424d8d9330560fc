//! Tests of the host space that the maintenance worker allocates, keeps and frees.

use std::time::{Duration, Instant};

use flowstone_block::Errno;
use flowstone_block::sync::atomic::Ordering;
use flowstone_fileio::{BlockingFile, FileIo, FileOp};
use flowstone_log_format::SegmentId;
use flowstone_log_store::segments::State;
use flowstone_sim::{Call, Fate, Fault};

use super::fixture::{Fixture, Mix, SEGMENT_BYTES, Setup, begin};
use super::history_model::HistoryModel;
use crate::copy_memory::CopyMemory;
use crate::log::append::FULL_RETRY;
use crate::log::reserve::{FREED_TOGETHER, told_from};
use crate::maintenance::Progress;
use crate::state::LogState;

/// Number of ready segments that are kept for a guest that writes little.
const KEPT: u32 = 2;

fn kept_from_writes(fixture: &Fixture) -> u32 {
    fixture.log.append_state().kept_from_writes(&fixture.volume)
}

fn ready(fixture: &Fixture) -> u32 {
    fixture.log.append_state().segments().ready()
}

/// Makes segments ready until there are `count`.
fn make_ready(fixture: &Fixture, count: u32) {
    let mut state = fixture.log.append_state();
    while state.segments().ready() < count {
        let free = state.segments_mut().take_free().unwrap();
        state.segments_mut().make_ready(free);
    }
}

#[test]
fn space_is_asked_for_ahead_of_writes_and_not_before_the_first() {
    let mut fixture = Setup { blocks: 4096, ..Setup::default() }.fixture(1);
    assert_eq!((fixture.maintenance.writer.provide(), ready(&fixture)), (Progress::Idle, 0));
    fixture.write_blocks(0..1).unwrap();
    while fixture.maintenance.writer.provide() == Progress::Made {}
    let kept = kept_from_writes(&fixture);
    assert_ne!(kept, KEPT);
    assert_eq!(ready(&fixture), kept + KEPT);
}

#[test]
fn space_that_only_a_busy_guest_needs_is_a_surplus_and_given_back() {
    let mut fixture = Setup { blocks: 4096, ..Setup::default() }.fixture(1);
    fixture.write_blocks(0..1).unwrap();
    let enough = kept_from_writes(&fixture) + KEPT;
    let has_surplus = |fixture: &Fixture| {
        fixture.maintenance.writer.space.has_surplus(&fixture.log.append_state())
    };
    make_ready(&fixture, enough);
    assert_eq!(ready(&fixture), enough);
    assert!(!has_surplus(&fixture));
    make_ready(&fixture, enough + 1);
    assert!(has_surplus(&fixture));
    make_ready(&fixture, enough + 9);
    assert!(has_surplus(&fixture));
    fixture.maintenance.writer.space.trim_reserve();
    assert_eq!(ready(&fixture), enough);
    fixture.maintenance.writer.space.release_reserve();
    assert!(ready(&fixture) == 0 && !has_surplus(&fixture));
}

/// Found by power cuts on a full host: the new heads needed space in free segments that were holes,
/// while the allocated space was in others, and the image could not be opened.
#[test]
fn a_full_host_whose_space_is_in_other_free_segments_keeps_no_image_from_being_opened() {
    let setup = Setup { blocks: 4096, ..Setup::default() };
    let mut fixture = setup.fixture(1);
    for _ in 0..12 {
        fixture.write_blocks(0..48).unwrap();
    }
    fixture.checkpoint().unwrap();
    fixture.maintenance.writer.space.release_reserve();
    let (last, shape) = {
        let state = fixture.log.append_state();
        (SegmentId::new(state.segments().limit() - 8), fixture.log.shape)
    };
    // Allocated for writes that never came.
    let (offset, bytes) = (shape.address(last, 0).offset(), 8 * SEGMENT_BYTES);
    let mut file = BlockingFile::new(fixture.log.store.file()).unwrap();
    file.run(FileOp::Allocate { offset, bytes }).unwrap();
    file.sync().unwrap();
    drop(file);
    let full = fixture.disk.allocated_bytes().unwrap();
    let (disk, model) = fixture.abandon();
    let crashed = disk.crash_at(disk.now(), &mut Fate::everything());
    crashed.set_capacity(Some(full));
    let model = HistoryModel::new(model.latest(), model.next_stamp());
    let mut fixture = Fixture::open(&crashed, setup, model, 1).unwrap();
    fixture.write_blocks(0..48).unwrap();
    fixture.check();
}

/// Where the drive is told of freed space, no dead segment is kept for the next writes: the drive
/// would copy it. Elsewhere, rewriting it in place costs the host less.
#[test]
fn dead_segments_are_given_back_at_once_where_the_drive_hears_of_it() {
    for telling in [false, true] {
        let mut fixture = Setup { blocks: 4096, ..Setup::default() }.fixture(1);
        fixture.log.telling.store(telling, Ordering::Relaxed);
        for _ in 0..12 {
            fixture.write_blocks(0..48).unwrap();
        }
        let dead = fixture.log.append_state().segments().dead_count();
        assert!(dead > 4, "{dead}");
        let untold = LogState::of(&fixture.log, &fixture.volume).untold_dead_bytes;
        assert_eq!(untold, u64::from(dead) * SEGMENT_BYTES);
        fixture.checkpoint().unwrap();
        let state = LogState::of(&fixture.log, &fixture.volume);
        assert_eq!(state.telling, telling);
        assert_eq!(state.untold_dead_bytes == 0, telling, "{state:?}");
        let punched = fixture.volume.discards.read(fixture.log.store.file().punched()).merged;
        assert_eq!(punched > 0, telling);
    }
}

/// A drive copies dead segments until it is told of them, and a guest that never pauses may take
/// days to fill a large image.
#[test]
fn a_busy_guest_with_room_tells_the_drive_of_dead_segments() {
    for telling in [false, true] {
        let mut fixture = Setup { blocks: 4096, ..Setup::default() }.fixture(1);
        for first in (0..24).map(|part| part * 48) {
            fixture.write_blocks(first..first + 48).unwrap();
        }
        fixture.checkpoint().unwrap();
        fixture.log.telling.store(telling, Ordering::Relaxed);
        let mut most = 0;
        for first in (0..24).map(|part| part * 48) {
            fixture.write_blocks(first..first + 48).unwrap();
            while fixture.step() {}
            most = most.max(fixture.log.append_state().segments().dead_count());
        }
        let state = fixture.log.append_state();
        assert!(state.segments().obtainable() > 20, "there is room");
        let enough = told_from(state.segments().limit(), true).unwrap().max(FREED_TOGETHER);
        assert_eq!(most <= enough, telling, "{most} of {}", state.segments().limit());
    }
}

/// Cleaners share the memory, and a daemon may have many disks.
#[test]
fn memory_for_copies_is_taken_when_there_are_some_and_given_back_when_there_are_none() {
    let memory = CopyMemory::new(1 << 20);
    let mut fixture = Setup { blocks: 512, ..Setup::default() }.fixture(1);
    fixture.log.copy_memory.set(memory.clone()).expect("nothing has been copied");
    let run_bytes = |fixture: &Fixture| fixture.log.run_bytes.load(Ordering::Relaxed);
    for round in 0..64 {
        fixture.write_blocks(round % 8 * 64..round % 8 * 64 + 33).unwrap();
    }
    assert_eq!(run_bytes(&fixture), 0);
    let (victim, segment) = fixture.maintenance.cleaner.choose_victim().expect("old versions");
    fixture.maintenance(|it| it.cleaner.clean(&mut it.writer, (victim, segment))).unwrap();
    assert!(run_bytes(&fixture) > 0);
    assert_eq!(memory.lend().bytes(), 0, "all of it is lent");
    fixture.quiet();
    let pause = fixture.maintenance.next_pause().expect("there is something to give back");
    // However late this runs: the pause was set before.
    assert!(pause <= Instant::now() + Duration::from_secs(10));
    // Work that gives space back comes first, and uses the memory.
    (0..4).for_each(|_| fixture.maintenance.pause());
    assert_eq!((run_bytes(&fixture), memory.lend().bytes()), (0, 1 << 20));
}

/// An eighth of the image, and no more than is appended between two checkpoints.
#[test]
fn a_busy_guest_keeps_an_eighth_of_the_image_or_what_a_checkpoint_frees() {
    for (segment_bytes, segments, pool) in
        [(SEGMENT_BYTES, 80, 10), (SEGMENT_BYTES, 9, 2), (64 << 20, 200, 8)]
    {
        let fixture = Setup { blocks: 4096, segment_bytes, ..Setup::default() }.fixture(1);
        fixture.log.set_limit(segments);
        let kept = kept_from_writes(&fixture);
        assert!(kept > 1);
        assert_eq!(
            fixture
                .maintenance
                .writer
                .space
                .recycled_kept_in_use(fixture.maintenance.writer.interval()),
            kept + pool,
            "{segments} segments"
        );
    }
}

/// Each refusal costs the host work.
#[test]
fn a_host_that_was_full_just_now_is_not_asked_again() {
    let mut fixture = Setup { blocks: 4096, ..Setup::default() }.fixture(1);
    fixture.write_blocks(0..1).unwrap();
    fixture.maintenance.writer.space.release_reserve();
    make_ready(&fixture, 1);
    let available =
        |fixture: &Fixture| fixture.maintenance.writer.space.available(&fixture.log.append_state());
    assert!(available(&fixture) > 1);
    // On a busy machine the period may have passed before the second request.
    flowstone_testkit::wait_until("it is asked soon", || {
        let began = Instant::now();
        fixture.disk.inject(Fault::fail(Errno::NOSPC).on(Call::Allocate).always());
        std::thread::sleep(FULL_RETRY);
        assert_eq!(fixture.maintenance.writer.provide(), Progress::Idle);
        assert_eq!(available(&fixture), 1, "only what is ready");
        fixture.disk.clear_faults();
        let full = Instant::now();
        let second = fixture.maintenance.writer.provide();
        let was_soon = began.elapsed() < 2 * FULL_RETRY && full.elapsed() < FULL_RETRY / 2;
        assert!(!was_soon || second == Progress::Idle);
        was_soon
    });
    std::thread::sleep(FULL_RETRY);
    assert_eq!(fixture.maintenance.writer.provide(), Progress::Made);
}

/// One call for all wanted segments; if the host has less, one segment at a time, and the partial
/// allocation of the call is freed.
#[test]
fn a_host_without_space_for_all_gives_what_it_has() {
    let mut fixture = Setup { blocks: 4096, ..Setup::default() }.fixture(1);
    fixture.write_blocks(0..1).unwrap();
    fixture.maintenance.writer.space.release_reserve();
    let before = fixture.log.append_state().segments().ready_or_obtainable();
    let wanted = kept_from_writes(&fixture) + KEPT;
    fixture.disk.inject(Fault::fail(Errno::NOSPC).on(Call::Allocate));
    assert_eq!((fixture.maintenance.writer.provide(), ready(&fixture)), (Progress::Made, 1));
    assert_eq!((fixture.maintenance.writer.provide(), ready(&fixture)), (Progress::Made, wanted));
    assert_eq!(fixture.log.append_state().segments().ready_or_obtainable(), before);
    fixture.write_blocks(0..200).unwrap();
    fixture.check();
}

/// An image that was not closed could not be opened on a full host: its restart needs space. It can
/// be read, and takes writes when there is space.
#[test]
fn an_image_that_was_not_closed_is_read_on_a_full_host_and_written_when_there_is_room() {
    let mut fixture = Setup { blocks: 512, ..Setup::default() }.fixture(1);
    fixture.guests().mix = Mix::writes(0..100);
    fixture.run(300);
    fixture.flush().unwrap();
    let (setup, (disk, model)) = (fixture.setup, fixture.abandon());
    let crashed = disk.crash_at(disk.now(), &mut Fate::everything());
    crashed.inject(Fault::fail(Errno::NOSPC).on(Call::Allocate).always());
    let model = HistoryModel::new(model.latest(), model.next_stamp());
    let mut fixture = Fixture::open(&crashed, setup, model, 1).unwrap();
    let seen = fixture.contents();
    assert!(seen.iter().any(|stamp| *stamp != 0));
    assert_eq!(fixture.write_blocks(0..1), Err(Errno::NOSPC));
    // A stop meanwhile leaves it unchanged.
    let (disk, model) = fixture.close();
    let model = HistoryModel::new(model.latest(), model.next_stamp());
    let mut fixture = Fixture::open(&disk, setup, model, 2).unwrap();
    assert!(fixture.contents() == seen);
    disk.clear_faults();
    std::thread::sleep(FULL_RETRY);
    fixture.write_blocks(0..1).unwrap();
    fixture.check();
}

/// After a crash it is unknown which of them are allocated.
#[test]
fn free_segments_have_no_space_of_the_host_after_a_crash() {
    let mut fixture = Setup { blocks: 4096, ..Setup::default() }.fixture(1);
    fixture.guests().mix = Mix::writes(0..100);
    fixture.run(600);
    fixture.flush().unwrap();
    fixture.checkpoint().unwrap();
    fixture.run(20);
    fixture.flush().unwrap();
    let (disk, _) = fixture.abandon();
    let killed = disk.kill_at(disk.now(), &mut Fate::everything());
    let held = |disk: &flowstone_sim::SimDisk, number: u32| {
        let start = u64::from(number) * SEGMENT_BYTES;
        let bytes = disk.to_bytes();
        let end = bytes.len().min((start + SEGMENT_BYTES) as usize);
        bytes.get(start as usize..end).is_some_and(|it| it.iter().any(|byte| *byte != 0))
    };
    let before = killed.crash_at(killed.now(), &mut Fate::everything());
    let (log, _, _) = begin(Box::new(killed.clone()), None).unwrap();
    let free: Vec<u32> = {
        let state = log.append_state();
        let free = state.segments().iter().filter(|(_, segment)| segment.state == State::Free);
        free.map(|(number, _)| number.get()).collect()
    };
    assert!(free.iter().any(|number| held(&before, *number)), "{free:?}");
    assert!(!free.iter().any(|number| held(&killed, *number)), "{free:?}");
}
