//! Files whose writes are kept back, and copies: without room, with a hanging source, and with
//! several threads. Each test is a former attack that succeeded.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use flowstone_testkit::fuse::Call;
use flowstone_testkit::{HANG, wait_until};

use crate::fixture::{Mount, sync};
use crate::kept_back::{LAZY, at_source, behind, conflicts, text_of, written};

const TROUBLE: [&str; 7] =
    ["--write-back", "1000s,64M", "--lazy-close", "--window", "100ms", "--source-timeout", "500ms"];

const FAILS: [&str; 6] = ["--window", "100ms", "--source-timeout", "500ms", "--when-down", "fail"];

/// A release while the source was down was answered, and never carried out.
#[test]
fn what_is_closed_while_the_source_is_down_is_closed() {
    let Some(mount) = Mount::over_server(&FAILS) else { return };
    mount.copied("it", "text");
    let held = File::open(mount.at("it")).unwrap();
    assert!(mount.stat("pinned_bytes") > 0);
    mount.server().stop();
    let _ = fs::read_dir(mount.root());
    mount.wait_until_down();
    drop(held);
    mount.server().release();
    wait_until("it is up", || mount.stats()["source"] == "up");
    wait_until("it is closed", || mount.stat("pinned_bytes") == 0);
}

/// The same for its locks: no other owner ever got them.
#[test]
fn a_lock_whose_owner_ends_while_the_source_is_down_is_given_back() {
    let Some(mount) = Mount::over_server(&FAILS) else { return };
    mount.write_source("it", "text");
    let owner = File::options().read(true).write(true).open(mount.at("it")).unwrap();
    owner.try_lock().unwrap();
    mount.server().stop();
    mount.wait_until_down();
    drop(owner);
    mount.server().release();
    wait_until("it is up", || mount.stats()["source"] == "up");
    let next = File::options().read(true).write(true).open(mount.at("it")).unwrap();
    wait_until("the lock is given back", || next.try_lock().is_ok());
}

/// Names were looked up among all nodes, including files that have lost their name.
#[test]
fn a_name_that_was_removed_is_not_there_again_when_the_source_is_down() {
    let Some(mount) = Mount::over_server(&FAILS) else { return };
    mount.copied("it", "text");
    let held = File::open(mount.at("it")).unwrap();
    fs::remove_file(mount.at("it")).unwrap();
    assert!(File::open(mount.at("it")).is_err());
    mount.server().stop();
    mount.wait_until_down();
    let text = fs::read_to_string(mount.at("it"));
    assert!(text.is_err(), "{text:?}");
    drop(held);
}

/// A write that found no room found the conflict, and went into the others' file.
#[test]
fn a_write_that_finds_a_conflict_does_not_go_into_the_file_of_others() {
    let Some(mount) = Mount::start(&["--write-back", "1000s,1K", "--lazy-close"]) else { return };
    mount.write_source("it", "");
    let file = written(&mount, "it", &"x".repeat(1000));
    thread::sleep(Duration::from_millis(20));
    mount.write_source("it", "theirs");
    let wrote = file.write_all_at(&[b'y'; 500], 1000);
    assert_eq!(at_source(&mount, "it"), "theirs", "{wrote:?}");
    assert!(wrote.is_err());
}

/// A kept-back file has all that is needed to open it for reading.
#[test]
fn a_dirty_file_is_opened_for_reading_while_the_source_is_down() {
    let options = [&LAZY[..], &FAILS].concat();
    let Some(mount) = Mount::over_server(&options) else { return };
    drop(written(&mount, "it", "text"));
    assert_eq!(mount.read("it"), "text");
    mount.server().stop();
    mount.wait_until_down();
    let text = fs::read_to_string(mount.at("it"));
    assert_eq!(text.unwrap(), "text");
}

/// Two have written; one was told of the error, and the other one's sync succeeded.
#[test]
fn each_writer_is_told_that_bytes_did_not_get_there() {
    let Some(mount) = Mount::start(&LAZY) else { return };
    mount.write_source("it", "");
    let one = written(&mount, "it", "one");
    let two = File::options().write(true).open(mount.at("it")).unwrap();
    two.write_all_at(b"two", 3).unwrap();
    thread::sleep(Duration::from_millis(20));
    mount.write_source("it", "theirs");
    assert!(sync(&one).is_err());
    assert!(sync(&two).is_err(), "at the source: {}", at_source(&mount, "it"));
}

