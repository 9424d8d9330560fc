//! The fake host, used like any file system.

use std::os::unix::fs::{FileExt, MetadataExt};

use super::*;
use crate::wait_until;

struct Place {
    host: FuseHost,
    at: PathBuf,
    dir: tempfile::TempDir,
}

fn place() -> Option<Place> {
    let dir = tempfile::tempdir().unwrap();
    let [at, behind] = ["at", "behind"].map(|name| dir.path().join(name));
    std::fs::create_dir(&at).unwrap();
    std::fs::create_dir(&behind).unwrap();
    let host = FuseHost::mount_or_skip(&at, &behind)?;
    Some(Place { host, at, dir })
}

#[test]
fn files_on_it_are_those_of_the_folder_behind() {
    let Some(Place { host: _host, at, dir }) = place() else { return };
    let [name, other] = ["a.raw", "b.raw"].map(|name| at.join(name));
    let file = File::options().read(true).write(true).create_new(true).open(&name).unwrap();
    file.set_len(1 << 20).unwrap();
    file.write_all_at(&[7; 300_000], 5000).unwrap();
    fallocate(&file, 64 << 10, 128 << 10);
    let mut back = vec![0; 300_000];
    file.read_exact_at(&mut back, 5000).unwrap();
    let hole = (64 << 10) - 5000..(192 << 10) - 5000;
    assert!(
        back.iter().enumerate().all(|(at, byte)| *byte == if hole.contains(&at) { 0 } else { 7 })
    );
    std::fs::rename(&name, &other).unwrap();
    let behind = dir.path().join("behind").join("b.raw");
    assert_eq!(std::fs::read(&behind).unwrap()[5000..305_000], back);
    assert_eq!(other.metadata().unwrap().blocks(), behind.metadata().unwrap().blocks());
    std::fs::remove_file(&other).unwrap();
    assert!(!behind.exists() && File::open(&name).is_err());
}

fn fallocate(file: &File, offset: u64, bytes: u64) {
    use rustix::fs::FallocateFlags;
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, mode, offset, bytes).unwrap();
}

#[test]
fn while_it_is_stopped_calls_wait_and_then_they_succeed() {
    let Some(Place { host, at, dir: _dir }) = place() else { return };
    let name = at.join("a.raw");
    std::fs::write(&name, [1; 4096]).unwrap();
    host.stop();
    std::thread::scope(|scope| {
        let size = scope.spawn(|| name.metadata().unwrap().len());
        wait_until("a call waits", || !host.held().is_empty());
        assert!(!size.is_finished());
        host.release();
        assert_eq!(size.join().unwrap(), 4096);
    });
}

/// A test that fails must not leave processes behind that nothing can end.
#[test]
fn what_waits_when_it_goes_fails() {
    let Some(Place { host, at, dir: _dir }) = place() else { return };
    host.stop();
    std::thread::scope(|scope| {
        let call = scope.spawn(|| at.join("a.raw").metadata().is_err());
        wait_until("a call waits", || host.holds(Call::Lookup) == 1);
        drop(host);
        assert!(call.join().unwrap());
    });
}

#[test]
#[expect(clippy::disallowed_methods, reason = "not an image")]
fn calls_fail_before_or_after_they_have_been_carried_out() {
    let Some(Place { host, at, dir }) = place() else { return };
    let file = File::options().read(true).write(true).create_new(true).open(at.join("a")).unwrap();
    let mut seen = [false; 3];
    host.fail(1, 5);
    for round in 1..=255 {
        file.write_all_at(&[round; 4096], 0).unwrap_err();
        file.sync_data().unwrap_err();
        let now = std::fs::read(dir.path().join("behind/a")).unwrap();
        let written = now.iter().filter(|byte| **byte == round).count();
        seen[[0, 2048, 4096].iter().position(|bytes| *bytes == written).unwrap()] = true;
    }
    assert_eq!(seen, [true; 3]);
    host.recover();
    file.write_all_at(&[9; 4096], 0).unwrap();
    file.sync_data().unwrap();
}
