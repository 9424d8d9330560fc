//! Tests of the re-sorting pass: the blocks it sorts, its budget, and when it stops.

use std::time::Instant;

use flowstone_block::{Errno, Outcome};
use flowstone_fileio::FileIo;
use flowstone_sim::{Call, Fault, Landed, Schedule};

use super::compact::{cut_everywhere, disordered};
use super::crash::Tell;
use super::fixture::{Fixture, Mix, SEGMENT_BYTES, Setup};
use super::scheduler::with_hook;
use crate::maintenance::Maintenance;
use crate::volume::map::LEAF_BLOCKS;
use flowstone_log_format::LIFETIME_SORTED;

const UNLIMITED: u64 = 1 << 40;

/// A disk of three leaves, all of it live and in no order.
fn scattered(seed: u64) -> (Setup, Fixture) {
    let setup = Setup { blocks: 3 * LEAF_BLOCKS - 100, segment_bytes: 1 << 20, ..Setup::default() };
    let (disk, model) = disordered(setup, setup.blocks, seed);
    let fixture = Fixture::open(&disk, setup, model, seed).unwrap();
    fixture.volume.resorting.set_limit(UNLIMITED);
    (setup, fixture)
}

fn resort(fixture: &mut Fixture) -> Outcome {
    fixture.maintenance(|it| it.resort.look_at_guests());
    fixture.maintenance(|it| it.resort.run(&mut it.cleaner, &mut it.writer))
}

/// Returns the hours until the worker wakes up by itself, rounded up, when it has no more work for
/// a pause: how many pauses that takes depends on the time that allocations took.
fn hours_of_sleep(fixture: &mut Fixture) -> Option<u64> {
    fixture.quiet();
    for _ in 0..8 {
        let next = fixture.maintenance.next_pause()?;
        let hours = next.duration_since(Instant::now()).as_secs().div_ceil(3600);
        if hours > 1 {
            return Some(hours);
        }
        fixture.maintenance(Maintenance::pause);
    }
    panic!("its pauses do not end");
}

/// Returns the contiguous pieces of the file that a read of the whole disk touches.
fn runs(fixture: &Fixture) -> usize {
    let map = &fixture.volume.map;
    let mapped = (0..fixture.volume.blocks()).filter(|lba| map.get(*lba).is_mapped());
    let places: Vec<_> = mapped.map(|lba| map.get(lba).address()).collect();
    1 + places.windows(2).filter(|pair| !pair[0].is_followed_by(pair[1])).count()
}

#[test]
fn scattered_blocks_come_in_order() {
    let (_, mut fixture) = scattered(1);
    let before = (runs(&fixture), fixture.contents());
    resort(&mut fixture).unwrap();
    assert!(before.0 > 1000 && runs(&fixture) < 60, "{} runs of {}", runs(&fixture), before.0);
    assert!(fixture.contents() == before.1);
    fixture.check();
    assert_eq!(fixture.volume.resorting.passes(), 1);
    let written = fixture.volume.resorting.written();
    assert!(written > 6000 * 4096, "{written} bytes");
    // All is in order: another pass writes nothing.
    fixture.quiet();
    resort(&mut fixture).unwrap();
    assert_eq!(fixture.volume.resorting.passes(), 2);
    assert_eq!(fixture.volume.resorting.written(), written);
    // The image stays in use, and scattered blocks are not searched for before there are many.
    assert!(!fixture.maintenance.resort.is_due());
    fixture.guests().mix = Mix::writes(0..1000);
    fixture.run(2000);
    fixture.check();
    assert_eq!(fixture.guests().failures, []);
    fixture.run(4000);
    assert!(fixture.maintenance.resort.is_due());
}

#[test]
fn its_budget_is_kept() {
    let (_, mut fixture) = scattered(2);
    let limit = 9 << 20;
    fixture.volume.resorting.set_limit(limit);
    (0..3).for_each(|_| resort(&mut fixture).unwrap());
    let written = fixture.volume.resorting.written();
    // One leaf is begun while some budget is left, with the cleaning for it.
    assert!((limit..limit + (40 << 20)).contains(&written), "{written} bytes");
    assert_eq!(fixture.volume.resorting.passes(), 0);
    assert!(!fixture.maintenance.resort.is_due());
    fixture.volume.resorting.set_limit(0);
    assert!(!fixture.maintenance.resort.is_due());
}

