//! A source in trouble: requests that work, wait, or fail (docs/filecache.md, "When the source does
//! not answer").

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};

use crate::fixture::{Mount, rest_of, sync};
use flowstone_testkit::fuse::{Call, FuseHost};
use flowstone_testkit::{HANG, TempDir, wait_until};

/// More than the daemon's threads for calls to the source.
const MANY: usize = 40;
/// Names expire soon, and a silence is soon detected.
const OPTIONS: [&str; 4] = ["--window", "100ms", "--source-timeout", "500ms"];
const MODES: [&str; 2] = ["copy,source,plain", "plain"];

/// Makes a source with a file that has a copy and one that has none, and its mount.
fn mount(options: &[&str]) -> Option<Mount> {
    let mount = Mount::over_server(&[&OPTIONS[..], options].concat())?;
    mount.write_source("other", "other text");
    mount.copied("it", "text");
    Some(mount)
}

fn source_is(mount: &Mount, state: &str) {
    wait_until("the state of the source is seen", || mount.stats()["source"] == state);
}

/// Starts processes that read a file without a copy, so many that all threads wait.
fn readers(mount: &Mount) -> Vec<Child> {
    let cat = || {
        let mut command = Command::new("cat");
        command.arg(mount.at("other")).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let readers = (0..MANY).map(|_| cat()).collect();
    wait_until("the server has requests", || !mount.server().held().is_empty());
    readers
}

#[test]
fn copies_are_read_on_while_the_source_is_down_and_what_waits_goes_on_when_it_is_up() {
    for modes in MODES {
        let Some(mount) = mount(&["--modes", modes]) else { return };
        let unchecked = mount.stat("unchecked_opens");
        mount.server().stop();
        let readers = readers(&mount);
        source_is(&mount, "down");
        for _ in 0..3 {
            assert_eq!(mount.read("it"), "text", "{modes}");
            // Names and attributes expire.
            thread::sleep(std::time::Duration::from_millis(150));
        }
        assert!(mount.stat("unchecked_opens") >= unchecked + 3);
        assert_eq!(mount.stat("cached_files"), 1, "the copy is still there");
        mount.server().release();
        for reader in readers {
            assert_eq!(reader.wait_with_output().unwrap().stdout, b"other text", "{modes}");
        }
        source_is(&mount, "up");
        let hits = mount.stat("hits");
        assert_eq!(mount.read("it"), "text");
        assert_eq!(mount.stat("hits"), hits + 1);
    }
}

/// Opens that wait for a copy's file when the source goes down get the copy.
#[test]
fn an_open_that_waits_for_the_source_is_answered_from_the_copy_once_it_is_down() {
    let Some(mount) = mount(&[]) else { return };
    mount.server().stop();
    assert_eq!(mount.read("it"), "text");
    assert!(mount.stat("unchecked_opens") > 0);
}

#[test]
fn who_waits_for_the_source_can_be_killed() {
    for modes in MODES {
        let Some(mount) = mount(&["--modes", modes]) else { return };
        mount.server().stop();
        let mut readers = readers(&mount);
        for (number, reader) in readers.iter_mut().enumerate() {
            let pid = rustix::process::Pid::from_child(reader);
            let signals = [rustix::process::Signal::KILL, rustix::process::Signal::TERM];
            rustix::process::kill_process(pid, signals[number % 2]).unwrap();
        }
        for mut reader in readers {
            let mut status = None;
            wait_until("it is gone", || {
                status = reader.try_wait().unwrap();
                status.is_some()
            });
            assert!(!status.unwrap().success());
        }
        mount.server().release();
        assert_eq!(mount.read("other"), "other text");
        source_is(&mount, "up");
    }
}

#[test]
fn what_only_the_source_can_answer_fails_while_it_is_down_if_that_is_wanted() {
    let Some(mount) = mount(&["--when-down", "fail"]) else { return };
    mount.server().stop();
    for reader in readers(&mount) {
        let output = reader.wait_with_output().unwrap();
        assert!(!output.status.success());
        let why = String::from_utf8(output.stderr).unwrap();
        assert!(why.contains("Input/output error"), "{why}");
    }
    let error = File::open(mount.at("other")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "could not ask is not gone: {error}");
    assert_eq!(fs::read_dir(mount.root()).unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(mount.read("it"), "text");
    mount.server().release();
    source_is(&mount, "up");
    assert_eq!(mount.read("other"), "other text");
}

/// The server answers with errors: the copy stays valid.
#[test]
fn a_source_that_cannot_be_asked_says_nothing_of_its_files() {
    for errno in [libc::EIO, libc::ETIMEDOUT, libc::ENOTCONN] {
        let Some(mount) = mount(&[]) else { return };
        mount.server().refuse(&[Call::Lookup, Call::GetAttr, Call::Open, Call::Read], errno);
        let is_gone = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
        wait_until("the state of the source is seen", || {
            assert!(!File::open(mount.at("other")).is_err_and(is_gone));
            mount.stats()["source"] == "down"
        });
        assert_eq!(mount.read("it"), "text");
        mount.server().recover();
        source_is(&mount, "up");
        let hits = mount.stat("hits");
        assert_eq!(mount.read("it"), "text");
        assert_eq!(mount.stat("hits"), hits + 1, "the copy is still there");
        assert_eq!(mount.read("other"), "other text");
    }
}

#[test]
fn a_source_whose_handles_are_stale_for_a_while_needs_no_new_mount() {
    let Some(mount) = mount(&[]) else { return };
    mount.server().refuse(&[Call::GetAttr, Call::Open, Call::Lookup], libc::ESTALE);
    let error = File::open(mount.at("other")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{error}");
    mount.server().recover();
    wait_until("it is there again", || fs::read(mount.at("other")).is_ok());
    assert_eq!((mount.read("it"), mount.read("other")), ("text".into(), "other text".into()));
}

/// Each error at the proper call: a write, or the close or `fsync` after it.
#[test]
fn what_the_source_says_to_a_writer_reaches_the_writer() {
    for modes in MODES {
        let Some(mount) = mount(&["--modes", modes]) else { return };
        let write = |wanted: i32, call: Call| {
            let mut file = File::options().append(true).open(mount.at("other")).unwrap();
            mount.server().refuse(&[call], wanted);
            let written = file.write_all(b" and more").and_then(|()| sync(&file));
            mount.server().recover();
            assert_eq!(written.unwrap_err().raw_os_error(), Some(wanted), "{modes} {call:?}");
        };
        write(libc::ENOSPC, Call::Write);
        write(libc::EDQUOT, Call::Write);
        write(libc::EIO, Call::Fsync);
        mount.write_source("other", "other text");
        assert_eq!(fs::read_to_string(mount.source("other")).unwrap(), "other text");
        wait_until("it is seen", || mount.read("other") == "other text");
    }
}

/// A server that crashes loses data that was not synced, and only that.
#[test]
fn what_was_synced_survives_a_crash_of_the_server() {
    for modes in MODES {
        let Some(mount) = mount(&["--modes", modes]) else { return };
        let mut file = File::create(mount.at("new")).unwrap();
        file.write_all(b"synced").unwrap();
        sync(&file).unwrap();
        drop(file);
        mount.server().lose_unsynced();
        assert_eq!(fs::read(mount.beside("behind/new")).unwrap(), b"synced", "{modes}");
    }
}

/// The folder of copies is full: the source answers.
#[test]
fn a_full_folder_for_copies_costs_no_read() {
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    let flags = rustix::mount::MountFlags::empty();
    if rustix::mount::mount("copies", at, "tmpfs", flags, c"size=1m").is_err() {
        return flowstone_testkit::skip("no tmpfs can be mounted");
    }
    {
        let options = ["--dir", at.to_str().unwrap(), "--size", "64M"];
        let Some(mount) = Mount::start(&options) else { return };
        for number in 0..4 {
            mount.write_source(&format!("{number}"), vec![b'x'; 600_000]);
        }
        wait_until("one is copied", || {
            (0..4).for_each(|number| assert_eq!(mount.read(&format!("{number}")).len(), 600_000));
            mount.stat("fills") > 0
        });
    }
    let _ = rustix::mount::unmount(at, rustix::mount::UnmountFlags::DETACH);
}

/// The disk of the copies failed, and the source was suspect for that.
#[test]
fn a_disk_for_copies_that_fails_is_no_trouble_of_the_source() {
    let folder = TempDir::new().unwrap();
    let (at, behind) = (folder.path().join("copies"), folder.path().join("behind"));
    fs::create_dir(&at).unwrap();
    fs::create_dir(&behind).unwrap();
    let Some(disk) = FuseHost::mount_or_skip(&at, &behind) else { return };
    for call in [Call::Tmpfile, Call::Write] {
        disk.recover();
        let options = ["--dir", at.to_str().unwrap(), "--size", "64M"];
        let Some(mount) = Mount::start(&options) else { return };
        disk.refuse(&[call], libc::EIO);
        let before = disk.count(call).calls;
        mount.write_source("it", "text");
        (0..2).for_each(|_| assert_eq!(mount.read("it"), "text"));
        // It is copied two seconds after it was first seen, and there are no other calls then.
        wait_until("a copy is tried", || disk.count(call).calls > before);
        for _ in 0..40 {
            assert_eq!(mount.stats()["source"], "up", "{call:?}");
            thread::sleep(std::time::Duration::from_millis(50));
        }
        assert_eq!((mount.read("it"), mount.stat("cached_files")), ("text".into(), 0));
    }
}

/// The same disk failed to return kept-back bytes: the source was suspect for that.
#[test]
fn a_disk_that_does_not_give_what_was_kept_back_is_no_trouble_of_the_source() {
    let folder = TempDir::new().unwrap();
    let (at, behind) = (folder.path().join("copies"), folder.path().join("behind"));
    fs::create_dir(&at).unwrap();
    fs::create_dir(&behind).unwrap();
    let Some(disk) = FuseHost::mount_or_skip(&at, &behind) else { return };
    let at = at.to_str().unwrap();
    let keeps = ["--dir", at, "--size", "64M", "--write-back", "1000s,64M", "--lazy-close"];
    let Some(mount) = Mount::start(&[&keeps[..], &OPTIONS].concat()) else { return };
    // Less than a page: the kernel has no cached page that could be read instead.
    let mut file = File::create(mount.at("it")).unwrap();
    file.write_all(b"text").unwrap();
    assert_eq!(mount.stat("dirty_bytes"), 4);
    disk.refuse(&[Call::Read], libc::EIO);
    let mut suspect = 0;
    for _ in 0..12 {
        // For longer than the interval of checks, without other calls to the source.
        for _ in 0..30 {
            let refused = sync(&file).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EIO));
            thread::sleep(std::time::Duration::from_millis(10));
        }
        suspect += u32::from(mount.stats()["source"] != "up");
    }
    // A check may come between the source's answer and the end of the request.
    assert!(suspect <= 1, "{suspect} of 12");
    disk.recover();
    sync(&file).unwrap();
    assert_eq!(fs::read(mount.source("it")).unwrap(), b"text");
}

/// A refresh of an open copy hangs in the source, without holding a lock that others need.
#[test]
fn an_open_copy_that_is_being_compared_is_in_nobodys_way() {
    let Some(mount) = mount(&[]) else { return };
    let mut file = File::open(mount.at("it")).unwrap();
    mount.server().stop();
    // The comparison once per window.
    wait_until("the server is asked", || !mount.server().held().is_empty());
    let readers = readers(&mount);
    source_is(&mount, "down");
    assert_eq!(rest_of(&mut file), "text");
    assert_eq!(mount.read("it"), "text");
    drop(file);
    assert!(mount.run(&["drop"], &["it"]).status.success());
    mount.server().release();
    readers.into_iter().for_each(|reader| drop(reader.wait_with_output()));
}

/// Writes wait for the source as reads do, with all their bytes.
#[test]
fn writes_that_wait_for_the_source_are_all_made() {
    for modes in MODES {
        let Some(mount) = mount(&["--modes", modes]) else { return };
        let name = |number| format!("new{number}");
        let write = |number: usize| -> JoinHandle<io::Result<()>> {
            let path = mount.at(&name(number));
            thread::spawn(move || fs::write(path, vec![number as u8; 100_000]))
        };
        mount.server().stop();
        let writers: Vec<_> = (0..MANY).map(write).collect();
        source_is(&mount, "down");
        mount.server().release();
        for writer in writers {
            writer.join().unwrap().unwrap();
        }
        for number in 0..MANY {
            let bytes = fs::read(mount.beside(&format!("behind/{}", name(number)))).unwrap();
            assert_eq!(bytes, vec![number as u8; 100_000], "{modes}");
        }
    }
}

/// The mount is removed at once; the process ends as soon as its last call to the source returns.
#[test]
fn a_termination_takes_the_mount_away_though_the_source_hangs() {
    let Some(mut mount) = mount(&[]) else { return };
    mount.server().stop();
    let readers = readers(&mount);
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(mount.daemon().pid().cast_signed()).unwrap(),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    let root = mount.root();
    wait_until("the mount is gone", || {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        !mounts.contains(root.to_str().unwrap())
    });
    mount.server().release();
    assert!(mount.daemon().wait(HANG).unwrap().success());
    for mut reader in readers {
        let mut text = Vec::new();
        reader.stdout.take().unwrap().read_to_end(&mut text).unwrap();
        reader.wait().unwrap();
    }
}

/// Copies took all descriptors, and opens failed with EMFILE now and then.
#[test]
fn copies_of_many_files_leave_descriptors_to_those_who_open_some() {
    for options in [&[][..], &["--write-back", "1000s,8M", "--lazy-close"]] {
        let Some(mount) = Mount::start_by(&["prlimit", "--nofile=150:150"], options) else {
            return;
        };
        let names: Vec<_> = (0..200).map(|file| file.to_string()).collect();
        names.iter().for_each(|name| mount.write_source(name, "text"));
        // Two are copied at a time.
        let is_full = || (50..=51).contains(&mount.stat("cached_files"));
        wait_until("there are as many copies as there may be", || {
            names.iter().for_each(|name| assert_eq!(mount.read(name), "text"));
            is_full()
        });
        names.iter().for_each(|name| assert_eq!(mount.read(name), "text"));
        let open = |name: &String| File::open(mount.at(name)).unwrap();
        drop(names[..10].iter().map(open).collect::<Vec<_>>());
        assert!(is_full(), "{}", mount.stats());
        names.iter().for_each(|name| fs::write(mount.at(&format!("new{name}")), "new").unwrap());
        names.iter().for_each(|name| assert_eq!(mount.read(&format!("new{name}")), "new"));
    }
}
