//! Tests of a commit that finds little or nothing to write.

use std::thread;
use std::time::Duration;

use flowstone_block::Op;
use flowstone_sim::Fate;

use super::super::disk::Qcow2Image;
use super::fixture::{Guest, contents, extent, new_disk, open, open_read_only};

/// Commits like a flush that finds another commit running.
fn commit(image: &Qcow2Image) {
    let ticket = image.core.commits.ask();
    while image.core.commits.outcome(&ticket).is_none() {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(image.core.commits.outcome(&ticket), Some(Ok(())));
}

/// The previous commit may have taken all changes of the map; data written in place since must
/// become durable all the same.
#[test]
fn a_commit_without_changes_of_the_map_makes_data_durable() {
    let disk = new_disk(8 * 64, 4096);
    let image = open(&disk);
    let mut guest = Guest::new(&image);
    guest.run(Op::Write(extent(0, 8)), 1).unwrap();
    guest.run(Op::Flush, 0).unwrap();
    guest.run(Op::Write(extent(0, 8)), 2).unwrap();
    assert!(image.core.meta().is_clean());
    commit(&image);
    let held = contents(&image);
    assert_eq!(held[0], 2);
    let crashed = disk.crash_at(disk.now(), &mut Fate::nothing_more());
    assert!(contents(&open_read_only(&crashed).unwrap()) == held);
}

/// Otherwise a disk that is never idle would never reclaim its clusters.
#[test]
fn each_commit_begins_an_epoch() {
    let image = open(&new_disk(8 * 64, 4096));
    let epoch = image.core.meta().epoch;
    commit(&image);
    commit(&image);
    assert_eq!(image.core.meta().epoch, epoch + 2);
}
