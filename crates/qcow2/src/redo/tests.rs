//! Tests of a redo file alone.

use std::path::PathBuf;

use rustix::fs::{FlockOperation, flock};

use super::*;

fn record(number: u64) -> RedoRecord {
    RedoRecord { guest: GuestCluster(number), entry: number << 16 }
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let image = place.path().join("a.qcow2");
    std::fs::write(&image, "").unwrap();
    (place, image)
}

/// A place on a local file system, without a folder in the memory of the host.
pub fn beside(image: &Path) -> Place<'_> {
    Place { image, folders: &[], asks_server: |_| false }
}

/// Begins the session of an image, as if its header had the mark.
pub fn begin(image: &Path) -> Redo {
    let mut redo = Redo::begin(beside(image)).unwrap();
    redo.keep();
    redo
}

/// Returns the changes that are left; none if there is nothing, or only a void file.
fn left(image: &Path, mark: Mark) -> Result<Vec<RedoRecord>, Why> {
    let left = recall(Some(beside(image)), mark.bits());
    left.map(|left| left.changes().to_vec()).map_err(|lost| lost.why)
}

fn path_of(redo: &Redo) -> PathBuf {
    redo.beside.path()
}

fn resume(image: &Path, mark: Mark) -> Result<Redo, Lost> {
    match recall(Some(beside(image)), mark.bits()).unwrap() {
        Left::Changes(found, _) => Redo::resume(beside(image), found),
        other => panic!("{other:?}"),
    }
}

/// On a full host a store to an unallocated page would end the process.
#[test]
fn the_file_has_its_space_from_the_start() {
    let (_place, image) = place();
    let redo = begin(&image);
    let given = std::fs::metadata(path_of(&redo)).unwrap();
    assert!(given.blocks() * 512 >= given.len(), "{} blocks", given.blocks());
}

#[test]
fn a_session_that_has_ended_maps_nothing() {
    let (_place, image) = place();
    let redo = begin(&image);
    let path = path_of(&redo).to_str().unwrap().to_owned();
    let is_mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| line.contains(&path))
    };
    assert!(is_mapped());
    drop(redo);
    assert!(!is_mapped());
}

#[test]
fn records_outlive_the_process_that_wrote_them() {
    let (_place, image) = place();
    let mut redo = begin(&image);
    (0..5).for_each(|number| redo.append(record(number)));
    redo.forget_before(2);
    let mark = redo.mark();
    drop(redo);
    let expected: Vec<_> = (2..5).map(record).collect();
    assert_eq!(left(&image, mark).unwrap(), expected);
    assert_eq!(left(&image, mark.next()).unwrap(), expected, "killed in its first commit");
    let mut redo = resume(&image, mark).unwrap();
    assert_eq!((redo.mark(), redo.room()), (mark, RECORDS - 3));
    for number in 0..RECORDS - 3 {
        redo.append(record(number));
    }
    assert_eq!(redo.room(), 0);
    let found = left(&image, mark).unwrap();
    assert_eq!(found.last(), Some(&record(RECORDS - 4)));
    redo.set_committed(mark.next(), redo.end());
    assert_eq!(redo.room(), RECORDS);
    assert_eq!(left(&image, mark.next()).unwrap(), []);
    let path = path_of(&redo);
    assert!(path.exists());
    redo.remove().unwrap();
    assert!(!path.exists());
}

#[test]
fn what_is_not_of_the_last_session_is_not_believed() {
    let (place, image) = place();
    let mut redo = begin(&image);
    let first = redo.mark();
    redo.append(record(1));
    redo.set_committed(first.next().next(), 0);
    assert_eq!(left(&image, first).unwrap(), [], "an earlier state of the image");
    let mark = redo.mark();
    assert_eq!(left(&image, mark).unwrap(), [record(1)]);
    redo.store(MARK_WORD, mark.bits() ^ 1 << 24);
    assert!(matches!(left(&image, mark), Err(Why::Other)), "another session");
    redo.store(MARK_WORD, mark.bits());
    assert!(matches!(recall(Some(beside(&image)), 0), Ok(Left::Nothing)), "not marked");
    let without = recall(None, mark.bits()).unwrap_err();
    assert!(matches!(without.why, Why::Missing));
    std::fs::copy(&image, place.path().join("b")).unwrap();
    std::fs::rename(place.path().join("b"), &image).unwrap();
    assert!(matches!(left(&image, mark), Err(Why::Other)), "another file");
    std::fs::remove_file(path_of(&redo)).unwrap();
    assert!(matches!(left(&image, mark), Err(Why::Missing)));
    let other_boot = Mark::of(mark.bits() ^ 1 << 48).unwrap();
    assert!(matches!(left(&image, other_boot), Err(Why::Missing)), "wherever it is missed");
}

