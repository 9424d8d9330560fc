//! Each kind of maintenance, with each call to the host failing once, for a while or for ever, and
//! then a power cut or a kill at various moments; on hosts that are short of space, or return
//! garbage for discarded space; with `check` and `check --repair` between the end and the next
//! open.

use flowstone_block::{Errno, SectorCount};
use flowstone_fileio::FileIo;
use flowstone_log_format::SegmentId;
use flowstone_log_store::segments::State;
use flowstone_sim::{Call, Fate, Fault, Landed, Schedule, SimDisk};

use super::crash::{Tell, go_on, recover, some_moments};
use super::fixture::{BLOCK_SECTORS, Fixture, Mix, SEGMENT_BYTES, Setup, without_history};
use super::history_model::{End, HistoryModel};
use crate::check::{check, repair};
use crate::command::Command;
use crate::load::load;
use crate::maintenance::Maintenance;

const SUPERBLOCKS: std::ops::Range<u64> = 0..SEGMENT_BYTES;
const SEGMENTS: std::ops::Range<u64> = SEGMENT_BYTES..u64::MAX;

const WORKS: [Work; 5] =
    [Work::Checkpoints, Work::Cleaning, Work::Larger, Work::Smaller, Work::Compact];
const TROUBLES: [Trouble; 20] = [
    Trouble::Fails(Call::Read, SEGMENTS, Landed::Nothing),
    Trouble::Fails(Call::Write, SEGMENTS, Landed::Nothing),
    Trouble::Fails(Call::Write, SEGMENTS, Landed::FirstHalf),
    Trouble::Fails(Call::Write, SEGMENTS, Landed::SecondHalf),
    Trouble::Fails(Call::Write, SEGMENTS, Landed::Whole),
    Trouble::Fails(Call::Write, SUPERBLOCKS, Landed::Nothing),
    Trouble::Fails(Call::Write, SUPERBLOCKS, Landed::FirstHalf),
    Trouble::Fails(Call::Write, SUPERBLOCKS, Landed::SecondHalf),
    Trouble::Fails(Call::Write, SUPERBLOCKS, Landed::Whole),
    Trouble::Fails(Call::Datasync, 0..u64::MAX, Landed::Nothing),
    Trouble::Fails(Call::Datasync, 0..u64::MAX, Landed::Whole),
    Trouble::Fails(Call::Allocate, SEGMENTS, Landed::Nothing),
    Trouble::Fails(Call::Allocate, SEGMENTS, Landed::FirstHalf),
    Trouble::Fails(Call::Allocate, SEGMENTS, Landed::Whole),
    Trouble::Fails(Call::Punch, SEGMENTS, Landed::Nothing),
    Trouble::Fails(Call::Punch, SEGMENTS, Landed::Whole),
    Trouble::Fails(Call::SetSize, 0..u64::MAX, Landed::Nothing),
    Trouble::Fails(Call::SetSize, 0..u64::MAX, Landed::Whole),
    Trouble::LacksSpace,
    Trouble::ReservesNothing,
];
const LASTS: [Lasts; 3] = [Lasts::Once, Lasts::AWhile, Lasts::ForEver];

/// All combinations.
pub const CASES: usize = WORKS.len() * TROUBLES.len() * LASTS.len();

#[derive(Clone, Copy, Debug)]
enum Work {
    Checkpoints,
    Cleaning,
    Larger,
    Smaller,
    Compact,
}