/// An image that stays idle continues with a new budget: nothing else would wake its worker.
#[test]
fn a_pass_without_a_budget_goes_on_when_its_day_is_over() {
    let (_, mut fixture) = scattered(2);
    fixture.volume.resorting.set_limit(9 << 20);
    while fixture.maintenance.resort.is_due() {
        resort(&mut fixture).unwrap();
    }
    assert_eq!(hours_of_sleep(&mut fixture), Some(24));
    // An image in order, or not to be changed, does not wake the worker.
    fixture.volume.resorting.set_limit(UNLIMITED);
    resort(&mut fixture).unwrap();
    assert_eq!(hours_of_sleep(&mut fixture), None);
}

#[test]
fn guests_that_do_anything_stop_it() {
    for reads in [true, false] {
        let (_, mut fixture) = scattered(3);
        fixture.maintenance(|it| it.resort.look_at_guests());
        if reads {
            fixture.read(0..8).unwrap();
        } else {
            fixture.write_blocks(0..1).unwrap();
        }
        fixture.maintenance(|it| it.resort.run(&mut it.cleaner, &mut it.writer)).unwrap();
        assert_eq!(fixture.volume.resorting.written(), 0);
        // From then on they are idle.
        fixture.maintenance(|it| it.resort.run(&mut it.cleaner, &mut it.writer)).unwrap();
        assert!(fixture.volume.resorting.written() > 0);
    }
}

/// The image may use no more segments than it has, and guests must not wait for any of them.
#[test]
fn guests_find_room_while_it_is_at_work() {
    for seed in 0..3 {
        let _tell = Tell(format!("seed {seed}"));
        let (setup, mut fixture) = scattered(seed);
        fixture.guests().mix = Mix { depth: 6, ..Mix::on(setup.blocks) };
        for _ in 0..20 {
            fixture.guests().quota = 30;
            let _ = resort(&mut fixture);
            fixture.run(100);
        }
        assert_eq!(fixture.guests().failures, [], "{}", fixture.describe());
        fixture.check();
        assert!(fixture.volume.resorting.written() > 0);
    }
}

/// A refusal of the host ends the pass, and nothing else.
#[test]
fn a_host_without_room_is_left_alone() {
    for more in 0..6 {
        let _tell = Tell(format!("{more} more"));
        let (setup, mut fixture) = scattered(more);
        let room = fixture.disk.allocated_bytes().unwrap() + more * SEGMENT_BYTES;
        fixture.disk.set_capacity(Some(room));
        let before = fixture.contents();
        for _ in 0..3 {
            let _ = resort(&mut fixture);
        }
        assert!(fixture.contents() == before);
        fixture.check();
        fixture.disk.set_capacity(None);
        fixture.guests().mix = Mix::writes(0..setup.blocks);
        fixture.run(500);
        fixture.check();
        let fixture = fixture.reopen().unwrap();
        assert_eq!(fixture.guests().failures, []);
    }
}

#[test]
fn errors_of_the_host_lose_nothing() {
    let calls = [(Call::Read, 700u64), (Call::Write, 3), (Call::Write, 40), (Call::Datasync, 0)];
    for ((call, after), landed) in
        calls.into_iter().flat_map(|call| Landed::ALL.map(|landed| (call, landed)))
    {
        let _tell = Tell(format!("{call:?} after {after}, {landed:?}"));
        let (_, mut fixture) = scattered(after);
        let before = fixture.contents();
        fixture.disk.inject(Fault::fail(Errno::IO).landed(landed).on(call).after(after));
        let _ = resort(&mut fixture);
        fixture.disk.clear_faults();
        assert!(fixture.contents() == before);
        fixture.check();
        fixture.close();
    }
}

#[test]
fn power_cuts_in_it_lose_nothing() {
    for seed in 0..4 {
        let _tell = Tell(format!("seed {seed}"));
        let setup = Setup { split: seed % 2 == 1, ..Setup::default() };
        let (disk, model) = disordered(setup, setup.blocks, seed);
        disk.set_schedule(Schedule::Shuffled { seed });
        let mut fixture = Fixture::open(&disk, setup, model, seed).unwrap();
        fixture.volume.resorting.set_limit(UNLIMITED);
        fixture.guests().mix = Mix { depth: 12, ..Mix::on(setup.blocks) };
        for _ in 0..3 {
            fixture.guests().quota = 60;
            let _ = resort(&mut fixture);
            fixture.run(30);
        }
        assert!(fixture.volume.resorting.written() > 0);
        fixture.guests().quota = 0;
        fixture.drain();
        assert_eq!(fixture.guests().failures, []);
        fixture.check();
        cut_everywhere(fixture, setup, 100);
    }
}

