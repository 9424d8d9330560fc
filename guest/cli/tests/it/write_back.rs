//! Write-back (docs/filecache.md, "Writes that are kept back").

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use flowstone_testkit::fuse::Call;
use flowstone_testkit::{HANG, wait_until};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{Mount, append, sync};

/// Longer than a test.
const LAZY: [&str; 3] = ["--write-back", "1000s,64M", "--lazy-close"];

fn at_source(mount: &Mount, name: &str) -> String {
    fs::read_to_string(mount.source(name)).unwrap()
}

fn is_clean(mount: &Mount) -> bool {
    mount.stat("dirty_bytes") == 0
}

/// Creates a file, and writes to it.
fn written(mount: &Mount, name: &str, text: &str) -> File {
    let mut file = File::create(mount.at(name)).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// Returns the conflict files of a file.
fn beside(mount: &Mount, name: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(mount.source(".")).unwrap().map(|it| it.unwrap().path());
    let is_beside = |path: &PathBuf| {
        path.file_name().unwrap().to_string_lossy().starts_with(&format!("{name}.conflict-"))
    };
    entries.filter(is_beside).collect()
}

#[test]
fn a_write_is_seen_here_at_once() {
    for modes in ["copy,source,plain", "plain"] {
        let Some(mount) = Mount::start(&[&LAZY[..], &["--modes", modes]].concat()) else { return };
        let file = written(&mount, "it", "text");
        assert_eq!((mount.read("it").as_str(), at_source(&mount, "it").as_str()), ("text", ""));
        assert_eq!(fs::metadata(mount.at("it")).unwrap().len(), 4);
        assert_eq!(mount.stat("dirty_bytes"), 4);
        drop(file);
        assert_eq!((mount.read("it").as_str(), at_source(&mount, "it").as_str()), ("text", ""));
    }
}

/// Also by the close of a child's descriptor, by which other tests of this process interfere: the
/// content before the close is not checked.
#[test]
fn a_close_writes_back() {
    let Some(mount) = Mount::start(&["--write-back", "1000s,64M"]) else { return };
    drop(written(&mount, "it", "text"));
    assert_eq!(at_source(&mount, "it"), "text");
    assert_eq!((mount.stat("dirty_bytes"), mount.read("it")), (0, "text".into()));
}

#[test]
fn what_is_synced_is_at_the_source() {
    let Some(mount) = Mount::start(&LAZY) else { return };
    let mut file = written(&mount, "it", "text");
    sync(&file).unwrap();
    assert_eq!(at_source(&mount, "it"), "text");
    file.write_all(b" and more").unwrap();
    assert_eq!((at_source(&mount, "it").as_str(), mount.stat("dirty_bytes")), ("text", 9));
    sync(&file).unwrap();
    assert_eq!(at_source(&mount, "it"), "text and more");
}

#[test]
fn a_lazy_close_leaves_it_here_for_the_time_that_is_given() {
    let options = ["--write-back", "1,64M", "--lazy-close"];
    let Some(mount) = Mount::start(&options) else { return };
    drop(written(&mount, "it", "text"));
    assert_eq!(mount.read("it"), "text");
    // Names and attributes expire.
    wait_until("it is at the source", || {
        assert_eq!(mount.read("it"), "text");
        assert_eq!(fs::metadata(mount.at("it")).unwrap().len(), 4);
        at_source(&mount, "it") == "text"
    });
    wait_until("it is clean", || is_clean(&mount));
    append(&mount.at("it"), " and more");
    assert_eq!(mount.read("it"), "text and more");
}

#[test]
fn no_more_is_dirty_than_may_be() {
    let options = ["--write-back", "1000s,1M", "--lazy-close"];
    let Some(mount) = Mount::start(&options) else { return };
    for number in 0..30_u8 {
        fs::write(mount.at(&format!("{number}")), vec![number; 100_000]).unwrap();
        assert!(mount.stat("dirty_bytes") <= 1 << 20);
    }
    assert!(mount.stat("dirty_bytes") > 0);
    // More than may be dirty at all.
    fs::write(mount.at("large"), vec![b'x'; 5 << 20]).unwrap();
    for number in 0..30_u8 {
        assert_eq!(fs::read(mount.at(&format!("{number}"))).unwrap(), [number; 100_000]);
    }
    assert_eq!(fs::read(mount.at("large")).unwrap(), vec![b'x'; 5 << 20]);
}

/// Copies may take less than may be dirty: the excess is written through.
#[test]
fn what_does_not_fit_into_the_cache_is_written_through() {
    let options = [&LAZY[..], &["--memory", "1M"]].concat();
    let Some(mount) = Mount::start(&options) else { return };
    for number in 0..8_u8 {
        fs::write(mount.at(&format!("{number}")), vec![number; 400_000]).unwrap();
        assert!(mount.stat("dirty_bytes") <= 1 << 20);
    }
    for number in 0..8_u8 {
        assert_eq!(fs::read(mount.at(&format!("{number}"))).unwrap(), [number; 400_000]);
    }
}

#[test]
fn a_termination_and_an_unmount_write_back() {
    for signal in [true, false] {
        let Some(mut mount) = Mount::start(&LAZY) else { return };
        drop(written(&mount, "closed", "text"));
        let open = written(&mount, "open", "text");
        if signal {
            assert!(mount.daemon().terminate(HANG).unwrap().success());
        } else {
            drop(open);
            // A child of another test has it open, too, until it executes another program.
            wait_until("nothing is open", || {
                let unmounted = unmount(mount.root(), UnmountFlags::empty());
                assert!(matches!(unmounted, Ok(()) | Err(Errno::BUSY)), "{unmounted:?}");
                unmounted.is_ok()
            });
            assert!(mount.daemon().wait(HANG).unwrap().success());
        }
        assert_eq!(at_source(&mount, "closed"), "text");
        assert_eq!(at_source(&mount, "open"), "text");
    }
}

/// A crash loses bytes that were neither synced, nor closed, nor old enough.
#[test]
fn a_kill_loses_what_is_dirty_and_nothing_else() {
    let Some(mut mount) = Mount::start(&LAZY) else { return };
    mount.write_source("old", "old text");
    let file = written(&mount, "synced", "text");
    sync(&file).unwrap();
    let dirty = written(&mount, "dirty", "text");
    mount.daemon().kill().unwrap();
    drop((file, dirty));
    mount.begin();
    assert_eq!(mount.read("synced"), "text");
    assert_eq!((mount.read("dirty"), mount.read("old")), (String::new(), "old text".into()));
}

#[test]
fn a_file_that_changed_at_the_source_is_kept_beside_and_never_written_over() {
    for is_closed in [false, true] {
        let Some(mut mount) = Mount::start(&LAZY) else { return };
        mount.write_source("it", "");
        let file = written(&mount, "it", "ours");
        mount.write_source("it", "theirs");
        if is_closed {
            drop(file);
            // The waiting caller gets the error.
            assert!(mount.daemon().terminate(HANG).unwrap().success());
        } else {
            assert_eq!(sync(&file).unwrap_err().raw_os_error(), Some(libc::ESTALE));
            assert_eq!((mount.stat("conflicts"), mount.stat("dirty_bytes")), (1, 0));
        }
        assert_eq!(at_source(&mount, "it"), "theirs");
        let beside = beside(&mount, "it");
        assert_eq!(beside.len(), 1, "{beside:?}");
        assert_eq!(fs::read_to_string(&beside[0]).unwrap(), "ours");
    }
}

/// Only the written bytes, into the file that the copy is of.
#[test]
fn a_part_of_a_copied_file_is_written_and_nothing_else() {
    let Some(mount) = Mount::over_server(&LAZY) else { return };
    mount.copied("it", vec![b'a'; 1 << 20]);
    let before = mount.server().count(Call::Write).bytes;
    let file = File::options().read(true).write(true).open(mount.at("it")).unwrap();
    file.write_all_at(b"one", 1000).unwrap();
    file.write_all_at(b"two", 900_000).unwrap();
    assert_eq!(mount.stat("dirty_bytes"), 6);
    let mut read = [0; 5];
    file.read_exact_at(&mut read, 999).unwrap();
    assert_eq!(&read, b"aonea");
    sync(&file).unwrap();
    assert_eq!(mount.server().count(Call::Write).bytes, before + 6);
    let bytes = fs::read(mount.beside("behind/it")).unwrap();
    assert_eq!((&bytes[999..1004], &bytes[900_000..900_004]), (&b"aonea"[..], &b"twoa"[..]));
    assert_eq!(bytes.len(), 1 << 20);
}

/// A file without a copy is written through: it would have to be read completely for one.
#[test]
fn a_file_that_is_not_copied_is_written_through() {
    let Some(mount) = Mount::start(&LAZY) else { return };
    mount.write_source("it", "text");
    append(&mount.at("it"), " and more");
    assert_eq!(at_source(&mount, "it"), "text and more");
    assert!(is_clean(&mount));
}

#[test]
fn writes_go_on_while_the_source_is_down_and_none_is_lost() {
    let options = ["--write-back", "200ms,64M", "--lazy-close", "--source-timeout", "500ms"];
    let Some(mount) = Mount::over_server(&options) else { return };
    let mut file = written(&mount, "it", "");
    mount.server().stop();
    for _ in 0..100 {
        file.write_all(&[b'x'; 1000]).unwrap();
    }
    wait_until("it is old", || mount.stats()["source"] == "down");
    file.write_all(b"end").unwrap();
    assert_eq!(mount.stat("dirty_bytes"), 100_003);
    mount.server().release();
    drop(file);
    wait_until("all of it is there", || {
        fs::read(mount.beside("behind/it")).unwrap().len() == 100_003
    });
    wait_until("it is clean", || is_clean(&mount));
    assert_eq!(mount.stat("conflicts"), 0);
}

/// The writer gets the error, and refused bytes stay dirty.
#[test]
fn what_the_source_refuses_stays_and_is_said_once() {
    let options = ["--write-back", "100ms,64M", "--lazy-close"];
    let Some(mount) = Mount::over_server(&options) else { return };
    let mut file = written(&mount, "it", "");
    mount.server().refuse(&[Call::Write], libc::ENOSPC);
    file.write_all(b"text").unwrap();
    wait_until("it was tried", || mount.server().count(Call::Write).calls > 0);
    wait_until("the writer is told", || {
        file.write_all(b"!").is_err_and(|error| error.raw_os_error() == Some(libc::ENOSPC))
    });
    assert_eq!(sync(&file).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    mount.server().recover();
    sync(&file).unwrap();
    let text = fs::read_to_string(mount.beside("behind/it")).unwrap();
    assert!(text.starts_with("text"), "{text}");
    assert_eq!((mount.stat("dirty_bytes"), mount.stat("conflicts")), (0, 0));
}

#[test]
fn a_termination_waits_for_a_source_that_refuses_until_a_second_one() {
    let Some(mut mount) = Mount::over_server(&LAZY) else { return };
    drop(written(&mount, "it", "text"));
    mount.server().refuse(&[Call::Write], libc::EIO);
    let pid = Pid::from_raw(mount.daemon().pid().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    wait_until("it says so", || mount.daemon().stderr().contains("cannot be written"));
    mount.server().recover();
    assert!(mount.daemon().wait(HANG).unwrap().success());
    assert_eq!(fs::read_to_string(mount.beside("behind/it")).unwrap(), "text");

    mount.begin();
    drop(written(&mount, "it", "other"));
    mount.server().refuse(&[Call::Write], libc::EIO);
    let pid = Pid::from_raw(mount.daemon().pid().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    wait_until("it says so", || mount.daemon().stderr().contains("cannot be written"));
    kill_process(pid, Signal::TERM).unwrap();
    assert!(!mount.daemon().wait(HANG).unwrap().success());
    let said = mount.daemon().stderr();
    assert!(said.contains("5 bytes not written to the source"), "{said}");
}

/// An operation at the source is done after all dirty bytes are there.
#[test]
fn names_and_attributes_change_with_all_bytes_there() {
    let Some(mount) = Mount::start(&LAZY) else { return };
    let file = written(&mount, "new", "text");
    fs::rename(mount.at("new"), mount.at("it")).unwrap();
    assert_eq!(at_source(&mount, "it"), "text");
    drop(file);

    let file = written(&mount, "it", "other");
    fs::hard_link(mount.at("it"), mount.at("link")).unwrap();
    assert_eq!(at_source(&mount, "link"), "other");
    drop(file);

    let file = written(&mount, "it", "third");
    fs::set_permissions(mount.at("it"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(at_source(&mount, "link"), "third");
    file.write_all_at(b"T", 0).unwrap();
    sync(&file).unwrap();
    drop(file);
    assert_eq!(at_source(&mount, "it"), "Third");

    let file = written(&mount, "it", "fourth");
    file.set_len(3).unwrap();
    assert_eq!((at_source(&mount, "it"), mount.read("it")), ("fou".into(), "fou".into()));
    fs::remove_file(mount.at("it")).unwrap();
    assert_eq!(at_source(&mount, "link"), "fou");
    assert_eq!(mount.stat("conflicts"), 0);
}

/// A short-lived file is never written to the source.
#[test]
fn the_bytes_of_a_file_that_is_removed_are_written_nowhere() {
    let Some(mount) = Mount::over_server(&LAZY) else { return };
    drop(written(&mount, "it", "text"));
    fs::remove_file(mount.at("it")).unwrap();
    assert_eq!(mount.stat("dirty_bytes"), 4);
    let mut mount = mount;
    assert!(mount.daemon().terminate(HANG).unwrap().success());
    assert_eq!(mount.server().count(Call::Write).bytes, 0);
}

/// A store through a mapping is a write when its page is written back by the kernel.
#[test]
fn a_file_that_cannot_be_opened_for_writing_again_is_written_back() {
    let Some(mount) = Mount::start(&LAZY) else { return };
    let mut file = written(&mount, "it", "text");
    fs::set_permissions(mount.source("it"), fs::Permissions::from_mode(0o444)).unwrap();
    file.write_all(b" and more").unwrap();
    // The change of the mode is a change at the source.
    assert!(sync(&file).is_err());
    assert_eq!(fs::read_to_string(&beside(&mount, "it")[0]).unwrap(), "text and more");
}

/// Writers, readers and the background threads together: each read sees earlier writes.
#[test]
fn many_writers_of_many_files_lose_nothing() {
    let options = ["--write-back", "20ms,256K", "--lazy-close"];
    let Some(mount) = Mount::start(&options) else { return };
    thread::scope(|scope| {
        for writer in 0..4_u8 {
            let mount = &mount;
            scope.spawn(move || {
                for round in 0..60_u8 {
                    let at = mount.at(&format!("{writer}-{}", round % 5));
                    let bytes = vec![round ^ writer; 10_000 + usize::from(round) * 500];
                    fs::write(&at, &bytes).unwrap();
                    let mut read = Vec::new();
                    File::open(&at).unwrap().read_to_end(&mut read).unwrap();
                    assert!(read == bytes, "writer {writer}, round {round}");
                    thread::sleep(Duration::from_millis(u64::from(round % 4) * 10));
                }
            });
        }
    });
    wait_until("all is written back", || is_clean(&mount));
    for writer in 0..4_u8 {
        for file in 0..5_u8 {
            let round = 55 + file;
            let bytes = fs::read(mount.source(&format!("{writer}-{file}"))).unwrap();
            assert_eq!(bytes, vec![round ^ writer; 10_000 + usize::from(round) * 500]);
        }
    }
    assert_eq!(mount.stat("conflicts"), 0);
}
