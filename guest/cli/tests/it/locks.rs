//! Locks are taken at the source: a lock there and a lock in the mount exclude each other.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command};

use flowstone_testkit::wait_until;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::fixture::Mount;

fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

/// Locks bytes for this open file; fails if it would have to wait.
fn lock_bytes(file: &File, kind: i32, start: i64, length: i64) -> bool {
    // SAFETY: zeroes are a lock of the system's type.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_start, lock.l_len) = (kind as i16, start, length);
    // SAFETY: the command takes a pointer to a lock, which lives through the call.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) == 0 }
}

/// Starts a process that waits for the lock of a file, and ends when it has it.
fn waiter(path: &Path) -> Child {
    Command::new("flock").arg(path).arg("true").spawn().unwrap()
}

#[test]
fn bytes_that_are_locked_at_the_source_are_locked_here_and_the_other_way_round() {
    for options in [&[][..], &["--modes", "plain"]] {
        let Some(mount) = Mount::start(options) else { return };
        mount.copied("it", vec![0; 100]);
        let (there, here) = (open(&mount.source("it")), open(&mount.at("it")));
        assert!(lock_bytes(&there, libc::F_WRLCK, 0, 10));
        assert!(!lock_bytes(&here, libc::F_WRLCK, 5, 10));
        assert!(lock_bytes(&here, libc::F_WRLCK, 10, 10));
        assert!(!lock_bytes(&there, libc::F_RDLCK, 15, 1));
        drop(here);
        wait_until("a close gives it back", || lock_bytes(&there, libc::F_RDLCK, 15, 1));
    }
}

#[test]
fn a_file_that_is_locked_is_locked_for_everyone() {
    let Some(mount) = Mount::start(&[]) else { return };
    mount.write_source("it", "text");
    let there = open(&mount.source("it"));
    let readers = [File::open(mount.at("it")).unwrap(), File::open(mount.at("it")).unwrap()];
    let exclusive = FlockOperation::NonBlockingLockExclusive;
    flock(&there, exclusive).unwrap();
    assert_eq!(flock(&readers[0], exclusive), Err(Errno::WOULDBLOCK));
    flock(&there, FlockOperation::Unlock).unwrap();
    flock(&readers[0], exclusive).unwrap();
    assert_eq!(flock(&readers[1], exclusive), Err(Errno::WOULDBLOCK), "of another open");
    assert_eq!(flock(&there, exclusive), Err(Errno::WOULDBLOCK));
    let [first, second] = readers;
    drop(first);
    wait_until("a close gives it back", || flock(&second, exclusive).is_ok());
}

#[test]
fn who_waits_for_a_lock_gets_it_when_it_is_free() {
    let Some(mount) = Mount::start(&[]) else { return };
    mount.write_source("it", "text");
    let there = open(&mount.source("it"));
    flock(&there, FlockOperation::LockExclusive).unwrap();
    let mut waiter = waiter(&mount.at("it"));
    assert!(waiter.try_wait().unwrap().is_none());
    flock(&there, FlockOperation::Unlock).unwrap();
    assert!(waiter.wait().unwrap().success());
}

#[test]
fn who_waits_for_a_lock_can_be_killed() {
    let Some(mount) = Mount::start(&[]) else { return };
    mount.write_source("it", "text");
    let there = open(&mount.source("it"));
    flock(&there, FlockOperation::LockExclusive).unwrap();
    let mut waiters: Vec<Child> = (0..20).map(|_| waiter(&mount.at("it"))).collect();
    assert_eq!(mount.read("it"), "text", "many that wait hold up nobody");
    for waiter in &mut waiters {
        waiter.kill().unwrap();
        assert!(!waiter.wait().unwrap().success());
    }
    assert_eq!(
        flock(open(&mount.at("it")), FlockOperation::NonBlockingLockShared),
        Err(Errno::WOULDBLOCK)
    );
}
