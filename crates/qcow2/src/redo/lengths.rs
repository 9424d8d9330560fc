//! Tests of redo files that are too long, or claim too many records.

use super::tests::{begin, beside};
use super::*;

#[test]
fn a_redo_file_that_is_too_long_or_names_too_many_records_is_damaged() {
    let place = tempfile::tempdir().unwrap();
    let image = place.path().join("a.qcow2");
    std::fs::write(&image, "").unwrap();
    let redo = begin(&image);
    let mark = redo.mark();
    // A page, and two words for each record.
    let given = std::fs::metadata(redo.beside.path()).unwrap();
    assert_eq!(given.len(), 4096 + 16 * (1 << 18));
    let left = || recall(Some(beside(&image)), mark.bits()).map_err(|lost| lost.why);
    for (start, end, is_sound) in
        [(0, RECORDS, true), (7, 7 + RECORDS, true), (7, 8 + RECORDS, false), (8, 7, false)]
    {
        redo.store(START_WORD, start);
        redo.store(END_WORD, end);
        match left() {
            Ok(left) => assert!(is_sound && left.changes().len() as u64 == RECORDS),
            Err(why) => assert!(!is_sound && matches!(why, Why::Strange), "{why:?}"),
        }
    }
    redo.store(END_WORD, 8);
    assert!(left().is_ok());
    let file = File::options().write(true).open(redo.beside.path()).unwrap();
    file.set_len((WORDS * 8) as u64 + 1).unwrap();
    assert!(matches!(left(), Err(Why::Strange)));
}
