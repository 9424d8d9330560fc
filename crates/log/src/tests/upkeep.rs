//! The segments reserved for checkpoints must suffice for the next checkpoint, whatever guests do
//! to the map before it.

use flowstone_block::Errno;
use flowstone_fileio::FileIo;
use flowstone_sim::Fate;

use super::crash::{Tell, some_moments};
use super::fixture::{BLOCK_SECTORS, Fixture, Mix, SEGMENT_BYTES, Setup, contents_read_only};
use super::history_model::{End, HistoryModel};
use crate::load::load;
use crate::volume::map::LEAF_BLOCKS;

/// Leaves of a full map of this disk.
const LEAVES: u64 = 190;

fn wide() -> Setup {
    Setup { blocks: LEAVES * LEAF_BLOCKS, ..Setup::default() }
}

/// Writes a block in each of eight other leaves, as one record if the queue is idle.
fn scatter(fixture: &mut Fixture, round: u64) -> Result<(), Errno> {
    let before = fixture.guests().failures.len();
    for index in 0..8 {
        let number = round * 8 + index;
        let lba = number % LEAVES * LEAF_BLOCKS + number / LEAVES;
        fixture.guests().write(0, lba * BLOCK_SECTORS..(lba + 1) * BLOCK_SECTORS);
    }
    fixture.guests().kick(0);
    fixture.drain();
    let failure = fixture.guests().failures.get(before).map(|failure| failure.errno);
    failure.map_or(Ok(()), Err)
}

/// On a host with space for `segments` segments: every record changes eight leaves, and a
/// checkpoint is made shortly before the head is full. Returns when the host is full.
fn scattered(segments: u64) -> Fixture {
    let mut fixture = wide().fixture(segments);
    fixture.disk.set_capacity(Some(segments * SEGMENT_BYTES + 17 * 4096));
    for round in 0..3000 {
        let head = fixture.log.append_state().heads()[0].place;
        if (46..54).contains(&head.block) {
            let _ = fixture.checkpoint();
        }
        if scatter(&mut fixture, round).is_err() {
            return fixture;
        }
    }
    panic!("the host is never full");
}

/// The reserve had been computed when the head was opened; until it was full as many leaves had
/// changed as it has blocks. Then no checkpoint could be made any more, no dead segment be freed,
/// and after a crash the image could not be opened for writing.
#[test]
fn leaves_changed_since_the_head_was_opened_have_room_in_the_next_checkpoint() {
    for segments in 10..26 {
        let _tell = Tell(format!("{segments} segments"));
        let mut fixture = scattered(segments);
        fixture.flush().unwrap();
        let latest = fixture.guests().model.latest();
        let next = fixture.guests().model.next_stamp();
        let described = fixture.describe();
        let changed = fixture.volume.map.changed_count();
        let now = fixture.disk.now();
        let crashed = fixture.disk.crash_at(now, &mut Fate::everything());
        crashed.set_capacity(Some(segments * SEGMENT_BYTES + 17 * 4096));
        drop(fixture);
        let opened = Fixture::open(&crashed, wide(), HistoryModel::new(latest, next), 1);
        let Err(error) = opened else { continue };
        panic!("{error}: {changed} leaves had changed; {described}");
    }
}

/// However full everything is, discards are never refused.
#[test]
fn a_full_host_takes_trims() {
    for segments in 10..24 {
        for blocks in 1..4 {
            let _tell = Tell(format!("{segments} segments, {blocks} blocks"));
            let setup = Setup { blocks: 1024, ..Setup::default() };
            let mut fixture = setup.fixture(segments);
            fixture.disk.set_capacity(Some(segments * SEGMENT_BYTES + 17 * 4096));
            let mut refused = 0;
            for round in 0..20_000 {
                let lba = round * 7 % (setup.blocks - 4);
                refused += u32::from(fixture.write_blocks(lba..lba + blocks).is_err());
                if refused > 40 {
                    break;
                }
            }
            for lba in (0..setup.blocks).step_by(16) {
                fixture.zero(lba * BLOCK_SECTORS..(lba + 16) * BLOCK_SECTORS).unwrap();
            }
            std::thread::sleep(std::time::Duration::from_millis(120));
            fixture.flush().unwrap();
            assert!(
                (0..8).any(|lba| fixture.write_blocks(lba..lba + 1).is_ok()),
                "{}",
                fixture.describe()
            );
        }
    }
}

/// There was no room for a map, and nothing to put into one. The image counted as crashed, and the
/// recovery of the next open failed.
#[test]
fn an_image_on_a_full_host_that_is_only_looked_at_is_closed_in_order() {
    let setup = Setup::default();
    let disk = setup.image();
    // Space for the other superblock and no more.
    disk.set_capacity(Some(disk.allocated_bytes().unwrap() + 4096));
    for _ in 0..3 {
        let model = HistoryModel::new(vec![0; setup.sectors() as usize], 1);
        let mut fixture = Fixture::open(&disk, setup, model, 1).unwrap();
        fixture.read(0..8).unwrap();
        fixture.close();
        assert!(load(&disk, None).unwrap().superblock.clean);
    }
}

/// Guests change blocks all over a disk of many leaves on a full host, with cleaning and trims, and
/// power is cut: the reserve suffices to recover.
#[test]
fn a_wide_disk_on_a_full_host_opens_after_any_power_cut() {
    for seed in 0..4 {
        let segments = 14 + seed * 5;
        let room = Some(segments * SEGMENT_BYTES + 17 * 4096);
        let setup = Setup { split: seed % 2 == 1, ..wide() };
        let mut fixture = setup.fixture(seed);
        fixture.disk.set_capacity(room);
        fixture.guests().mix = Mix { depth: 16, zero_percent: 8, ..Mix::writes(0..setup.blocks) };
        fixture.run(1500);
        assert!(fixture.guests().failures.iter().all(|failure| failure.errno == Errno::NOSPC));
        assert!(!fixture.guests().failures.is_empty(), "the host was never full");
        let (disk, model) = fixture.abandon();
        let next = model.next_stamp();
        for (index, moment) in some_moments(&disk, 30).enumerate() {
            let _tell = Tell(format!("seed {seed}, {segments} segments, cut at {moment:?}"));
            let crashed = disk.crash_at(moment, &mut Fate::seeded(index as u64));
            crashed.set_capacity(room);
            let seen = contents_read_only(&crashed).unwrap();
            if index % 6 == 0 {
                model.judge(&seen, moment, End::PowerCut).unwrap();
            }
            let mut fixture =
                Fixture::open(&crashed, setup, HistoryModel::new(seen, next), 1).unwrap();
            fixture.run(10);
        }
    }
}

/// Cleaning finds a victim however small the reserve.
#[test]
fn a_full_disk_of_small_segments_with_little_reserve_is_overwritten() {
    let setup = Setup { blocks: 6000, reserve: Some(3), ..Setup::default() };
    let mut fixture = setup.fixture(1);
    for lba in (0..setup.blocks).step_by(60) {
        fixture.write_blocks(lba..lba + 60).unwrap();
    }
    fixture.guests().mix = Mix { depth: 16, blocks_max: 2, ..Mix::writes(0..setup.blocks) };
    fixture.run(6000);
    assert_eq!(fixture.guests().failures, [], "{}", fixture.describe());
    fixture.check();
}
