//! Tests of the names of copies: their content, and when they are given and removed.

use std::cell::Cell;
use std::io::Write;

use super::*;

const SOURCE: &str = "/srv/shared\n2\n0";

fn some_file() -> (Identity, Stamp) {
    let modified = Timespec { tv_sec: -3, tv_nsec: 999_999_999 };
    let changed = Timespec { tv_sec: 1_700_000_000, tv_nsec: 1 };
    (Identity { device: 7, inode: u64::MAX, birth: -1 }, Stamp { size: 4, modified, changed })
}

fn shelf(folder: &Path) -> Shelf {
    Shelf::open(folder, SOURCE.to_owned(), 7).unwrap()
}

fn written(shelf: &Shelf) -> File {
    let mut file = shelf.new_file().unwrap();
    file.write_all(b"text").unwrap();
    file
}

fn names(folder: &Path) -> usize {
    std::fs::read_dir(folder.join(FOLDER)).unwrap().count()
}

#[test]
fn a_name_says_which_file_and_stamp_whatever_number_its_file_system_has() {
    let (identity, stamp) = some_file();
    let name = name(SOURCE, identity, stamp);
    let elsewhere = Identity { device: 8, ..identity };
    assert_eq!(parse(SOURCE, 8, &name), Some((elsewhere, stamp)));
    assert!(name.len() < 255);
}

/// A name truncated by a file system, or of another source, is invalid.
#[test]
fn a_name_that_is_cut_or_changed_or_of_another_source_is_none() {
    let (identity, stamp) = some_file();
    let whole = name(SOURCE, identity, stamp);
    for cut in 0..whole.len() {
        assert_eq!(parse(SOURCE, 7, &whole[..cut]), None, "{}", &whole[..cut]);
    }
    for at in 0..whole.len() {
        for bit in 0..7 {
            let mut bytes = whole.clone().into_bytes();
            bytes[at] ^= 1 << bit;
            let other = String::from_utf8(bytes).unwrap();
            // Capital letters are the same number.
            let is_same = other.eq_ignore_ascii_case(&whole);
            assert!(is_same || parse(SOURCE, 7, &other).is_none(), "{other}");
        }
    }
    assert_eq!(parse("/srv/other\n2\n0", 7, &whole), None);
}

#[test]
fn bytes_that_are_not_on_the_disk_get_no_name() {
    let is_named = Cell::new(false);
    let link = || {
        is_named.set(true);
        Ok(())
    };
    assert_eq!(after_sync(|| Err(Errno::IO), link), Err(Errno::IO));
    assert!(!is_named.get());
    assert_eq!(after_sync(|| Ok::<(), Errno>(()), link), Ok(()));
    assert!(is_named.get());
}

#[test]
fn the_next_daemon_finds_whole_copies_and_removes_all_else() {
    let folder = tempfile::tempdir().unwrap();
    let (identity, stamp) = some_file();
    let first = Arc::new(shelf(folder.path()));
    for (inode, size) in [(1, 4), (2, 5)] {
        let (identity, stamp) = (Identity { inode, ..identity }, Stamp { size, ..stamp });
        Name::none(Some(first.clone())).give(&written(&first), identity, stamp, || true);
    }
    let unwanted = Identity { inode: 3, ..identity };
    Name::none(Some(first.clone())).give(&written(&first), unwanted, stamp, || false);
    let below = Identity { device: 8, ..identity };
    Name::none(Some(first.clone())).give(&written(&first), below, stamp, || true);
    std::fs::write(folder.path().join(FOLDER).join("foreign"), "x").unwrap();
    assert_eq!(names(folder.path()), 3);
    drop(first);
    let found = shelf(folder.path()).find().unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].identity, Identity { inode: 1, ..identity });
    assert_eq!(names(folder.path()), 1, "the short one and the foreign one are gone");
}

#[test]
fn a_name_is_gone_when_the_copy_is_dropped_or_its_bytes_are_about_to_change() {
    let folder = tempfile::tempdir().unwrap();
    let (identity, stamp) = some_file();
    let shelf = Arc::new(shelf(folder.path()));
    for change in [false, true] {
        let name = Name::none(Some(shelf.clone()));
        name.give(&written(&shelf), identity, stamp, || true);
        assert_eq!(names(folder.path()), 1);
        if change {
            name.take_for_good().unwrap();
        } else {
            name.take();
        }
        assert_eq!(names(folder.path()), 0);
    }
}

#[test]
fn a_folder_is_one_daemons() {
    let folder = tempfile::tempdir().unwrap();
    let first = shelf(folder.path());
    let second = Shelf::open(folder.path(), SOURCE.to_owned(), 7);
    assert_eq!(second.err().unwrap().to_string(), "another cache uses it");
    drop(first);
    shelf(folder.path());
}
