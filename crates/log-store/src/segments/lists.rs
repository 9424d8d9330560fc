//! Tests of the segment lists and the order of use.

use super::*;
use flowstone_log_format::LIFETIME_MAP;

const SHAPE: Shape = Shape { segment_blocks: 64, reserve_percent: 20, streams: 1 };

fn ids(numbers: &[u32]) -> Vec<SegmentId> {
    numbers.iter().copied().map(SegmentId::new).collect()
}

fn all_free(table: &mut SegmentTable) -> Vec<SegmentId> {
    table.take_all_free().into_values().collect()
}

/// A table of `limit` segments, including segment 0, of which `free` have been used and are free.
fn with_free(limit: u32, free: &[u32]) -> SegmentTable {
    let mut table = SegmentTable::new(SHAPE, limit, 1);
    while table.take_free().is_some() {}
    table.add_free(&ids(free));
    table
}

#[test]
fn the_lists_of_an_opened_image_follow_from_its_segments() {
    let mut table = SegmentTable::new(SHAPE, 8, 1);
    let segment = |state, live, pinned| Segment { state, live, pinned, ..Segment::default() };
    for (number, segment) in [
        (1, segment(State::Sealed, 0, false)),
        (2, segment(State::Sealed, 3, false)),
        (3, segment(State::Open, 0, true)),
        (5, segment(State::Dead, 0, true)),
        (8, segment(State::Free, 0, false)),
        (10, segment(State::Sealed, 1, false)),
    ] {
        table.set(SegmentId::new(number), segment);
    }
    for _ in 0..2 {
        table.rebuild_lists();
        table.audit();
        assert_eq!(table.dead(), (2, 1), "one of them is pinned");
        assert_eq!((table.ready(), table.obtainable()), (0, 3));
    }
    let states = [1, 2, 3, 10].map(|number| table.get(SegmentId::new(number)).state);
    assert_eq!(states, [State::Dead, State::Sealed, State::Open, State::Sealed]);
    assert_eq!(table.take_freeable().in_order(), ids(&[1]));
    assert_eq!(table.take_dead().in_order(), ids(&[5]));
    assert_eq!(all_free(&mut table), ids(&[4, 6, 7]), "those from 8 on are behind the limit");
    assert_eq!(all_free(&mut table), []);
    assert_eq!(table.highest_used(), SegmentId::new(10));
}

/// Space behind the end of a device cannot be allocated; space before it can.
#[test]
fn a_free_segment_before_another_is_the_first_of_all_or_none() {
    let mut table = with_free(8, &[3, 1, 5]);
    assert_eq!(table.take_free_before(SegmentId::new(1)), None);
    assert_eq!(table.take_free_before(SegmentId::new(5)), Some(SegmentId::new(1)));
    assert_eq!(table.take_free_before(SegmentId::new(3)), None);
    assert_eq!(all_free(&mut table), ids(&[3, 5]));
    assert_eq!(table.take_free_before(SegmentId::new(5)), None);
}

#[test]
fn free_segments_that_follow_one_another_are_taken_together() {
    let mut table = with_free(8, &[3, 1, 5, 2, 6]);
    assert_eq!(table.take_free(), Some(SegmentId::new(3)));
    assert_eq!(table.take_free_behind(SegmentId::new(3), 4), 0, "4 is not free");
    assert_eq!(table.take_free(), Some(SegmentId::new(1)));
    assert_eq!(table.take_free_behind(SegmentId::new(1), 4), 1);
    assert_eq!(all_free(&mut table), ids(&[5, 6]));
    let mut table = SegmentTable::new(SHAPE, 8, 1);
    assert_eq!(table.take_free(), Some(SegmentId::new(1)));
    assert_eq!(table.take_free_behind(SegmentId::new(1), 3), 3, "never used");
    assert_eq!(table.take_free(), Some(SegmentId::new(5)));
    assert_eq!(table.take_free_behind(SegmentId::new(5), 9), 2, "the limit");
    assert_eq!((table.take_free(), table.obtainable()), (None, 0));
}

#[test]
fn a_segment_that_the_host_refuses_is_the_last_to_be_asked_for_again() {
    let mut table = with_free(8, &[3, 1]);
    let refused = table.take_free().unwrap();
    table.put_back(refused);
    assert_eq!(all_free(&mut table), ids(&[1, 3]));
}

