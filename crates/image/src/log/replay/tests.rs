//! What replay notes about segments and streams, without a file.

use super::*;
use crate::fuzzing::{Left, small_image};
use crate::log::corrupter::Corrupter;
use crate::log::ids::Incarnation;

const SHAPE: Shape = Shape { segment_blocks: 64, reserve_percent: 20, streams: 1 };

/// Else it would be written over before the next checkpoint, or appended to.
#[test]
fn a_segment_that_replay_reads_is_sealed_and_pinned_in_its_present_use() {
    let mut segments = SegmentTable::new(SHAPE, 8, 1);
    let segment = SegmentId::new(3);
    let incarnation = Incarnation::new(1, 9);
    segments.set(segment, Segment { live: 5, birth: 7, ..Segment::default() });
    let cursor = Cursor::new(LIFETIME_COLD, HeadPlace { incarnation, segment, block: 2 });
    note_segment(&mut segments, &cursor);
    let Segment { state, lifetime, pinned, incarnation: noted, live, birth, damaged } =
        segments.get(segment);
    assert_eq!((state, lifetime, pinned), (State::Sealed, LIFETIME_COLD, true));
    assert_eq!((noted, live, birth, damaged), (incarnation, 5, 7, false));
}

#[test]
fn an_image_that_was_closed_goes_on_where_its_superblock_says() {
    let superblock = Corrupter::new(small_image(Left::Closed).to_vec()).superblock();
    let replay = Replay::nothing(&superblock);
    assert!(superblock.next_sequence > Sequence::FIRST);
    assert_eq!(replay.next_sequence, superblock.next_sequence);
    assert!(!replay.heads[0].incarnation.is_none());
    assert_eq!(replay.heads, superblock.heads[..STREAMS_MAX]);
    assert_eq!((replay.records, replay.blocks, replay.damage), (0, 0, None));
}
