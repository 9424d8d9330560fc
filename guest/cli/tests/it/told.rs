//! Errors reported to writers of kept-back bytes, when these are flushed or refused on behalf of
//! another call.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::thread;
use std::time::Duration;

use flowstone_testkit::fuse::Call;
use flowstone_testkit::wait_until;

use crate::fixture::{Mount, sync};
use crate::kept_back::{LAZY, behind, written};

/// Closes a file, and returns whether the close succeeded.
fn is_closed_well(file: File) -> bool {
    // SAFETY: the descriptor was the file's, and is not used again.
    unsafe { libc::close(file.into_raw_fd()) == 0 }
}

/// Makes a file that is open here, and written at the source by others, and then here; answers of
/// the source take 300 ms from now on. (Children of other tests may close it at any moment.)
fn conflict(mount: &Mount) -> File {
    fs::write(mount.beside("behind/it"), "").unwrap();
    let file = File::options().write(true).open(mount.at("it")).unwrap();
    thread::sleep(Duration::from_millis(20));
    fs::write(mount.beside("behind/it"), "theirs").unwrap();
    file.write_all_at(b"ours", 0).unwrap();
    mount.server().slow(Duration::from_millis(300));
    file
}

fn is_kept_beside(mount: &Mount) {
    mount.server().slow(Duration::ZERO);
    wait_until("it is kept beside", || mount.stat("conflicts") == 1);
    assert_eq!(behind(mount, "it"), "theirs");
}

/// It found nothing to flush, after the other call, and did not check that one's error.
#[test]
fn a_sync_or_close_that_waits_for_the_write_back_by_time_is_told_of_the_conflict() {
    for closes in [false, true] {
        let lazily = if closes { &[][..] } else { &["--lazy-close"] };
        let options = [&["--write-back", "1s,64M"][..], lazily].concat();
        let Some(mount) = Mount::over_server(&options) else { return };
        let file = conflict(&mount);
        let before = mount.server().calls();
        let has_begun = || mount.server().calls() > before || mount.stat("conflicts") == 1;
        wait_until("the write-back by time begins", has_begun);
        let is_well = if closes { is_closed_well(file) } else { sync(&file).is_ok() };
        is_kept_beside(&mount);
        assert!(!is_well, "by a close: {closes}");
    }
}

/// The same concurrent with a lock of the file, for which it is flushed.
#[test]
fn a_sync_that_waits_for_a_lock_is_told_of_the_conflict() {
    let Some(mount) = Mount::over_server(&LAZY) else { return };
    let file = conflict(&mount);
    let other = File::open(mount.at("it")).unwrap();
    let synced = thread::scope(|scope| {
        scope.spawn(|| drop(other.lock_shared()));
        thread::sleep(Duration::from_millis(150));
        sync(&file)
    });
    is_kept_beside(&mount);
    assert!(synced.is_err());
}

#[test]
fn two_syncs_at_once_are_both_told_of_the_conflict() {
    let Some(mount) = Mount::over_server(&LAZY) else { return };
    let one = conflict(&mount);
    let two = File::options().write(true).open(mount.at("it")).unwrap();
    two.write_all_at(b"two", 3).unwrap();
    let (first, second) = thread::scope(|scope| {
        let first = scope.spawn(|| sync(&one));
        thread::sleep(Duration::from_millis(150));
        let second = sync(&two);
        (first.join().unwrap(), second)
    });
    is_kept_beside(&mount);
    assert!(first.is_err() && second.is_err(), "{first:?} {second:?}");
}

/// Each close reported the old error, and did not try again.
#[test]
fn a_close_after_a_childs_close_brings_the_file_to_the_source() {
    let Some(mount) = Mount::over_server(&LAZY[..2]) else { return };
    let mut file = File::create(mount.at("it")).unwrap();
    mount.server().refuse(&[Call::Write], libc::ENOSPC);
    file.write_all(b"ours").unwrap();
    assert!(Command::new("true").status().unwrap().success());
    mount.server().recover();
    let is_well = is_closed_well(file);
    assert_eq!(behind(&mount, "it"), "ours", "the close said that all is well: {is_well}");
}

/// Full, then not full.
#[test]
fn a_refusal_is_told_once_to_each_writer() {
    let options = ["--write-back", "200ms,64M", "--lazy-close"];
    let Some(mount) = Mount::over_server(&options) else { return };
    let one = written(&mount, "it", "one");
    let two = File::options().write(true).open(mount.at("it")).unwrap();
    mount.server().refuse(&[Call::Write], libc::ENOSPC);
    one.write_all_at(b"two", 3).unwrap();
    let before = mount.server().count(Call::Write).calls;
    wait_until("it is refused", || mount.server().count(Call::Write).calls > before);
    mount.server().recover();
    wait_until("it is there", || behind(&mount, "it") == "onetwo");
    let told: Vec<_> = [&one, &one, &two, &two].iter().map(|it| sync(it).is_err()).collect();
    assert_eq!(told, [true, false, true, false]);
}

/// An ending child, a duplicate, two writers: closes report the error without consuming it.
#[test]
fn duplicates_and_children_take_nothing() {
    let Some(mount) = Mount::over_server(&LAZY[..2]) else { return };
    let one = written(&mount, "it", "one");
    let two = File::options().write(true).open(mount.at("it")).unwrap();
    let copy = one.try_clone().unwrap();
    mount.server().refuse(&[Call::Write], libc::ENOSPC);
    one.write_all_at(b"more", 3).unwrap();
    assert!(!is_closed_well(copy));
    assert!(Command::new("true").status().unwrap().success());
    mount.server().recover();
    for writer in [&two, &one] {
        assert!(writer.write_all_at(b"x", 9).is_err(), "it is told");
        assert!(writer.write_all_at(b"x", 9).is_ok(), "it is told once");
    }
    assert!(is_closed_well(one) && is_closed_well(two));
    assert_eq!(behind(&mount, "it").len(), 10);
}

#[test]
fn a_writer_is_not_told_of_what_was_refused_before_its_open() {
    let Some(mount) = Mount::over_server(&LAZY) else { return };
    let one = written(&mount, "it", "one");
    mount.server().refuse(&[Call::Write], libc::ENOSPC);
    assert!(sync(&one).is_err());
    let later = File::options().write(true).open(mount.at("it")).unwrap();
    mount.server().recover();
    later.write_all_at(b"later", 3).unwrap();
    sync(&later).unwrap();
    sync(&one).unwrap();
    assert_eq!(behind(&mount, "it"), "onelater");
}

/// A write that is written through reports it.
#[test]
fn a_refusal_that_a_write_has_heard_is_not_said_again() {
    let options = ["--write-back", "1000s,1K", "--lazy-close"];
    let Some(mount) = Mount::over_server(&options) else { return };
    let one = written(&mount, "it", "one");
    mount.server().refuse(&[Call::Write], libc::ENOSPC);
    // There is no room for it: earlier bytes are flushed first.
    assert!(one.write_all_at(&[b'x'; 2000], 3).is_err());
    mount.server().recover();
    sync(&one).unwrap();
    assert_eq!(behind(&mount, "it"), "one");
}