#[derive(Clone, Debug)]
enum Trouble {
    /// A call fails, after this part of its work was done.
    Fails(Call, std::ops::Range<u64>, Landed),
    /// The host has no free space.
    LacksSpace,
    /// The host also cannot preallocate.
    ReservesNothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lasts {
    Once,
    AWhile,
    ForEver,
}

/// Half a disk in no order, all of it durable.
fn used(setup: Setup, seed: u64) -> Fixture {
    let mut fixture = setup.fixture(seed);
    fixture.guests().mix = Mix { blocks_max: 3, ..Mix::writes(0..setup.blocks / 2) };
    fixture.run(setup.blocks as u32 * 3);
    fixture.flush().unwrap();
    let (disk, model) = fixture.close();
    let disk = without_history(&disk);
    disk.set_schedule(Schedule::Shuffled { seed });
    Fixture::open(&disk, setup, HistoryModel::new(model.latest(), model.next_stamp()), seed)
        .unwrap()
}

fn begin(trouble: &Trouble, lasts: Lasts, after: u64, disk: &SimDisk) {
    let fault = match trouble.clone() {
        // Calls without an offset fail wherever they are.
        Trouble::Fails(call @ (Call::Datasync | Call::SetSize), _, landed) => {
            Fault::fail(Errno::IO).landed(landed).on(call)
        }
        Trouble::Fails(call, range, landed) => {
            Fault::fail(Errno::IO).landed(landed).on(call).within(range)
        }
        Trouble::LacksSpace | Trouble::ReservesNothing => {
            let more = after * 4096;
            disk.set_capacity(Some(disk.allocated_bytes().unwrap() + more));
            if matches!(trouble, Trouble::ReservesNothing) {
                disk.inject(Fault::lose().on(Call::Allocate).always());
            }
            return;
        }
    };
    let fault = fault.after(after);
    disk.inject(if lasts == Lasts::Once { fault } else { fault.always() });
}

fn end(disk: &SimDisk) {
    disk.clear_faults();
    disk.set_capacity(None);
}

/// Does the work, which may fail.
fn work(fixture: &mut Fixture, work: Work) {
    let blocks = fixture.setup.blocks;
    fixture.guests().mix = Mix { flush_percent: 15, depth: 6, ..Mix::on(blocks / 2) };
    fixture.guests().quota = 30;
    match work {
        Work::Checkpoints => drop(fixture.checkpoint()),
        Work::Cleaning => {
            fixture.guests().mix.blocks_max = 4;
            fixture.guests().quota = 250;
        }
        Work::Larger => resize(fixture, blocks * 2),
        Work::Smaller => resize(fixture, blocks * 3 / 4),
        Work::Compact => drop(fixture.maintenance(Maintenance::compact)),
    }
    let quota = std::mem::take(&mut fixture.guests().quota);
    fixture.run(quota);
}

fn resize(fixture: &mut Fixture, blocks: u64) {
    let capacity = SectorCount::new(blocks * BLOCK_SECTORS);
    let segments = fixture.log.shape.segments_for(blocks).unwrap();
    let log = std::sync::Arc::clone(&fixture.log);
    let volume = std::sync::Arc::clone(&fixture.volume);
    let _ = volume.resize_while(capacity, || {
        let answer = log.inbox.ask(Command::Resize { capacity: capacity.get(), segments });
        fixture.maintenance(Maintenance::run_commands);
        answer.wait()
    });
}

/// Fills discarded space with garbage: its content is undefined.
fn put_garbage_into_free_space(disk: &SimDisk, seed: u64) {
    let Ok(loaded) = load(disk, None) else { return };
    let mut random = fastrand::Rng::with_seed(seed);
    let in_file = (disk.size().unwrap() / SEGMENT_BYTES) as u32;
    for number in
        (1..in_file).filter(|it| loaded.segments.get(SegmentId::new(*it)).state == State::Free)
    {
        let block = random.u64(..SEGMENT_BYTES / 4096);
        let bytes: Vec<u8> = (0..4096).map(|_| random.u8(..)).collect();
        disk.write_at(u64::from(number) * SEGMENT_BYTES + block * 4096, &bytes);
        disk.write_at(u64::from(number) * SEGMENT_BYTES, &bytes);
    }
}

/// Asserts that a check finds no damage after a crash.
fn look_and_repair(disk: &SimDisk, repairs: bool) {
    let nothing = &mut |_, _| {};
    let report = match repairs {
        false => check("image", disk, true, false, nothing),
        true => repair("image", Box::new(disk.clone()), true, false, nothing),
    };
    let report = report.unwrap();
    assert_eq!(report.error_count, 0, "{:?} {:?}", report.errors, report.notes);
    assert!(report.repairs.is_empty(), "{:?}", report.repairs);
}

/// The resized size may be lost in a crash: takes the size from the superblock.
fn with_size_of(disk: &SimDisk, setup: Setup, model: &HistoryModel) -> (Setup, HistoryModel) {
    let sectors = load(disk, None).unwrap().superblock.capacity_sectors;
    (Setup { blocks: sectors / BLOCK_SECTORS, ..setup }, model.resized(sectors))
}

/// One combination.
pub fn run(case: usize, seed: u64) {
    let (kind, rest) = (WORKS[case % WORKS.len()], case / WORKS.len());
    let (trouble, lasts) = (&TROUBLES[rest % TROUBLES.len()], LASTS[rest / TROUBLES.len()]);
    let after = (case as u64 * 7 + seed * 5) % 19;
    let _tell = Tell(format!("case {case}, seed {seed}: {kind:?}, {trouble:?} {lasts:?}, {after}"));
    let setup = Setup { split: (case as u64 + seed) % 2 == 1, ..Setup::default() };
    let mut fixture = used(setup, seed);
    let disk = fixture.disk.clone();
    disk.set_size(80 * SEGMENT_BYTES).unwrap();
    fixture.flush().unwrap();
    let start = disk.now();
    begin(trouble, lasts, after, &disk);
    work(&mut fixture, kind);
    if lasts != Lasts::ForEver {
        end(&disk);
        fixture.run(20);
    }
    let (disk, model) = fixture.abandon();
    end(&disk);
    for (index, moment) in some_moments(&disk, 12).filter(|it| *it >= start).enumerate() {
        let number = index as u64 + seed;
        let (ended, crashed) = match index % 3 {
            0 => (End::Kill, disk.kill_at(moment, &mut Fate::seeded(number))),
            _ => (End::PowerCut, disk.crash_at(moment, &mut Fate::seeded(number))),
        };
        let _tell = Tell(format!("{ended:?} at {moment:?}"));
        if index % 4 == 1 {
            put_garbage_into_free_space(&crashed, number);
        }
        if index % 2 == 0 {
            look_and_repair(&crashed, index % 4 == 0);
        }
        let (setup, model) = with_size_of(&crashed, setup, &model);
        let fixture = recover(&crashed, setup, &model, moment, ended, number);
        if index % 5 == 0 {
            go_on(fixture, 20);
        }
    }
}

fn all_that_last(lasts: Lasts) {
    let each = CASES / LASTS.len();
    let first = LASTS.iter().position(|it| *it == lasts).unwrap() * each;
    (first..first + each).for_each(|case| run(case, case as u64 % 3));
}

#[test]
fn no_single_failure_of_the_host_costs_what_was_promised() {
    all_that_last(Lasts::Once);
}

#[test]
fn no_failure_of_the_host_for_a_while_costs_what_was_promised() {
    all_that_last(Lasts::AWhile);
}

#[test]
fn no_failure_of_the_host_for_ever_costs_what_was_promised() {
    all_that_last(Lasts::ForEver);
}