/// A child that executes a program closes its duplicates of the descriptors, which is a close, too.
#[test]
fn what_a_childs_close_heard_is_told_to_the_writer() {
    for options in [&LAZY[..], &LAZY[..2]] {
        let Some(mount) = Mount::over_server(options) else { return };
        let mut file = File::create(mount.at("it")).unwrap();
        mount.server().refuse(&[Call::Write], libc::ENOSPC);
        file.write_all(b"ours").unwrap();
        if options.contains(&"--lazy-close") {
            // The bytes are flushed for another call.
            assert!(fs::set_permissions(mount.at("it"), Permissions::from_mode(0o600)).is_err());
        }
        assert!(Command::new("true").status().unwrap().success());
        mount.server().recover();
        assert!(sync(&file).is_err(), "{options:?}");
        let again = sync(&file);
        assert!(again.is_ok(), "{options:?}: it is said once, and not {again:?}");
        assert_eq!(behind(&mount, "it"), "ours");
    }
}

/// The kernel retries a call by name that fails with a conflict (ESTALE).
#[test]
fn what_a_change_of_mode_heard_is_told_to_the_writer() {
    let Some(mount) = Mount::start(&LAZY) else { return };
    mount.write_source("it", "");
    let file = written(&mount, "it", "ours");
    thread::sleep(Duration::from_millis(20));
    mount.write_source("it", "theirs");
    let _ = fs::set_permissions(mount.at("it"), Permissions::from_mode(0o600));
    assert!(sync(&file).is_err(), "at the source: {}", at_source(&mount, "it"));
}

/// The name of the conflict file would be too long.
#[test]
fn a_file_with_a_long_name_is_kept_beside() {
    let Some(mount) = Mount::start(&LAZY) else { return };
    let name = "n".repeat(250);
    mount.write_source(&name, "");
    let file = written(&mount, &name, "ours");
    thread::sleep(Duration::from_millis(20));
    mount.write_source(&name, "theirs");
    let first = sync(&file);
    let second = sync(&file);
    assert_eq!(at_source(&mount, &name), "theirs", "{first:?} {second:?}");
    assert_eq!(mount.stat("dirty_bytes"), 0, "{first:?} {second:?}");
}

/// Replacing a file changes it.
#[test]
fn what_was_written_to_a_file_that_others_replace_is_kept_beside() {
    let Some(mut mount) = Mount::start(&LAZY) else { return };
    drop(written(&mount, "it", "ours"));
    mount.write_source("new", "theirs");
    fs::rename(mount.source("new"), mount.source("it")).unwrap();
    assert!(mount.daemon().terminate(HANG).unwrap().success());
    assert_eq!(at_source(&mount, "it"), "theirs");
    let beside = conflicts(mount.source("."));
    assert_eq!(beside.len(), 1, "{beside:?}");
    assert_eq!(fs::read_to_string(&beside[0]).unwrap(), "ours");
}

/// A node knows only one of its names.
#[test]
fn a_second_name_that_goes_is_no_conflict() {
    for renames in [false, true] {
        let Some(mount) = Mount::start(&LAZY) else { return };
        mount.write_source("it", "text");
        fs::hard_link(mount.source("it"), mount.source("link")).unwrap();
        let file = written(&mount, "it", "ours");
        fs::metadata(mount.at("link")).unwrap();
        thread::sleep(Duration::from_millis(20));
        if renames {
            fs::rename(mount.at("it"), mount.at("other")).unwrap();
        } else {
            fs::remove_file(mount.at("it")).unwrap();
        }
        let synced = sync(&file);
        assert!(synced.is_ok(), "{renames} {synced:?}");
        assert_eq!(at_source(&mount, "link"), "ours");
    }
}