/// Records of small segments are short: headers between them do not count as disorder, or every
/// pass would rewrite everything.
#[test]
fn what_is_in_order_is_left_alone_in_segments_of_any_size() {
    for segment_bytes in [256 << 10, 512 << 10, 1 << 20, 4 << 20] {
        let _tell = Tell(format!("segments of {segment_bytes}"));
        let setup = Setup { blocks: 2 * LEAF_BLOCKS, segment_bytes, ..Setup::default() };
        let (disk, model) = disordered(setup, setup.blocks, 1);
        let mut fixture = Fixture::open(&disk, setup, model, 1).unwrap();
        fixture.volume.resorting.set_limit(UNLIMITED);
        while fixture.volume.resorting.passes() < 1 {
            resort(&mut fixture).unwrap();
        }
        let written = fixture.volume.resorting.written();
        assert!(written > 4096 * setup.blocks / 2, "{written} bytes");
        fixture.quiet();
        resort(&mut fixture).unwrap();
        assert_eq!(fixture.volume.resorting.passes(), 2);
        let more = fixture.volume.resorting.written() - written;
        assert!(more <= written / 20, "{more} bytes more after {written}");
    }
}

/// A request of 128 KiB reads one piece of the file, whatever holes the disk has: no record header
/// lies inside that, nor does the end of a segment.
#[test]
fn what_is_in_order_is_read_in_one_piece() {
    for by_compact in [false, true] {
        let setup = Setup { blocks: 8000, segment_bytes: 4 << 20, ..Setup::default() };
        let (disk, model) = disordered(setup, setup.blocks, 2);
        let mut fixture = Fixture::open(&disk, setup, model, 2).unwrap();
        for first in (5..setup.blocks - 3).step_by(97) {
            fixture.zero(first * 8..(first + 1 + first % 3) * 8).unwrap();
        }
        fixture.volume.resorting.set_limit(UNLIMITED);
        match by_compact {
            true => fixture.maintenance(Maintenance::compact).unwrap(),
            false => resort(&mut fixture).unwrap(),
        }
        let map = &fixture.volume.map;
        let in_pieces = (0..setup.blocks - 1).filter(|lba| {
            let (this, next) = (map.get(*lba), map.get(lba + 1));
            let both = this.is_mapped() && next.is_mapped() && (lba + 1) % 32 != 0;
            both && this.address().forward(1) != next.address()
        });
        assert_eq!(in_pieces.collect::<Vec<_>>(), [0; 0]);
        // Besides the seal, a segment of 1024 blocks has 8 headers, and at its end no room for 32
        // blocks.
        let (state, packed) = (fixture.log.append_state(), map.mapped().div_ceil(1023 - 8 - 31));
        let used = state.segments().iter().filter(|(_, it)| it.lifetime == LIFETIME_SORTED).count();
        assert_eq!(used as u64, packed);
        drop(state);
        fixture.check();
    }
}

/// Blocks behind an unreadable one are sorted all the same.
#[test]
fn a_block_that_cannot_be_read_does_not_keep_others_from_being_put_in_order() {
    let (_, mut fixture) = scattered(5);
    let before = runs(&fixture);
    let bad = fixture.volume.map.get(20).address().offset().get();
    let fault = Fault::fail(Errno::IO).on(Call::Read).within(bad..bad + 4096);
    fixture.disk.inject(fault.always());
    for _ in 0..3 {
        fixture.quiet();
        let _ = resort(&mut fixture);
    }
    fixture.disk.clear_faults();
    assert!(runs(&fixture) < before / 4, "{} runs of {before}", runs(&fixture));
    fixture.check();
}