#[test]
fn what_cannot_be_read_is_not_passed_over() {
    let (_place, image) = place();
    let redo = begin(&image);
    let mark = redo.mark();
    redo.store(START_WORD, 1);
    assert!(matches!(left(&image, mark), Err(Why::Strange)));
    redo.store(0, 5);
    assert!(matches!(left(&image, mark), Err(Why::Strange)));
    redo.store(0, MAGIC_1);
    assert!(matches!(left(&image, mark), Err(Why::Other)));
    let path = path_of(&redo);
    std::fs::write(&path, "short").unwrap();
    assert!(matches!(left(&image, mark), Err(Why::Strange)));
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert!(matches!(left(&image, mark), Err(Why::Foreign(_))));
}

/// An existing file of this name belongs to another session, or another owner.
#[test]
fn a_name_that_is_taken_is_not_taken_again() {
    let (place, image) = place();
    let folder = Folder::of(&image).unwrap();
    let name = name_of(Mark::begin().unwrap());
    std::fs::write(place.path().join(&name), "theirs").unwrap();
    let error = folder.create(&name).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
}

/// Its lock protects it from sessions that look for one.
#[test]
fn a_file_in_use_is_locked_and_is_not_removed_as_void() {
    let (_place, image) = place();
    let mut redo = begin(&image);
    let (mark, path) = (redo.mark(), path_of(&redo));
    redo.set_committed(mark.next().next(), 0);
    let file = File::open(&path).unwrap();
    let is_locked = || flock(&file, FlockOperation::NonBlockingLockExclusive).is_err();
    assert!(is_locked());
    let void = recall(Some(beside(&image)), mark.bits()).unwrap();
    assert!(matches!(void, Left::Void(_)));
    void.remove();
    assert!(path.exists());
    drop(redo);
    assert!(!is_locked());
    drop(file);
    recall(Some(beside(&image)), mark.bits()).unwrap().remove();
    assert!(!path.exists());
}

/// The last timestamp tells whether the host has been restarted since.
#[test]
fn each_commit_is_a_sign_of_life() {
    let (_place, image) = place();
    let mut redo = begin(&image);
    assert!(redo.load(ALIVE_WORD) > 0 && redo.load(STARTED_WORD) > 0);
    redo.store(ALIVE_WORD, 0);
    redo.set_committed(redo.mark().next(), 0);
    assert!(redo.load(ALIVE_WORD) > 0);
}

/// Operators who find one need to know which image it belongs to.
#[test]
fn the_path_of_the_image_is_in_the_file() {
    let (_place, image) = place();
    let redo = begin(&image);
    let bytes = std::fs::read(path_of(&redo)).unwrap();
    let path = image.canonicalize().unwrap();
    let path = path.as_os_str().as_bytes();
    assert_eq!(&bytes[512..512 + path.len()], path);
    assert_eq!(bytes[512 + path.len()], 0);
}

/// A lost page of it ended the process, with all other disks.
#[test]
fn a_redo_file_that_is_made_shorter_ends_nothing_and_is_not_believed_later() {
    let (_place, image) = place();
    let mut redo = begin(&image);
    let mark = redo.mark();
    redo.beside.file.set_len(0).unwrap();
    redo.append(record(1));
    redo.set_committed(mark.next(), 1);
    redo.append(record(2));
    drop(redo);
    assert!(matches!(left(&image, mark), Err(Why::Strange)));
}
