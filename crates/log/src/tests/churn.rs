//! A nearly full disk under heavy load: requests of both classes, small and large, aligned or not,
//! with discards and zeroes, many records in flight, beside cleaning and the re-sorting pass; then
//! the daemon is killed or power is cut.

use flowstone_block::{Errno, OpKind};
use flowstone_sim::{Call, Fate, Fault, Landed, Schedule};

use super::crash::{Tell, go_on, recover, some_moments};
use super::fixture::{Fixture, Mix, SEGMENT_BYTES, Setup, without_history};
use super::history_model::{End, HistoryModel};

/// Blocks that guests use, in tenths of the disk.
const USED_TENTHS: u64 = 9;

/// A disk of which nine tenths are in use, in no order, and durable.
fn nearly_full(setup: Setup, seed: u64) -> Fixture {
    let mut fixture = setup.fixture(seed);
    let used = setup.blocks * USED_TENTHS / 10;
    for first in (0..used).step_by(32) {
        fixture.write_blocks(first..used.min(first + 32)).unwrap();
    }
    fixture.guests().mix = Mix { blocks_max: 3, depth: 16, ..Mix::writes(0..used) };
    fixture.run(used as u32 * 2);
    fixture.flush().unwrap();
    let (disk, model) = fixture.close();
    let disk = without_history(&disk);
    disk.set_schedule(Schedule::Shuffled { seed });
    let model = HistoryModel::new(model.latest(), model.next_stamp());
    Fixture::open(&disk, setup, model, seed).unwrap()
}

fn mix(setup: Setup, seed: u64) -> Mix {
    Mix {
        unaligned_percent: 20,
        zero_percent: 10,
        flush_percent: 4,
        read_percent: 5,
        durable_percent: 6,
        blocks_max: if seed.is_multiple_of(2) { 48 } else { 6 },
        region: 0..setup.blocks * USED_TENTHS / 10,
        depth: 24,
    }
}

/// One run; in every third, writes fail now and then.
pub fn run(seed: u64, moments: usize) {
    let segment_bytes = if seed % 4 < 3 { SEGMENT_BYTES } else { 4 * SEGMENT_BYTES };
    let (split, queues) = (!seed.is_multiple_of(3), 1 + seed as usize % 3);
    let setup = Setup { blocks: 1024, split, queues, segment_bytes, ..Setup::default() };
    let mut fixture = nearly_full(setup, seed);
    fixture.volume.resorting.set_limit(1 << 40);
    fixture.guests().mix = mix(setup, seed);
    let copied = fixture.log.append_state().accounting().costs().copied_blocks;
    for round in 0..8u64 {
        if seed % 3 == 2 {
            let fault = Fault::fail(Errno::IO).landed(Landed::nth(seed / 3 + round));
            let fault = fault.on(Call::Write).within(SEGMENT_BYTES..u64::MAX);
            fixture.disk.inject(fault.after(seed * 7 % 13 + round * 5));
        }
        fixture.run(60);
        if round % 3 == 1 {
            fixture.guests().quota = 40;
            fixture.maintenance(|it| it.resort.look_at_guests());
            let _ = fixture.maintenance(|it| it.resort.run(&mut it.cleaner, &mut it.writer));
            fixture.run(1);
        }
        fixture.disk.clear_faults();
    }
    if seed % 3 == 2 {
        let is_change = |kind| !matches!(kind, OpKind::Read | OpKind::Flush);
        assert!(fixture.guests().failures.iter().all(|failure| is_change(failure.kind)));
    } else {
        assert_eq!(fixture.guests().failures, [], "{}", fixture.describe());
    }
    assert!(
        fixture.log.append_state().accounting().costs().copied_blocks > copied,
        "nothing was cleaned"
    );
    let has_damage = fixture.log.append_state().segments().iter().any(|(_, it)| it.damaged);
    assert!(!has_damage, "a victim that can be read was given up");
    fixture.check();
    let opened = fixture.opened;
    let (disk, model) = fixture.abandon();
    for (index, moment) in some_moments(&disk, moments).filter(|it| *it >= opened).enumerate() {
        let number = seed + index as u64;
        let (end, left) = match index % 3 {
            0 => (End::Kill, disk.kill_at(moment, &mut Fate::seeded(number))),
            _ => (End::PowerCut, disk.crash_at(moment, &mut Fate::seeded(number))),
        };
        let _tell = Tell(format!("seed {seed}, {end:?} at {moment:?}"));
        let fixture = recover(&left, setup, &model, moment, end, number);
        if index % 8 == 0 {
            go_on(fixture, 30);
        }
    }
}

#[test]
fn a_nearly_full_disk_of_mixed_classes_survives_kills_and_power_cuts() {
    for seed in 0..6 {
        let _tell = Tell(format!("seed {seed}"));
        run(seed, 40);
    }
}
