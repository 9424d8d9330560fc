//! Tests of the blocks that a checkpoint writes, and of the state after a failed one.

use std::collections::BTreeSet;

use fastrand::Rng;
use flowstone_block::Errno;
use flowstone_log_format::{
    BLOCK_BYTES, LEAF_ON_DISK_BLOCKS, LIFETIME_MAP, STREAMS_MAX, SegmentId,
};
use flowstone_log_store::segments::{LOOK_MOST, SegmentTable, State};
use flowstone_sim::{Call, Fault};

use super::fixture::{Fixture, SEGMENT_BYTES, Setup};
use crate::load::load;
use crate::maintenance::CheckpointKind;
use crate::volume::map::LEAF_BLOCKS;

const LEAVES: u64 = 8;

/// A disk whose map has several leaves.
fn wide() -> Fixture {
    Setup { blocks: LEAVES * LEAF_BLOCKS, ..Setup::default() }.fixture(1)
}

/// Changes `count` leaves of the map.
fn change_leaves(fixture: &mut Fixture, count: u64) {
    for leaf in 0..count {
        fixture.write_blocks(leaf * LEAF_BLOCKS..leaf * LEAF_BLOCKS + 1).unwrap();
    }
}

/// Otherwise the use of the segment is unknown when the image is opened.
#[test]
fn a_map_root_names_the_segment_that_it_is_in_wherever_that_ends() {
    let mut fixture = wide();
    let mut segments = BTreeSet::new();
    let mut random = Rng::with_seed(1);
    // Leaves of 5 blocks, or 9 for two, and roots of 2: the last of these leaves has one block
    // behind it, besides that for the seal.
    let mut leaves = vec![1, 1, 1, 1, 1, 2, 2, 1];
    leaves.extend((0..100).map(|_| random.u64(1..=LEAVES)));
    for (round, leaves) in leaves.into_iter().enumerate() {
        change_leaves(&mut fixture, leaves);
        fixture.checkpoint().unwrap();
        let found = load(&fixture.disk, None).unwrap();
        let segment = fixture.log.shape.segment_of(found.superblock.root.address);
        let noted = found.segments.get(segment);
        assert_eq!((noted.lifetime, noted.live > 0), (LIFETIME_MAP, true), "round {round}");
        assert!(matches!(noted.state, State::Open | State::Sealed), "round {round}: {noted:?}");
        segments.insert(segment);
    }
    assert!(segments.len() > 5, "{segments:?}");
}

/// They are noted a few per hold of the log's lock.
#[test]
fn a_map_root_names_all_segments_in_use() {
    let segment_blocks = SEGMENT_BYTES / BLOCK_BYTES as u64;
    let blocks = 3 * LOOK_MOST as u64 * segment_blocks;
    let mut fixture = Setup { blocks, ..Setup::default() }.fixture(1);
    for first in (0..blocks).step_by(16) {
        fixture.write_blocks(first..first + 16).unwrap();
    }
    fixture.checkpoint().unwrap();
    let in_use = |segments: &SegmentTable| -> Vec<(SegmentId, u32)> {
        let used =
            segments.iter().filter(|(_, it)| !matches!(it.state, State::Free | State::Ready));
        used.map(|(number, it)| (number, it.live)).collect()
    };
    let wanted = in_use(fixture.log.append_state().segments());
    assert!(wanted.len() > 2 * LOOK_MOST, "{}", wanted.len());
    assert_eq!(in_use(&load(&fixture.disk, None).unwrap().segments), wanted);
}

#[test]
fn the_leaves_of_a_checkpoint_share_records() {
    let mut fixture = wide();
    change_leaves(&mut fixture, LEAVES);
    let written = |fixture: &Fixture| fixture.log.append_state().accounting().totals().map_blocks;
    let before = written(&fixture);
    fixture.maintenance.writer.checkpoint(CheckpointKind::Running).unwrap();
    let leaf = u64::from(LEAF_ON_DISK_BLOCKS);
    let in_one = u64::from(fixture.log.shape.record_payload_max()) / leaf;
    let root = 2;
    let expected = LEAVES * leaf + LEAVES.div_ceil(in_one) + root;
    assert!(in_one > 1);
    assert_eq!(written(&fixture) - before, expected);
}

/// After a failed checkpoint, the next one is due as soon as if it had not been tried. Its writes
/// count, too.
#[test]
fn a_checkpoint_that_failed_forgets_nothing_of_what_it_was_due_for() {
    let mut fixture = wide();
    change_leaves(&mut fixture, 3);
    let counts = |fixture: &Fixture| {
        let state = fixture.log.append_state();
        (state.accounting().since_checkpoint(), state.accounting().totals().map_blocks)
    };
    let (appended, maps) = counts(&fixture);
    assert_eq!(appended, 6);
    fixture.disk.inject(Fault::fail(Errno::IO).on(Call::Write).within(0..SEGMENT_BYTES).always());
    assert_eq!(fixture.maintenance.writer.checkpoint(CheckpointKind::Running), Err(Errno::IO));
    let (now, maps_now) = counts(&fixture);
    assert_eq!(now, appended + maps_now - maps);
    assert!(fixture.log.append_state().accounting().has_changed());
}

/// `compact` and a shrinking disk may temporarily leave data beyond the limit.
#[test]
fn a_superblock_reaches_as_far_as_the_limit_and_as_the_last_segment_in_use() {
    let mut fixture = wide();
    fixture.write_blocks(0..300).unwrap();
    let mut made = |limit: u32| {
        fixture.log.set_limit(limit);
        fixture.maintenance.writer.checkpoint(CheckpointKind::Running).unwrap();
        let highest = fixture.log.append_state().segments().highest_used().get();
        assert!(highest > 2);
        (load(&fixture.disk, None).unwrap().superblock.segments, highest + 1)
    };
    let (segments, used) = made(2);
    assert_eq!(segments, used);
    assert_eq!(made(1000).0, 1000);
}

#[test]
fn a_superblock_says_where_each_stream_goes_on_and_how_much_was_written() {
    for split in [false, true] {
        let setup = Setup { split, ..Setup::default() };
        let mut fixture = setup.fixture(1);
        fixture.run(30);
        fixture.maintenance.writer.checkpoint(CheckpointKind::Running).unwrap();
        let found = load(&fixture.disk, None).unwrap().superblock;
        let state = fixture.log.append_state();
        assert_eq!(found.heads[..STREAMS_MAX], state.committed_heads());
        assert_eq!(
            (found.next_sequence, found.clock),
            (state.committed(), state.accounting().clock())
        );
        assert!(found.clock > 0);
    }
}