#[test]
fn an_open_segment_that_is_given_back_is_as_if_it_had_never_been_opened() {
    let mut table = with_free(8, &[3, 1]);
    [3, 1].map(SegmentId::new).into_iter().for_each(|number| table.make_ready(number));
    let (number, incarnation) = table.open(2).unwrap();
    table.give_back(number);
    let Segment { state, pinned, incarnation: now, .. } = table.get(number);
    assert_eq!((state, pinned, now), (State::Ready, false, Incarnation::NONE));
    assert_eq!(table.open(0).unwrap().0, SegmentId::new(1));
    let (again, new_incarnation) = table.open(0).unwrap();
    assert_eq!(again, number);
    assert_ne!(new_incarnation, incarnation);
}

#[test]
fn a_damaged_segment_is_known_until_it_is_free() {
    let mut table = with_free(8, &[3]);
    table.make_ready(SegmentId::new(3));
    let (number, _) = table.open(0).unwrap();
    table.mark_damaged(number);
    assert!(table.get(number).damaged);
    table.seal(number, 1);
    let dead = table.take_dead().in_order();
    assert_eq!(table.release_dead(&dead, 0), [number]);
    assert!(!table.get(number).damaged);
}

#[test]
fn what_holds_data_and_what_holds_the_map_are_counted_apart() {
    let mut table = with_free(16, &[1, 2, 3, 4, 5]);
    for number in all_free(&mut table) {
        table.make_ready(number);
    }
    let data = table.open(0).unwrap().0;
    let copies = table.open(2).unwrap().0;
    let map = table.open(LIFETIME_MAP).unwrap().0;
    assert_eq!((table.open_for_data(), table.used_for_maps(), table.used()), (2, 1, 3));
    table.gain(map, 5);
    table.gain(data, 60);
    [data, map].into_iter().for_each(|number| table.seal(number, 1));
    assert_eq!((table.open_for_data(), table.used_for_maps(), table.used()), (1, 1, 3));
    assert_eq!(table.garbage_blocks(), 4 + 59);
    table.seal(copies, 1);
    table.lose_many(map, 5);
    assert_eq!((table.open_for_data(), table.used_for_maps(), table.used()), (0, 0, 3));
    assert_eq!(table.garbage_blocks(), 4 + 64 + 64);
    assert_eq!(table.take_pinned(), [data, map, copies]);
}

#[test]
fn a_pinned_segment_is_freed_by_a_checkpoint_only_and_a_failed_one_frees_nothing() {
    let mut table = with_free(8, &[3]);
    table.make_ready(SegmentId::new(3));
    let (number, _) = table.open(0).unwrap();
    table.seal(number, 1);
    table.unpin(&[number]);
    table.pin(number);
    assert_eq!((table.dead(), table.take_freeable().in_order()), ((1, 0), vec![]));
    let taken = table.take_dead().in_order();
    assert_eq!(table.dead(), (0, 0));
    table.keep_dead(&taken);
    table.unpin(&[number]);
    assert_eq!(table.dead(), (1, 1));
    let taken = table.take_freeable().in_order();
    assert_eq!((&*taken, table.dead()), (&[number][..], (0, 0)));
}

#[test]
fn segments_behind_the_limit_were_borrowed_and_are_not_used_again() {
    let mut table = with_free(8, &[9, 8, 7]);
    assert_eq!(all_free(&mut table), ids(&[7]));
}

/// Space that was never written costs more to write, and must not displace written space.
#[test]
fn what_was_written_before_is_kept_beside_fresh_segments_and_opened_first() {
    let mut table = with_free(16, &[1, 2, 3, 4, 5, 6]);
    [1, 2, 3].map(SegmentId::new).into_iter().for_each(|number| table.make_ready(number));
    let used: Vec<SegmentId> = (0..3).map(|_| table.open(0).unwrap().0).collect();
    used.iter().for_each(|number| table.seal(*number, 1));
    [4, 5, 6].map(SegmentId::new).into_iter().for_each(|number| table.make_ready(number));
    let dead = table.take_dead().in_order();
    assert_eq!(table.release_dead(&dead, 2), ids(&[3]), "two are kept, whatever is fresh");
    assert_eq!(table.ready(), 5);
    let opened: Vec<SegmentId> = (0..3).map(|_| table.open(0).unwrap().0).collect();
    assert_eq!(opened, ids(&[1, 2, 4]), "in the order of their death, then fresh ones");
    opened.iter().for_each(|number| table.seal(*number, 2));
    let dead = table.take_dead().in_order();
    assert_eq!(table.release_dead(&dead, 1), ids(&[2, 4]));
    assert_eq!(table.release_ready(1), ids(&[5, 6]), "fresh ones go back to the host first");
    assert_eq!(table.open(0).unwrap().0, SegmentId::new(1));
}