/// Extending a file takes room, too.
#[test]
fn copies_take_no_more_than_they_may_when_a_file_is_made_longer() {
    let options = ["--write-back", "1000s,1M", "--lazy-close", "--memory", "4M"];
    let Some(mount) = Mount::start(&options) else { return };
    let file = written(&mount, "it", "");
    file.set_len(32 << 20).unwrap();
    for part in 0..32_u64 {
        file.write_all_at(&vec![b'x'; 1 << 20], part << 20).unwrap();
    }
    let (cached, limit) = (mount.stat("cached_bytes"), mount.stat("limit_bytes"));
    assert!(cached <= limit, "{cached} of {limit}");
}

/// A file that is written through is opened by others while it is still empty.
#[test]
fn two_writers_of_a_file_one_of_which_finds_no_room_lose_nothing() {
    let Some(mount) = Mount::start(&["--write-back", "1000s,1K", "--lazy-close"]) else { return };
    for round in 0..400 {
        let name = format!("{round}");
        mount.write_source(&name, "");
        let open = || File::options().read(true).write(true).open(mount.at(&name)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| open().write_all_at(&[b'a'; 3000], 0).unwrap());
            scope.spawn(|| {
                thread::sleep(Duration::from_micros(round * 2));
                open().write_all_at(&[b'b'; 10], 5000).unwrap();
            });
        });
        let read = fs::read(mount.at(&name)).unwrap();
        let is_whole = |bytes: &[u8]| {
            bytes.len() == 5010 && bytes[..3000] == [b'a'; 3000] && bytes[5000..] == [b'b'; 10]
        };
        let (dirty, there) = (mount.stat("dirty_bytes"), fs::read(mount.source(&name)).unwrap());
        let synced = sync(&open());
        let summary = format!(
            "round {round}: {} read, first {:?}; dirty {dirty}; {} there, whole {}; {synced:?}",
            read.len(),
            read.first(),
            there.len(),
            is_whole(&there)
        );
        assert!(is_whole(&read), "{summary}");
        assert!(synced.is_ok(), "{summary}");
        assert_eq!(mount.stat("conflicts"), 0, "round {round}");
    }
}

/// A file is replaced while an older one is open.
#[test]
fn a_name_leads_to_the_last_file_while_the_source_is_down() {
    let Some(mount) = Mount::over_server(&FAILS) else { return };
    let mut held = Vec::new();
    for round in 0..6 {
        mount.write_source("new", format!("{round}"));
        fs::rename(mount.source("new"), mount.source("it")).unwrap();
        wait_until("it is seen", || mount.read("it") == format!("{round}"));
        mount.wait_for_copy("it");
        held.push(File::open(mount.at("it")).unwrap());
    }
    mount.server().stop();
    mount.wait_until_down();
    let text = fs::read_to_string(mount.at("it"));
    assert_eq!(text.unwrap(), "5");
}

/// The operation at the source started again with each concurrent write.
#[test]
fn a_lock_of_a_file_that_is_being_written_is_got() {
    let Some(mount) = Mount::over_server(&LAZY) else { return };
    let file = written(&mount, "it", "text");
    mount.server().slow(Duration::from_millis(20));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (file, is_over) = (&file, &is_over);
        let writer = scope.spawn(move || {
            let began = Instant::now();
            while !is_over.load(Ordering::Relaxed) && began.elapsed() < HANG {
                file.write_all_at(&[b'x'; 100], 0).unwrap();
            }
            is_over.load(Ordering::Relaxed)
        });
        file.lock().unwrap();
        is_over.store(true, Ordering::Relaxed);
        assert!(writer.join().unwrap(), "the lock was got when the writer had given up");
    });
}

/// An answer of the source from before the flush arrives after it.
#[test]
fn a_late_answer_does_not_cut_a_file_that_was_written_back() {
    let Some(mount) = Mount::over_server(&[&LAZY[..], &["--window", "200ms"]].concat()) else {
        return;
    };
    drop(written(&mount, "it", ""));
    let mut file = File::options().append(true).open(mount.at("it")).unwrap();
    file.write_all(b"first").unwrap();
    thread::sleep(Duration::from_millis(400));
    mount.server().slow(Duration::from_millis(1000));
    let seen = thread::scope(|scope| {
        let look = scope.spawn(|| file.metadata().unwrap().len());
        thread::sleep(Duration::from_millis(300));
        mount.server().slow(Duration::ZERO);
        sync(&file).unwrap();
        look.join().unwrap()
    });
    file.write_all(b"second").unwrap();
    sync(&file).unwrap();
    assert_eq!((behind(&mount, "it").as_str(), seen), ("firstsecond", 5));
}

