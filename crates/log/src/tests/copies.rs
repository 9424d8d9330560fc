//! Tests with two records of copies in flight: writes and reads of cleaning fail, guests discard
//! and overwrite blocks being copied, segments are reused; then power is cut, or the daemon killed,
//! at various moments.

use flowstone_block::{Errno, Outcome};
use flowstone_log_format::{LIFETIME_CLEANED, LIFETIME_MAP, SegmentId};
use flowstone_log_store::segments::{Segment, State};
use flowstone_sim::{Call, Fate, Fault, Landed, Moment, Schedule};

use super::crash::{Tell, go_on, look, recover};
use super::fixture::{BLOCK_SECTORS, Fixture, Mix, SEGMENT_BYTES, Setup};
use super::history_model::{End, HistoryModel};
use super::resize::resize_alone;
use crate::maintenance::{CheckpointKind, Maintenance};

const SEGMENTS: std::ops::Range<u64> = SEGMENT_BYTES..u64::MAX;

fn trouble(seed: u64, round: u64, fixture: &Fixture) {
    let number = seed * 31 + round * 7;
    let landed = Landed::nth(number / 5);
    let failure = match number % 5 {
        0 | 1 => Fault::fail(Errno::IO).landed(landed).on(Call::Write),
        2 => Fault::fail(Errno::NOSPC).landed(landed).on(Call::Write),
        3 => Fault::fail(Errno::IO).on(Call::Read),
        _ => return,
    };
    fixture.disk.inject(failure.within(SEGMENTS).after(number / 5 % 9));
}

/// Everything that cleaning does, with failures.
fn troubled(seed: u64) -> (Fixture, Moment) {
    let segment_bytes = if seed % 4 < 2 { SEGMENT_BYTES } else { 4 * SEGMENT_BYTES };
    let blocks = if seed % 4 < 2 { 256 } else { 1024 };
    let queues = 1 + seed as usize % 2;
    let setup = Setup { blocks, queues, split: seed % 3 == 1, segment_bytes, ..Setup::default() };
    let mut fixture = setup.fixture(seed);
    let used = blocks * 9 / 10;
    for first in (0..used).step_by(32) {
        fixture.write_blocks(first..used.min(first + 32)).unwrap();
    }
    fixture.guests().mix = Mix { blocks_max: 3, depth: 16, ..Mix::writes(0..used) };
    fixture.run(used as u32 * 2);
    fixture.disk.set_schedule(Schedule::Shuffled { seed });
    let mut fixture = fixture.reopen().unwrap();
    fixture.guests().mix = Mix { blocks_max: 4, depth: 12, ..Mix::writes(0..used) };
    fixture.run(60);
    // The streams of copies that are open now are replayed.
    fixture.checkpoint().unwrap();
    let start = fixture.disk.now();
    fixture.guests().mix = Mix {
        unaligned_percent: 15,
        zero_percent: 25,
        flush_percent: 10,
        read_percent: 3,
        durable_percent: 5,
        blocks_max: if seed.is_multiple_of(2) { 12 } else { 3 },
        region: 0..used,
        depth: 12,
    };
    for round in 0..10u64 {
        trouble(seed, round, &fixture);
        fixture.guests().quota = 25;
        let found = fixture.maintenance.cleaner.choose_victim();
        if let Some((victim, segment)) = found {
            let _ = fixture.maintenance(|it| it.cleaner.clean(&mut it.writer, (victim, segment)));
        }
        let _ = fixture.maintenance(|it| it.writer.release_freeable());
        if (seed + round).is_multiple_of(4) {
            let _ = fixture.checkpoint();
        }
        if (seed + round) % 9 == 3 {
            fixture.volume.resorting.set_limit(1 << 40);
            fixture.maintenance(|it| it.resort.look_at_guests());
            let _ = fixture.maintenance(|it| it.resort.run(&mut it.cleaner, &mut it.writer));
        }
        if (seed + round) % 13 == 5 {
            let _ = fixture.maintenance(Maintenance::compact);
        }
        if (seed + round) % 11 == 5 {
            let quota = std::mem::take(&mut fixture.guests().quota);
            fixture.drain();
            let _ = resize_alone(&mut fixture, blocks * 8);
            fixture.guests().quota = quota;
        }
        fixture.run(1);
        fixture.disk.clear_faults();
        fixture.drain();
    }
    (fixture, start)
}

