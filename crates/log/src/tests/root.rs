//! Tests of the map root while guests open segments between two holds of the log's lock.

use std::rc::Rc;

use flowstone_log_format::{BLOCK_BYTES, LIFETIME_MAP, root_blocks};
use flowstone_log_store::segments::LOOK_MOST;

use super::crash::{Tell, crash_everywhere, three_fates};
use super::fixture::{BLOCK_SECTORS, Fixture, SEGMENT_BYTES, Setup};
use super::scheduler::with_hook;
use crate::load::load;
use crate::maintenance::CheckpointKind;

const SEGMENT_BLOCKS: u64 = SEGMENT_BYTES / BLOCK_BYTES as u64;
/// Nearly a segment: each write opens the next one.
const WRITE_BLOCKS: u64 = 60;
const WRITES: u32 = 40;

/// Makes a checkpoint during which guests write to blocks below `blocks` at each chance.
fn busy_checkpoint(fixture: &mut Fixture, blocks: u64) {
    let guests = Rc::clone(&fixture.guests);
    let mut left = WRITES;
    let hook = move || {
        let mut guests = guests.borrow_mut();
        for _ in 0..WRITES {
            if left > 0 && guests.in_flight() < 12 {
                left -= 1;
                let first = guests.random.u64(..blocks - WRITE_BLOCKS);
                let blocks = first..first + WRITE_BLOCKS;
                let sectors = blocks.start * BLOCK_SECTORS..blocks.end * BLOCK_SECTORS;
                // Those that would overlap one in flight are left out.
                let _ = guests.change(0, sectors, false, |_| ());
            }
            guests.kick(0);
            guests.nap(0);
            guests.reap(0);
        }
    };
    with_hook(hook, || fixture.maintenance.writer.checkpoint(CheckpointKind::Running)).unwrap();
}

/// A root that is longer than the room made for it moves to a new segment, which it does not name.
#[test]
fn a_root_that_grows_while_segments_are_noted_names_its_own() {
    let (mut grown, mut moved) = (0, 0);
    // By the number of checkpoints before, the root is at each place in a segment.
    for before in 14..24 {
        let _tell = Tell(format!("{before} checkpoints before"));
        let setup = Setup { blocks: 500 * SEGMENT_BLOCKS, ..Setup::default() };
        let mut fixture = setup.fixture(before);
        let counts = |fixture: &Fixture| {
            let leaves = u64::from(fixture.volume.map.leaf_count());
            (leaves, u64::from(fixture.log.append_state().segments().used()))
        };
        let mut written = 0;
        loop {
            fixture.write_blocks(written..written + WRITE_BLOCKS).unwrap();
            written += WRITE_BLOCKS;
            let (leaves, used) = counts(&fixture);
            let grows = root_blocks(leaves, used + 12) > root_blocks(leaves, used);
            if used > LOOK_MOST as u64 + 8 && grows {
                break;
            }
        }
        fixture.checkpoint().unwrap();
        // A leaf takes 5 blocks, a checkpoint without changes 2.
        fixture.write_blocks(0..1).unwrap();
        (0..=before).for_each(|_| fixture.checkpoint().unwrap());
        fixture.maintenance.writer.space.get_ahead(90).unwrap();
        let (leaves, used) = counts(&fixture);
        busy_checkpoint(&mut fixture, written);
        let found = load(&fixture.disk, None).unwrap();
        let root = found.superblock.root;
        let own = found.segments.get(fixture.log.shape.segment_of(root.address));
        assert_eq!(own.lifetime, LIFETIME_MAP);
        let has_grown = u64::from(root.blocks) > root_blocks(leaves, used + 1);
        grown += u32::from(has_grown);
        moved += u32::from(has_grown && u64::from(root.address.get()) % SEGMENT_BLOCKS == 1);
        fixture.check();
        let (disk, model) = fixture.abandon();
        let last = disk.crash_points().last();
        crash_everywhere(&disk, setup, &model, last.into_iter(), three_fates);
    }
    assert!(grown > 0 && moved > 0, "{grown} roots have grown, {moved} in a new segment");
}
