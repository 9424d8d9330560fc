//! Tests of what is kept: by decision of the policy, and never a mix of two versions of a file.

use std::io::Write;
use std::time::Duration;

use flowstone_policy::{Link, PolicyKind};

use super::*;
use crate::stamp::Stamp;

fn file(inode: u64) -> Identity {
    Identity { device: 1, inode, birth: 0 }
}

fn stamp(size: u64) -> Stamp {
    Stamp { size, ..Stamp::default() }
}

fn copies(bytes: u64) -> Copies {
    let policy = PolicyKind::Lru.build(bytes, Link::default());
    Copies::new(Store::memory(), Budget { bytes, by: "memory" }, policy, 1, 2)
}

fn filled(copies: &Copies) -> Option<(File, Attributes)> {
    let mut file = copies.new_file().unwrap();
    file.write_all(b"text").unwrap();
    let seen = crate::source::stat(&file).unwrap();
    Some((file, Attributes { stamp: stamp(4), ..seen }))
}

fn fill(copies: &Copies, identity: Identity) -> bool {
    copies.used(identity, Use::Read, 4);
    let Some(begun) = copies.begin_fill(identity) else { return false };
    copies.end_fill(&begun, filled(copies))
}

#[test]
fn a_copy_is_there_when_it_is_complete() {
    let copies = copies(1 << 20);
    copies.used(file(1), Use::Read, 4);
    let begun = copies.begin_fill(file(1)).unwrap();
    assert!(copies.get(file(1)).is_none());
    assert!(copies.begin_fill(file(1)).is_none(), "one at a time");
    assert!(copies.end_fill(&begun, filled(&copies)));
    let copy = copies.get(file(1)).unwrap();
    assert!(copy.is_of(stamp(4)) && !copy.is_of(stamp(5)));
    assert!(!copies.wants(file(1)));
}

#[test]
fn a_file_that_is_open_for_writing_is_not_copied() {
    let copies = copies(1 << 20);
    copies.used(file(1), Use::Write, 4);
    copies.writer_opens(file(1));
    copies.writer_opens(file(1));
    copies.writer_closes(file(1));
    assert!(copies.begin_fill(file(1)).is_none(), "another writer has it open");
    copies.writer_closes(file(1));
    assert!(copies.begin_fill(file(1)).is_some());
}

#[test]
fn a_copy_that_was_made_beside_a_writer_is_none() {
    let copies = copies(1 << 20);
    copies.used(file(1), Use::Read, 4);
    let begun = copies.begin_fill(file(1)).unwrap();
    copies.writer_opens(file(1));
    copies.writer_closes(file(1));
    assert!(!copies.end_fill(&begun, filled(&copies)));
    assert!(copies.get(file(1)).is_none());
}

#[test]
fn a_retired_copy_is_never_used_again() {
    let copies = copies(1 << 20);
    assert!(fill(&copies, file(1)));
    let copy = copies.get(file(1)).unwrap();
    copies.retire(file(1));
    assert!(!copy.is_current());
    assert!(copies.get(file(1)).is_none());
    assert!(copies.wants(file(1)), "its place is still its own");
}

#[test]
fn what_the_policy_drops_goes_and_its_bytes_are_counted_until_they_are_free() {
    let copies = copies(2 * space_of(4));
    for inode in 1..=2 {
        assert!(fill(&copies, file(inode)));
    }
    let held = copies.get(file(1)).unwrap();
    assert!(fill(&copies, file(3)));
    assert!(copies.get(file(1)).is_none());
    let holdings = copies.holdings();
    assert_eq!((holdings.files, holdings.evictions), (2, 1));
    assert_eq!(holdings.bytes, 3 * space_of(4), "it is open");
    drop(held);
    assert_eq!(copies.holdings().bytes, 2 * space_of(4));
    copies.drop_all();
    assert_eq!((copies.holdings().files, copies.holdings().bytes), (0, 0));
}

#[test]
fn a_fill_that_fails_leaves_the_file_to_be_tried_again() {
    let copies = copies(1 << 20);
    copies.used(file(1), Use::Read, 4);
    let begun = copies.begin_fill(file(1)).unwrap();
    assert!(!copies.end_fill(&begun, None));
    assert!(copies.begin_fill(file(1)).is_some());
}

fn on_shelf(folder: &std::path::Path, bytes: u64) -> Copies {
    let shelf = crate::shelf::Shelf::open(folder, String::new(), 1).unwrap();
    let policy = PolicyKind::Lru.build(bytes, Link::default());
    Copies::new(Store::Shelf(Arc::new(shelf)), Budget { bytes, by: "size" }, policy, 1, 2)
}

fn named(folder: &std::path::Path) -> u64 {
    std::fs::read_dir(folder.join("flowstone-copies")).unwrap().count() as u64
}

/// The next daemon may have less room: it keeps the most used copies, and removes the rest.
#[test]
fn copies_of_an_earlier_life_are_taken_as_far_as_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let first = on_shelf(folder.path(), 1 << 20);
    (1..=4).for_each(|inode| assert!(fill(&first, file(inode))));
    assert_eq!(named(folder.path()), 4);
    drop(first);
    for (room, wanted) in [(3, 3), (1, 1), (0, 0)] {
        let next = on_shelf(folder.path(), room * space_of(4));
        next.restore(file(1), space_of(4), 9);
        next.adopt_all().unwrap();
        let holdings = next.holdings();
        assert_eq!((holdings.files, named(folder.path())), (wanted, wanted));
        assert_eq!(holdings.bytes, wanted * space_of(4));
        assert_eq!(next.get(file(1)).is_some(), wanted > 0, "it was used most");
    }
}

#[test]
fn a_copy_of_an_earlier_life_was_never_compared_in_this_one() {
    let folder = tempfile::tempdir().unwrap();
    assert!(fill(&on_shelf(folder.path(), 1 << 20), file(1)));
    let next = on_shelf(folder.path(), 1 << 20);
    next.adopt_all().unwrap();
    let copy = next.get(file(1)).unwrap();
    assert!(copy.is_of(stamp(4)) && !copy.is_of(stamp(5)));
    assert!(!copy.was_checked_within(Duration::MAX));
}

#[test]
fn a_copy_that_is_dropped_or_spoilt_by_a_writer_leaves_nothing_in_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let copies = on_shelf(folder.path(), 1 << 20);
    assert!(fill(&copies, file(1)));
    let reader = copies.get(file(1)).unwrap();
    copies.writer_opens(file(1));
    assert_eq!(named(folder.path()), 0, "although it is open");
    drop(reader);
    copies.writer_closes(file(1));
    assert!(fill(&copies, file(1)));
    copies.drop_all();
    assert_eq!(named(folder.path()), 0);
}

/// Its bytes are nowhere else: it is written back on request, and then dropped.
#[test]
fn a_copy_that_is_dirty_stays_until_it_is_not() {
    let copies = copies(2 * space_of(4));
    assert!(fill(&copies, file(1)));
    let copy = copies.get(file(1)).unwrap();
    copy.has_dirty_bytes(true);
    copies.writer_opens(file(1));
    copies.writer_closes(file(1));
    // Two others take its place, and none has room for its bytes.
    assert!(fill(&copies, file(2)) && !fill(&copies, file(3)));
    assert!(!copies.wants(file(3)), "it would be copied in vain at each use");
    assert_eq!(copies.take_to_write_back(), [file(1)]);
    copies.drop_all();
    assert!(copies.get(file(1)).is_some() && copy.is_current());
    copy.has_dirty_bytes(false);
    copies.retire(file(1));
    assert!(copies.get(file(1)).is_none() && !copy.is_current());
}