/// A pass that guests interrupt repeatedly is one pass: its limit of segments is counted from its
/// beginning.
#[test]
fn a_pass_with_breaks_takes_no_more_segments_than_one_without() {
    let setup = Setup { blocks: 6 * LEAF_BLOCKS, segment_bytes: 1 << 20, ..Setup::default() };
    let mut fixture = setup.fixture(1);
    fixture.guests().mix = Mix { depth: 32, ..Mix::writes(0..3 * LEAF_BLOCKS) };
    fixture.run(4000);
    fixture.checkpoint().unwrap();
    fixture.volume.resorting.set_limit(UNLIMITED);
    let used = |fixture: &Fixture| fixture.log.append_state().segments().used();
    let (first, mut most) = (used(&fixture), 0);
    for _ in 0..400 {
        fixture.quiet();
        fixture.maintenance(|it| it.resort.look_at_guests());
        let volume = std::sync::Arc::clone(&fixture.volume);
        with_hook(
            move || volume.resorting.note_read(),
            || {
                let it = &mut fixture.maintenance;
                it.resort.run(&mut it.cleaner, &mut it.writer)
            },
        )
        .unwrap();
        most = most.max(used(&fixture));
        if fixture.volume.resorting.passes() > 0 {
            break;
        }
    }
    assert_eq!(fixture.volume.resorting.passes(), 1);
    assert!(most <= first + first / 4 + 6, "{most} segments, {first} in the beginning");
}

/// Guest writes during the pass are not charged to it.
#[test]
fn guests_writes_are_not_charged_to_the_budget() {
    let (_, mut fixture) = scattered(6);
    fixture.quiet();
    let before = fixture.log.append_state().accounting().totals();
    fixture.maintenance(|it| it.resort.look_at_guests());
    fixture.guests().mix = Mix { blocks_max: 32, depth: 16, ..Mix::writes(0..3000) };
    fixture.guests().quota = 2000;
    fixture.maintenance(|it| it.resort.run(&mut it.cleaner, &mut it.writer)).unwrap();
    let after = fixture.log.append_state().accounting().totals();
    let own =
        after.relocated_blocks - before.relocated_blocks + after.map_blocks - before.map_blocks;
    let charged = fixture.volume.resorting.written() / 4096;
    assert!(charged > 0 && after.appended_blocks - before.appended_blocks > own);
    assert!(charged <= own + own / 10 + 8, "{charged} blocks charged of {own}");
}

/// The position of the pass may lie beyond the new end.
#[test]
fn a_disk_that_shrinks_between_two_parts_of_a_pass_ends_it() {
    let (_, mut fixture) = scattered(7);
    fixture.volume.resorting.set_limit(4 << 20);
    resort(&mut fixture).unwrap();
    assert_eq!(fixture.volume.resorting.passes(), 0);
    fixture.zero(8 * 100..fixture.setup.sectors()).unwrap();
    super::resize::resize_alone(&mut fixture, 100 * 8).unwrap();
    fixture.quiet();
    fixture.volume.resorting.set_limit(UNLIMITED);
    resort(&mut fixture).unwrap();
    assert_eq!(fixture.volume.resorting.passes(), 1);
    assert!(!fixture.maintenance.resort.is_due());
    // And on a disk without any data.
    fixture.zero(0..100 * 8).unwrap();
    fixture.quiet();
    resort(&mut fixture).unwrap();
    fixture.quiet();
    fixture.audit();
}

/// An idle image comes to rest: neither cleaning nor the pass undoes the other's work for ever.
#[test]
fn an_idle_image_comes_to_rest() {
    for segment_bytes in [SEGMENT_BYTES, 1 << 20] {
        let setup = Setup { blocks: 2 * LEAF_BLOCKS, segment_bytes, ..Setup::default() };
        let (disk, model) = disordered(setup, setup.blocks * 2 / 3, 3);
        let mut fixture = Fixture::open(&disk, setup, model, 3).unwrap();
        for first in (0..setup.blocks).step_by(3) {
            fixture.zero(first * 8..first * 8 + 8).unwrap();
        }
        fixture.volume.resorting.set_limit(UNLIMITED);
        let mut written = Vec::new();
        for _ in 0..60 {
            fixture.quiet();
            fixture.maintenance(|maintenance| maintenance.next_pause());
            let seen = fixture.log.commits();
            fixture.maintenance(|it| it.cleaner.clean_sparse(&mut it.writer, seen));
            if fixture.maintenance.resort.is_due() {
                let _ = resort(&mut fixture);
            }
            fixture.maintenance(|it| it.writer.space.trim_reserve());
            if fixture.log.append_state().segments().dead().0 > 0 {
                fixture.checkpoint().unwrap();
            }
            written.push(fixture.log.append_state().accounting().totals().appended_blocks);
        }
        assert_eq!(written[50], written[59], "{written:?}");
        assert!(!fixture.maintenance.resort.is_due());
        assert!(fixture.maintenance.cleaner.sparsest().is_none());
        fixture.check();
    }
}