pub fn run(seed: u64, count: usize) {
    let (mut fixture, start) = troubled(seed);
    let setup = fixture.setup;
    fixture.check();
    let (disk, model) = if seed % 5 == 4 { fixture.close() } else { fixture.abandon() };
    let moments: Vec<Moment> = disk.crash_points().filter(|it| *it >= start).collect();
    let step = (moments.len() / count).max(1);
    for (index, moment) in moments.into_iter().skip(seed as usize % step).step_by(step).enumerate()
    {
        let number = seed * 1000 + index as u64;
        let (end, left) = match index % 4 {
            0 => (End::Kill, disk.kill_at(moment, &mut Fate::seeded(number))),
            1 => (End::PowerCut, disk.crash_at(moment, &mut Fate::nothing_more())),
            _ => (End::PowerCut, disk.crash_at(moment, &mut Fate::seeded(number))),
        };
        let _tell = Tell(format!("seed {seed}, {end:?} at {moment:?}"));
        let fixture = recover(&left, setup, &model, moment, end, number);
        if index % 6 == 0 {
            go_on(fixture, 30);
        }
        every_subset(&disk, &model, moment);
    }
}

fn every_subset(disk: &flowstone_sim::SimDisk, model: &HistoryModel, moment: Moment) {
    if disk.undecided_at(moment) > 4 {
        return;
    }
    for crashed in disk.every_crash_at(moment).into_iter().flatten() {
        drop(look(&crashed, model, moment));
    }
}

#[test]
fn copies_on_their_way_survive_failures_and_cuts() {
    for seed in 0..6 {
        let _tell = Tell(format!("seed {seed}"));
        run(seed, 25);
    }
}

/// Returns the blocks that are mapped to segments of this kind.
fn blocks_in(fixture: &Fixture, is_it: impl Fn(SegmentId, &Segment) -> bool) -> Vec<u64> {
    let state = fixture.log.append_state();
    let is_there = |lba: &u64| {
        let map_entry = fixture.volume.map.get(*lba);
        map_entry.is_mapped() && {
            let number = fixture.log.shape.segment_of(map_entry.address());
            is_it(number, &state.segments().get(number))
        }
    };
    (0..fixture.volume.blocks()).filter(is_there).collect()
}

