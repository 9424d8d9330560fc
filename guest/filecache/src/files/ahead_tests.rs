//! Tests of prefetching: which file, when, and into which room.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::*;
use crate::options::{Options, Place as Room};
use crate::source::Source;
use crate::store::Store;

struct Fixture {
    folder: tempfile::TempDir,
    files: Files,
}

/// Makes files of 1,000 bytes that were used twice in an earlier life, and `room` bytes of room.
fn used_before(names: &[&str], room: u64) -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    names.iter().for_each(|name| std::fs::write(folder.path().join(name), [b'x'; 1000]).unwrap());
    let mut options = Options::for_test(folder.path());
    options.place = Room::Memory(room);
    let source = Source::open(folder.path()).unwrap();
    let state = HistoryFile::open(&folder.path().join("state"), String::new()).unwrap();
    let files = Files::new(&options, source, Store::memory(), Some(state)).unwrap();
    let fixture = Fixture { folder, files };
    for name in names {
        let place = fixture.place(name);
        fixture.files.copies.restore(place.identity, 1000, 2);
        let file = fixture.files.copies.id(place.identity);
        lock(&fixture.files.memory.places).insert(file, place);
    }
    fixture
}

impl Fixture {
    fn place(&self, name: &str) -> Place {
        let seen = source::stat(File::open(self.path(name)).unwrap()).unwrap();
        let path = Path::new(name).as_os_str().as_bytes().into();
        Place { identity: seen.identity, path }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// Pretends that all files were checked long ago, and have not changed since.
    fn seen_long_ago(&self, names: &[&str]) -> Ahead {
        let mut ahead = Ahead::default();
        for name in names {
            let seen = source::stat(File::open(self.path(name)).unwrap()).unwrap();
            let long_ago = Instant::now().checked_sub(SETTLED).unwrap();
            ahead.new.insert(self.files.copies.id(seen.identity), (seen.stamp, long_ago));
        }
        ahead
    }

    fn copies(&self) -> u64 {
        self.files.copies.holdings().files
    }
}

#[test]
fn what_was_used_is_fetched_once_it_is_settled() {
    let it = used_before(&["a", "b"], 1 << 20);
    let mut ahead = Ahead::default();
    it.files.fetch_ahead(&mut ahead);
    assert_eq!(it.copies(), 0, "both have just changed");
    let mut ahead = it.seen_long_ago(&["a", "b"]);
    it.files.fetch_ahead(&mut ahead);
    assert_eq!(it.copies(), 2);
    let counters = it.files.report().counters;
    let counted = [counters.prefetched_bytes, counters.fills, counters.hits];
    assert_eq!(counted.map(|it| it.get()), [2000, 2, 0]);
    assert_eq!(it.files.copies.history().iter().map(|it| it.uses).max(), Some(2), "that is no use");
}

#[test]
fn nothing_is_fetched_while_an_open_waits_or_after_one_that_was_just_now() {
    let it = used_before(&["a"], 1 << 20);
    let mut ahead = it.seen_long_ago(&["a"]);
    let asks = it.files.memory.asks();
    it.files.fetch_ahead(&mut ahead);
    assert_eq!(it.copies(), 0, "there was an open since the last look");
    it.files.fetch_ahead(&mut ahead);
    assert_eq!(it.copies(), 0, "it waits still");
    drop(asks);
    it.files.fetch_ahead(&mut ahead);
    assert_eq!(it.copies(), 1);
}

#[test]
fn room_that_is_used_is_not_taken() {
    let names = ["a", "b", "c", "d"];
    let room = 3 * crate::store::space_of(1000);
    let it = used_before(&names, room);
    it.files.fetch_ahead(&mut it.seen_long_ago(&names));
    let held = it.files.copies.holdings();
    assert_eq!((held.files, held.evictions), (2, 0));
    assert!(held.bytes <= room / 10 * 9);
}

#[test]
fn another_file_with_the_name_is_not_fetched_and_a_file_that_is_gone_is_forgotten() {
    let it = used_before(&["a", "b"], 1 << 20);
    let mut ahead = it.seen_long_ago(&["a", "b"]);
    let held = File::open(it.path("a")).unwrap();
    std::fs::write(it.path("other"), [b'y'; 1000]).unwrap();
    std::fs::rename(it.path("other"), it.path("a")).unwrap();
    std::fs::remove_file(it.path("b")).unwrap();
    it.files.fetch_ahead(&mut ahead);
    assert_eq!(it.copies(), 0);
    assert_eq!(ahead.new.len(), 2, "neither was looked at as the one that was used");
    assert_eq!(it.files.copies.history(), []);
    drop(held);
}

#[test]
fn a_file_that_changes_while_it_is_fetched_is_not_kept() {
    let it = used_before(&["a"], 1 << 20);
    let file = File::open(it.path("a")).unwrap();
    let seen = source::stat(&file).unwrap();
    assert!(it.files.copy_ahead(&file, &seen).unwrap().is_some());
    let mut before = seen;
    before.stamp.changed.tv_sec -= 1;
    assert!(it.files.copy_ahead(&file, &before).unwrap().is_none());
}
