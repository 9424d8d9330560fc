//! Holds of the log's lock on an image with thousands of segments in use. Debug builds check at the
//! end of each, in all tests, that it has looked at 64 of them at most.

use flowstone_log_format::BLOCK_BYTES;
use flowstone_log_store::segments::LOOK_MOST;
use flowstone_sim::Fate;

use super::crash::recover;
use super::fixture::{BLOCK_SECTORS, Fixture, Mix, SEGMENT_BYTES, Setup};
use super::history_model::End;
use super::resize::resize_alone;

const SEGMENTS: u64 = 2000;
const SEGMENT_BLOCKS: u64 = SEGMENT_BYTES / BLOCK_BYTES as u64;
const BLOCKS: u64 = SEGMENTS * SEGMENT_BLOCKS;
const MANY: u32 = 4 * LOOK_MOST as u32;

/// Trims from `first` on, in requests of a tenth of the disk.
fn trim_from(fixture: &mut Fixture, first: u64) {
    for at in (first..BLOCKS).step_by(BLOCKS as usize / 10) {
        let end = BLOCKS.min(at + BLOCKS / 10);
        fixture.zero(at * BLOCK_SECTORS..end * BLOCK_SECTORS).unwrap();
    }
}

fn clean(fixture: &mut Fixture) {
    for _ in 0..3 {
        let victim = fixture.maintenance.cleaner.choose_victim().expect("old versions");
        fixture.maintenance(|maintenance| {
            maintenance.cleaner.clean(&mut maintenance.writer, victim).unwrap();
        });
    }
}

#[test]
fn no_hold_of_the_lock_looks_at_many_segments_however_many_are_in_use() {
    let setup = Setup { blocks: BLOCKS, ..Setup::default() };
    let mut fixture = setup.fixture(1);
    for first in (0..BLOCKS - 64).step_by(64) {
        fixture.write_blocks(first..first + 64).unwrap();
    }
    assert!(u64::from(fixture.log.append_state().segments().used()) > SEGMENTS);
    fixture.guests().mix = Mix { blocks_max: 2, ..Mix::writes(0..BLOCKS) };
    fixture.run(2000);
    clean(&mut fixture);
    fixture.checkpoint().unwrap();

    // Those that die now need no checkpoint.
    trim_from(&mut fixture, BLOCKS * 3 / 4);
    assert!(fixture.log.append_state().segments().dead().1 > MANY);
    fixture.maintenance(|it| it.writer.release_freeable()).unwrap();
    assert!(fixture.log.append_state().segments().obtainable() > MANY);

    fixture.guests().mix = Mix { blocks_max: 2, ..Mix::on(BLOCKS / 2) };
    fixture.run(2000);
    fixture.maintenance(|it| it.writer.outdate_sparse_map());
    fixture.checkpoint().unwrap();
    resize_alone(&mut fixture, BLOCKS * 3 / 4 * BLOCK_SECTORS).unwrap();
    resize_alone(&mut fixture, BLOCKS * BLOCK_SECTORS).unwrap();

    // Those that nothing has been freed from yet are pinned.
    for first in (BLOCKS / 2..BLOCKS * 3 / 4).step_by(64) {
        fixture.write_blocks(first..first + 64).unwrap();
    }
    trim_from(&mut fixture, BLOCKS / 8);
    let (dead, freeable) = fixture.log.append_state().segments().dead();
    assert!(dead - freeable > MANY && freeable > MANY, "{freeable} of {dead}");
    fixture.maintenance(|it| it.pause());
    fixture.maintenance(|it| it.compact()).unwrap();
    fixture.audit();

    let mut fixture = fixture.reopen().unwrap();
    fixture.guests().mix = Mix { blocks_max: 2, ..Mix::on(BLOCKS / 2) };
    fixture.run(500);
    let (disk, model) = fixture.abandon();
    let moment = disk.now();
    let crashed = disk.crash_at(moment, &mut Fate::everything());
    let mut fixture = recover(&crashed, setup, &model, moment, End::PowerCut, 1);
    fixture.run(500);
    clean(&mut fixture);
    fixture.audit();
}

/// Each record of the sorted blocks has some of a hundred segments.
#[test]
fn no_hold_of_the_lock_looks_at_many_segments_while_blocks_are_sorted() {
    const COUNT: u64 = 100;
    const SCATTERED: u64 = 2000;
    const FILLING: u64 = 1000;
    let blocks = SCATTERED + COUNT * FILLING;
    let mut fixture = Setup { blocks, segment_bytes: 4 << 20, ..Setup::default() }.fixture(1);
    for number in 0..COUNT {
        for block in (number..SCATTERED).step_by(COUNT as usize) {
            fixture.write_blocks(block..block + 1).unwrap();
        }
        let first = SCATTERED + number * FILLING;
        for first in (first..first + FILLING).step_by(100) {
            fixture.write_blocks(first..first + 100).unwrap();
        }
    }
    assert!(fixture.log.append_state().segments().used() > COUNT as u32);
    fixture.maintenance(|it| it.compact()).unwrap();
    fixture.audit();
}