/// Copies of a second record were in the map although the first one, which replay must find before,
/// could not be written. Then the victim could die by the guest's writes to its other blocks and be
/// reused, and a crash lose the copies.
#[test]
fn copies_behind_a_record_that_failed_are_not_in_the_map() {
    for seed in 0..8 {
        let _tell = Tell(format!("seed {seed}"));
        let setup = Setup { blocks: 512, reserve: Some(70), queues: 1, ..Setup::default() };
        let fixture = setup.fixture(seed);
        fixture.disk.set_schedule(Schedule::Shuffled { seed });
        let mut fixture = fixture.reopen().unwrap();
        fixture.write_blocks(0..160).unwrap();
        for lba in (0..160).filter(|lba| lba % 3 > 0) {
            fixture.write_blocks(lba..lba + 1).unwrap();
        }
        let sparse: Vec<(SegmentId, Segment)> = {
            let state = fixture.log.append_state();
            let is_sparse = |it: &Segment| it.state == State::Sealed && (17..24).contains(&it.live);
            state.segments().iter().filter(|(_, it)| it.lifetime == 0 && is_sparse(it)).collect()
        };
        let (first, segment) = sparse[0];
        fixture
            .maintenance
            .cleaner
            .clean_into(&mut fixture.maintenance.writer, LIFETIME_CLEANED, (first, segment))
            .unwrap();
        fixture.log.end_copying();
        fixture.checkpoint().unwrap();
        let victim = sparse[1].0;
        let segment = fixture.log.append_state().segments().get(victim);
        assert!(!segment.pinned, "{segment:?}");
        let failure = Fault::fail(Errno::IO).landed(Landed::nth(seed));
        fixture.disk.inject(failure.on(Call::Write).within(SEGMENTS).after(seed / 2 % 2));
        fixture
            .maintenance
            .cleaner
            .clean_into(&mut fixture.maintenance.writer, LIFETIME_CLEANED, (victim, segment))
            .unwrap_err();
        fixture.log.end_copying();
        for lba in blocks_in(&fixture, |number, _| number == victim) {
            fixture.write_blocks(lba..lba + 1).unwrap();
        }
        fixture.flush().unwrap();
        fixture.maintenance.writer.release_freeable().unwrap();
        // A free segment may be overwritten at once.
        let freed = fixture.log.append_state().segments().get(victim);
        if matches!(freed.state, State::Free | State::Ready) {
            let start = fixture.log.shape.address(victim, 0).offset().get();
            fixture.disk.write_at(start, &vec![0x5a; SEGMENT_BYTES as usize]);
        }
        let (disk, model) = fixture.abandon();
        let now = disk.now();
        let crashed = disk.crash_at(now, &mut Fate::everything());
        recover(&crashed, setup, &model, now, End::PowerCut, seed).check();
    }
}

/// Zeroes a block while the maintenance worker does not run.
fn zero_alone(fixture: &Fixture, lba: u64) {
    let tag = fixture.guests().zero(0, lba * BLOCK_SECTORS..(lba + 1) * BLOCK_SECTORS);
    for _ in 0..1000 {
        let mut guests = fixture.guests();
        guests.kick(0);
        guests.nap(0);
        guests.reap(0);
        if !guests.is_in_flight(tag) {
            return;
        }
    }
    panic!("a discard hangs");
}

/// Zeroes all but the first `count` blocks in a segment.
fn zero_all_but(count: usize, victim: SegmentId, fixture: &Fixture) {
    let lbas = blocks_in(fixture, |number, _| number == victim);
    lbas.iter().skip(count).for_each(|lba| zero_alone(fixture, *lba));
}

/// Cleans without requests meanwhile.
fn clean_alone(victim: SegmentId, fixture: &mut Fixture) -> Outcome {
    let segment = fixture.log.append_state().segments().get(victim);
    let outcome = fixture.maintenance.cleaner.clean_into(
        &mut fixture.maintenance.writer,
        LIFETIME_CLEANED,
        (victim, segment),
    );
    fixture.log.end_copying();
    outcome
}

