//! The consistency guarantees of docs/filecache.md: a test for each sentence. In every test the
//! source is changed behind the cache's back.

use std::fs::{self, File, FileTimes};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;

use flowstone_testkit::wait_until;

use crate::fixture::{Mount, append, rest_of, wait_for_text};

/// The ways in which files can be served.
const MODES: [&str; 3] = ["copy,source,plain", "copy,plain", "plain"];
/// A window that no test outlasts.
const NEVER: &str = "1000s";

fn each(options: &[&str], test: impl Fn(&Mount)) {
    for modes in MODES {
        let options = [options, &["--modes", modes]].concat();
        let Some(mount) = Mount::start(&options) else { return };
        test(&mount);
    }
}

#[test]
fn an_open_sees_what_was_closed_before_it() {
    each(&["--window", NEVER], |mount| {
        mount.write_source("it", "first");
        assert_eq!(mount.read("it"), "first");
        mount.write_source("it", "other");
        assert_eq!(mount.read("it"), "other", "of the same size");
        mount.write_source("it", "a longer one");
        assert_eq!(mount.read("it"), "a longer one");
        mount.write_source("it", "less");
        assert_eq!(mount.read("it"), "less");
    });
}

#[test]
fn an_open_of_a_copy_sees_what_was_closed_before_it() {
    each(&["--window", NEVER], |mount| {
        mount.copied("it", "first");
        mount.write_source("it", "other");
        assert_eq!(mount.read("it"), "other", "of the same size");
        mount.wait_for_copy("it");
        mount.write_source("it", "a longer one");
        assert_eq!(mount.read("it"), "a longer one");
    });
}

#[test]
fn an_overwrite_of_the_same_size_with_the_old_time_is_seen() {
    each(&["--window", NEVER], |mount| {
        mount.copied("it", "first");
        let time = fs::metadata(mount.source("it")).unwrap().modified().unwrap();
        mount.write_source("it", "other");
        let file = File::options().write(true).open(mount.source("it")).unwrap();
        file.set_times(FileTimes::new().set_modified(time)).unwrap();
        drop(file);
        assert_eq!(mount.read("it"), "other");
    });
}

#[test]
fn a_changed_size_is_taken_back_before_the_open_is_answered() {
    each(&["--window", NEVER], |mount| {
        mount.write_source("it", "first");
        assert_eq!(fs::metadata(mount.at("it")).unwrap().len(), 5);
        append(&mount.source("it"), " and second");
        let file = File::open(mount.at("it")).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 16);
    });
}

#[test]
fn a_file_that_is_replaced_by_rename_is_always_there_and_the_new_one_is_seen() {
    each(&["--window", NEVER], |mount| {
        mount.copied("it", "0");
        let held = File::open(mount.at("it")).unwrap();
        for round in 1..50 {
            fs::write(mount.source("new"), round.to_string()).unwrap();
            fs::rename(mount.source("new"), mount.source("it")).unwrap();
            assert_eq!(mount.read("it"), round.to_string());
        }
        let mut held = held;
        assert_eq!(rest_of(&mut held), "0", "an open file is the one that was opened");
    });
}

#[test]
fn an_append_to_a_file_that_is_open_here_is_seen() {
    each(&["--window", "200ms"], |mount| {
        for is_copied in [false, true] {
            let name = if is_copied { "copied" } else { "new" };
            mount.write_source(name, "first");
            if is_copied {
                mount.wait_for_copy(name);
            }
            let mut reader = File::open(mount.at(name)).unwrap();
            assert_eq!(rest_of(&mut reader), "first");
            append(&mount.source(name), " and second");
            let mut seen = String::new();
            wait_until("the append is seen", || {
                seen += &rest_of(&mut reader);
                seen == " and second"
            });
            assert_eq!(reader.metadata().unwrap().len(), 16);
        }
    });
}

#[test]
fn names_and_attributes_are_no_older_than_the_window() {
    each(&["--window", "200ms"], |mount| {
        mount.write_source("old", "text");
        assert_eq!(fs::metadata(mount.at("old")).unwrap().len(), 4);
        assert!(fs::metadata(mount.at("new")).is_err());
        append(&mount.source("old"), "!");
        wait_until("the size is seen", || fs::metadata(mount.at("old")).unwrap().len() == 5);
        fs::rename(mount.source("old"), mount.source("new")).unwrap();
        wait_until("the new name is seen", || mount.at("new").exists());
        wait_until("the old name is gone", || !mount.at("old").exists());
    });
}

#[test]
fn the_names_in_a_folder_are_no_older_than_the_window() {
    each(&["--window", "200ms"], |mount| {
        let names = || fs::read_dir(mount.root()).unwrap().count();
        mount.write_source("one", "");
        wait_until("it is listed", || names() == 1);
        mount.write_source("two", "");
        wait_until("the other one is listed, too", || names() == 2);
        fs::write(mount.at("three"), "").unwrap();
        assert_eq!(names(), 3, "what is made here is listed at once");
        fs::remove_file(mount.source("one")).unwrap();
        wait_until("it is not listed any more", || names() == 2);
        fs::rename(mount.at("two"), mount.at("four")).unwrap();
        assert!(fs::read_dir(mount.root()).unwrap().any(|it| it.unwrap().file_name() == "four"));
    });
}

#[test]
fn a_name_that_is_gone_is_gone_at_the_next_open() {
    each(&["--window", NEVER], |mount| {
        mount.copied("it", "text");
        fs::remove_file(mount.source("it")).unwrap();
        let error = File::open(mount.at("it")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    });
}

#[test]
fn what_has_just_changed_is_not_copied() {
    each(&[], |mount| {
        mount.write_source("it", "first");
        let changed = fs::metadata(mount.source("it")).unwrap().modified().unwrap();
        loop {
            mount.read("it");
            let hits = mount.stat("hits");
            if changed.elapsed().unwrap().as_secs_f64() > 1.5 {
                break;
            }
            assert_eq!(hits, 0, "{:?} after the change", changed.elapsed());
        }
        mount.wait_for_copy("it");
    });
}

#[test]
fn a_trusted_copy_is_not_compared_and_that_is_counted() {
    each(&["--trust", NEVER, "--window", NEVER], |mount| {
        mount.copied("it", "first");
        let before = mount.stat("unchecked_opens");
        mount.write_source("it", "other");
        // Attributes are not requested: that would query the source.
        let file = File::open(mount.at("it")).unwrap();
        let mut bytes = [0; 5];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"first");
        assert_eq!(mount.stat("unchecked_opens"), before + 1);
        fs::write(mount.source("new"), "other").unwrap();
        fs::rename(mount.source("new"), mount.source("it")).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 5, "an open file has attributes");
        drop(file);
        append(&mount.at("it"), "!");
        assert_eq!(mount.read("it"), "other!", "a writer asks the source");
    });
}

#[test]
fn no_open_is_unchecked_unless_that_is_asked_for() {
    each(&[], |mount| {
        mount.copied("it", "first");
        assert_eq!(mount.stat("unchecked_opens"), 0);
        wait_for_text(&mount.at("it"), "first");
    });
}
