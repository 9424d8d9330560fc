//! Each block of a crashed image in turn is unreadable. In free space that must not matter; if a
//! durable record is lost, the image must not be opened without it.

use std::collections::BTreeSet;

use flowstone_block::Errno;
use flowstone_log_format::{BLOCK_BYTES, Kind, SegmentId};
use flowstone_log_store::segments::State;
use flowstone_sim::{Call, Fate, Fault, SimDisk};

use super::crash::Tell;
use super::fixture::{Fixture, Mix, SEGMENT_BYTES, Setup, contents_read_only, readable_contents};
use super::history_model::{HistoryModel, Stamp};
use crate::load::load;
use crate::session::load_for;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// An image that was flushed and then lost power, and its content.
fn crashed(setup: Setup, seed: u64) -> (SimDisk, Vec<Stamp>) {
    let mut fixture = setup.fixture(seed);
    fixture.guests().mix = Mix::writes(0..setup.blocks - 8);
    fixture.run(500);
    fixture.checkpoint().unwrap();
    fixture.run(40);
    fixture.flush().unwrap();
    fixture.write_blocks(setup.blocks - 1..setup.blocks).unwrap();
    fixture.flush().unwrap();
    let (disk, model) = fixture.abandon();
    (disk.crash_at(disk.now(), &mut Fate::everything()), model.latest())
}

/// The same disk with an unreadable block.
fn without_block(disk: &SimDisk, block: u64) -> SimDisk {
    let bad = disk.crash_at(disk.now(), &mut Fate::everything());
    let place = block * BLOCK..(block + 1) * BLOCK;
    bad.inject(Fault::fail(Errno::IO).on(Call::Read).within(place).always());
    bad
}

/// Returns blocks of free segments, and headers of records that replay must find.
fn places(disk: &SimDisk) -> (Vec<u64>, BTreeSet<u64>) {
    let loaded = load(disk, None).unwrap();
    let per_segment = SEGMENT_BYTES / BLOCK;
    let is_free =
        |number: &u64| loaded.segments.get(SegmentId::new(*number as u32)).state == State::Free;
    let segments = disk.to_bytes().len() as u64 / SEGMENT_BYTES;
    let free =
        (1..segments).filter(is_free).flat_map(|it| it * per_segment..(it + 1) * per_segment);
    let replayed = loaded.superblock.next_sequence..loaded.replay.next_sequence;
    let is_needed = |block: &u64| {
        let mut bytes = [0; BLOCK_BYTES];
        disk.read_at(block * BLOCK, &mut bytes);
        let header = loaded.codec.decode(&bytes, &mut Vec::new());
        let segment = loaded.segments.get(SegmentId::new((block / per_segment) as u32));
        header.is_some_and(|it| {
            segment.incarnation == it.incarnation
                && matches!(it.kind, Kind::Writes | Kind::Seal)
                && segment.lifetime <= 1
                && replayed.contains(&it.sequence)
        })
    };
    let needed = (per_segment..segments * per_segment).filter(is_needed).collect();
    (free.collect(), needed)
}

#[test]
fn an_unreadable_block_of_free_space_keeps_no_crashed_image_from_opening() {
    for seed in 0..3 {
        let setup = Setup { blocks: 512, split: seed == 1, ..Setup::default() };
        let (disk, expected) = crashed(setup, seed);
        let (free, _) = places(&disk);
        assert!(free.len() > 128, "too little is free to show anything");
        for (index, block) in free.into_iter().enumerate() {
            if !block.is_multiple_of(64) && index % 29 > 0 {
                continue;
            }
            let _tell = Tell(format!("seed {seed}, block {block}"));
            let bad = without_block(&disk, block);
            assert_eq!(contents_read_only(&bad).unwrap(), expected);
            let fixture =
                Fixture::open(&bad, setup, HistoryModel::new(expected.clone(), 1 << 32), 1)
                    .unwrap();
            assert_eq!(fixture.contents(), expected);
        }
    }
}

#[test]
fn an_unreadable_block_where_a_durable_record_is_is_never_passed_over() {
    for seed in 1..3 {
        let setup = Setup { blocks: 512, split: seed == 1, ..Setup::default() };
        let (disk, expected) = crashed(setup, seed);
        let (_, needed) = places(&disk);
        assert!(needed.len() > 10);
        for block in 0..disk.to_bytes().len() as u64 / BLOCK {
            if !needed.contains(&block) && block % 4 != seed {
                continue;
            }
            let _tell = Tell(format!("seed {seed}, block {block}"));
            let bad = without_block(&disk, block);
            let opened = load_for("image".into(), Box::new(bad), true, None, None);
            assert!(opened.is_err() || !needed.contains(&block), "opened without a record");
            let Ok((log, volume, _)) = opened else { continue };
            // All readable content is right; at most the one block is unreadable.
            let found = readable_contents(&log, &volume);
            let lacks = found.iter().filter(|block| block.is_none()).count();
            assert!(lacks <= 1);
            for (found, expected) in found.iter().zip(expected.chunks(8)) {
                assert!(found.as_ref().is_none_or(|found| found == expected));
            }
        }
    }
}
