//! Two records of copies are on their way: writes and reads of cleaning fail, guests discard and overwrite what is being
//! copied, segments are used again; then power is cut, or the daemon killed, at moments of it.

use flowstone_block::Errno;
use flowstone_sim::{Call, Fate, Fault, Moment, Schedule};

use super::crash::{Tell, go_on, look, recover};
use super::fixture::{Fixture, Mix, SEGMENT_BYTES, Setup};
use super::history_model::{End, HistoryModel};
use super::resize::resize_alone;
use crate::log::ids::SegmentId;
use crate::log::maintenance::Maintenance;
use crate::log::policy::LIFETIME_CLEANED;
use crate::log::segments::{Segment, State};

const SEGMENTS: std::ops::Range<u64> = SEGMENT_BYTES..u64::MAX;

fn trouble(seed: u64, round: u64, fixture: &Fixture) {
    let number = seed * 31 + round * 7;
    let failure = match number % 5 {
        0 => Fault::fail(Errno::IO).on(Call::Write),
        1 => Fault::fail_partly(Errno::IO).on(Call::Write),
        2 => Fault::fail(Errno::NOSPC).on(Call::Write),
        3 => Fault::fail(Errno::IO).on(Call::Read),
        _ => return,
    };
    fixture.disk.inject(failure.within(SEGMENTS).after(number / 5 % 9));
}

/// Everything that cleaning does, with trouble.
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
        let found = fixture.maintenance.choose_victim();
        if let Some((victim, segment)) = found {
            let _ = fixture.maintenance(|it| it.clean(victim, segment));
        }
        let _ = fixture.maintenance(Maintenance::release_freeable);
        if (seed + round).is_multiple_of(4) {
            let _ = fixture.checkpoint();
        }
        if (seed + round) % 9 == 3 {
            fixture.core.resorting.set_limit(1 << 40);
            fixture.maintenance(Maintenance::look_for_idle);
            let _ = fixture.maintenance(Maintenance::resort);
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

/// Copies of a second record were in the map although the first one, which replay must find before, could not be
/// written. Then the victim could die of the guest's writes to the others and be used again, and a crash lose them.
#[test]
fn copies_behind_a_record_that_failed_are_not_in_the_map() {
    for seed in 0..8 {
        let _tell = Tell(format!("seed {seed}"));
        let setup = Setup { blocks: 256, queues: 1, ..Setup::default() };
        let fixture = setup.fixture(seed);
        fixture.disk.set_schedule(Schedule::Shuffled { seed });
        let mut fixture = fixture.reopen().unwrap();
        fixture.write_blocks(0..160).unwrap();
        for lba in (0..160).filter(|lba| lba % 3 > 0) {
            fixture.write_blocks(lba..lba + 1).unwrap();
        }
        let sparse: Vec<(SegmentId, Segment)> = {
            let state = fixture.core.append_state();
            let is_sparse = |it: &Segment| it.state == State::Sealed && (17..24).contains(&it.live);
            state.segments.iter().filter(|(_, it)| it.lifetime == 0 && is_sparse(it)).collect()
        };
        let (first, segment) = sparse[0];
        fixture.maintenance.clean_into(LIFETIME_CLEANED, first, segment).unwrap();
        fixture.maintenance.end_copying();
        fixture.checkpoint().unwrap();
        let victim = sparse[1].0;
        let segment = fixture.core.append_state().segments.get(victim);
        assert!(!segment.pinned, "{segment:?}");
        let failure =
            if seed % 2 == 0 { Fault::fail(Errno::IO) } else { Fault::fail_partly(Errno::IO) };
        fixture.disk.inject(failure.on(Call::Write).within(SEGMENTS).after(seed / 2 % 2));
        fixture.maintenance.clean_into(LIFETIME_CLEANED, victim, segment).unwrap_err();
        fixture.maintenance.end_copying();
        let shape = fixture.core.shape;
        let is_in_victim = |fixture: &Fixture, lba: u64| {
            let map_entry = fixture.core.map.get(lba);
            map_entry.is_mapped() && shape.segment_of(map_entry.address()) == victim
        };
        for lba in 0..160 {
            if is_in_victim(&fixture, lba) {
                fixture.write_blocks(lba..lba + 1).unwrap();
            }
        }
        fixture.flush().unwrap();
        fixture.maintenance.release_freeable().unwrap();
        // What is free may be written at once.
        let freed = fixture.core.append_state().segments.get(victim);
        if matches!(freed.state, State::Free | State::Ready) {
            let start = shape.address(victim, 0).offset().get();
            fixture.disk.write_at(start, &vec![0x5a; SEGMENT_BYTES as usize]);
        }
        let (disk, model) = fixture.abandon();
        let now = disk.now();
        let crashed = disk.crash_at(now, &mut Fate::everything());
        recover(&crashed, setup, &model, now, End::PowerCut, seed).check();
    }
}