/// Others changed a file while it was written through, and a writer opens it again.
#[test]
fn a_sync_by_an_open_that_was_ended_is_a_sync_of_the_file() {
    let Some(mount) = Mount::start(&LAZY) else { return };
    let old = written(&mount, "it", "");
    old.lock().unwrap();
    old.unlock().unwrap();
    let new = written(&mount, "it", "text");
    sync(&old).unwrap();
    assert_eq!(at_source(&mount, "it"), "text");
    drop(new);
}

/// The source's answer at the open was shown, although it had got bytes since.
#[test]
fn a_file_that_was_brought_to_the_source_has_its_size_while_that_is_down() {
    let Some(mount) = Mount::over_server(&TROUBLE) else { return };
    drop(written(&mount, "it", ""));
    let mut file = File::options().append(true).open(mount.at("it")).unwrap();
    file.write_all(b"first").unwrap();
    sync(&file).unwrap();
    mount.server().stop();
    let _ = fs::metadata(mount.at("it"));
    wait_until("it is down", || mount.stats()["source"] == "down");
    thread::sleep(Duration::from_millis(150));
    let seen = file.metadata().unwrap().len();
    file.write_all(b"second").unwrap();
    mount.server().release();
    sync(&file).unwrap();
    assert_eq!((behind(&mount, "it").as_str(), seen), ("firstsecond", 5));
}

/// The same without write-back: a copy was refreshed in place.
#[test]
fn a_copy_that_was_brought_up_to_date_has_its_size_while_the_source_is_down() {
    for modes in ["copy,source,plain", "plain"] {
        let options = [&FAILS[..], &["--modes", modes]].concat();
        let Some(mount) = Mount::over_server(&options) else { return };
        mount.copied("it", "text");
        let held = File::open(mount.at("it")).unwrap();
        let mut behind = File::options().append(true).open(mount.beside("behind/it")).unwrap();
        behind.write_all(b" more").unwrap();
        wait_until("it is seen", || {
            text_of(&held) == "text more" && held.metadata().unwrap().len() == 9
        });
        thread::sleep(Duration::from_millis(500));
        mount.server().stop();
        mount.wait_until_down();
        thread::sleep(Duration::from_millis(150));
        let seen = held.metadata().map(|it| it.len());
        assert_eq!((seen.ok(), text_of(&held).as_str()), (Some(9), "text more"), "{modes}");
    }
}

/// Writing back waits for a source that hangs, too.
#[test]
fn a_termination_says_what_it_waits_for_when_the_source_hangs() {
    let Some(mut mount) = Mount::over_server(&TROUBLE) else { return };
    drop(written(&mount, "it", "text"));
    mount.server().stop();
    let pid = rustix::process::Pid::from_raw(mount.daemon().pid().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    wait_until("it says so", || mount.daemon().stderr().contains("not written to the source yet"));
}

/// Dirty files have no place in the policy, which gave the same room away again.
#[test]
fn copies_and_what_is_dirty_take_no_more_than_they_may() {
    let Some(mount) = Mount::start(&[&LAZY[..], &["--memory", "4M"]].concat()) else { return };
    for number in 0..14 {
        mount.write_source(&format!("clean-{number}"), vec![b'x'; 250_000]);
        fs::write(mount.at(&format!("dirty-{number}")), vec![b'x'; 250_000]).unwrap();
    }
    thread::sleep(Duration::from_millis(2200));
    let mut most = 0;
    for _ in 0..20 {
        for number in 0..14 {
            fs::read(mount.at(&format!("clean-{number}"))).unwrap();
        }
        thread::sleep(Duration::from_millis(200));
        most = most.max(mount.stat("cached_bytes"));
    }
    let (dirty, limit) = (mount.stat("dirty_bytes"), mount.stat("limit_bytes"));
    assert!(most <= limit, "{most} of {limit}, {dirty} dirty, {}", mount.stats());
}