/// The last copies that fit in a segment were in flight when the stream went on in another one. All
/// else in it was dead: had it been sealed at once, it would have been free for reuse, and had that
/// write failed, it would have been sealed twice.
#[test]
fn a_segment_ends_when_all_copies_on_their_way_to_it_are_in_the_map() {
    for seed in 0..16 {
        let _tell = Tell(format!("seed {seed}"));
        let setup = Setup { blocks: 512, queues: 1, ..Setup::default() };
        let fixture = setup.fixture(seed);
        fixture.disk.set_schedule(Schedule::Shuffled { seed });
        let mut fixture = fixture.reopen().unwrap();
        fixture.write_blocks(0..280).unwrap();
        let victims: Vec<SegmentId> = {
            let state = fixture.log.append_state();
            let is_full = |it: &Segment| it.state == State::Sealed && it.lifetime == 0;
            state
                .segments()
                .iter()
                .filter(|(_, it)| is_full(it))
                .map(|(number, _)| number)
                .collect()
        };
        let (last, before) = victims.split_last().unwrap();
        for victim in before {
            // Three of them leave room for one full record.
            zero_all_but(16, *victim, &fixture);
            clean_alone(*victim, &mut fixture).unwrap();
            if !fixture.maintenance.writer.streams.stays_in_segment(LIFETIME_CLEANED, 9) {
                break;
            }
        }
        assert!(fixture.maintenance.writer.streams.stays_in_segment(LIFETIME_CLEANED, 8));
        for lba in blocks_in(&fixture, |_, it| it.lifetime == LIFETIME_CLEANED) {
            zero_alone(&fixture, lba);
        }
        zero_all_but(24, *last, &fixture);
        let fails = seed % 2 == 1;
        if fails {
            fixture.disk.inject(Fault::fail(Errno::IO).on(Call::Write).within(SEGMENTS));
        }
        assert_eq!(clean_alone(*last, &mut fixture), if fails { Err(Errno::IO) } else { Ok(()) });
        fixture.check();
        fixture.flush().unwrap();
        fixture.maintenance.writer.release_freeable().unwrap();
        fixture.check();
        let (disk, model) = fixture.abandon();
        let now = disk.now();
        let crashed = disk.crash_at(now, &mut Fate::everything());
        go_on(recover(&crashed, setup, &model, now, End::PowerCut, seed), 30);
    }
}

/// Writes until a segment is full again; few of its blocks live then.
fn used_again(fixture: &mut Fixture, number: SegmentId) -> Segment {
    for round in 0..4000 {
        let lba = round % 64;
        fixture.write_blocks(lba..lba + 1).unwrap();
        let segment = fixture.log.append_state().segments().get(number);
        if segment.state == State::Sealed && (1..20).contains(&segment.live) {
            return segment;
        }
    }
    panic!("segment {number} is not used again: {}", fixture.describe());
}

/// A surveyed victim dies, and its segment is reused, before it is cleaned. The survey does not
/// apply to the new content: otherwise nothing of that would be copied, and the segment would count
/// as damaged and stay.
#[test]
fn what_was_seen_of_a_victim_is_forgotten_when_its_segment_is_used_again() {
    for seed in 0..4 {
        let _tell = Tell(format!("seed {seed}"));
        let setup = Setup { blocks: 512, queues: 1, ..Setup::default() };
        let fixture = setup.fixture(seed);
        fixture.disk.set_schedule(Schedule::Shuffled { seed });
        let mut fixture = fixture.reopen().unwrap();
        fixture.guests().mix = Mix { blocks_max: 3, flush_percent: 0, ..Mix::writes(0..480) };
        let begun = |fixture: &Fixture| {
            fixture.maintenance.cleaner.begun_victim().filter(|it| it.1.lifetime != LIFETIME_MAP)
        };
        let mut turns = 0;
        let (victim, before) = loop {
            if let Some(found) = begun(&fixture) {
                break found;
            }
            turns += 1;
            assert!(turns < 4000, "no victim is looked through ahead of its turn");
            if !fixture.step() {
                fixture.run(3);
            }
        };
        // There is room from now on: no other victim is cleaned first.
        (64..480).for_each(|lba| zero_alone(&fixture, lba));
        zero_all_but(0, victim, &fixture);
        fixture.maintenance.writer.checkpoint(CheckpointKind::Running).unwrap();
        let state = fixture.log.append_state().segments().get(victim).state;
        assert!(matches!(state, State::Free | State::Ready), "{state:?}");
        let segment = used_again(&mut fixture, victim);
        assert_ne!(segment.incarnation, before.incarnation);
        clean_alone(victim, &mut fixture).unwrap();
        let now = fixture.log.append_state().segments().get(victim);
        assert_eq!((now.live, now.damaged), (0, false), "of {}", segment.live);
        fixture.check();
    }
}
