//! Tests of the fake host, used like any file system.

use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::Mode;

use super::*;

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

/// A test counted the close of a descriptor by the child of another test, which had inherited it.
#[test]
fn calls_of_other_processes_are_not_ours() {
    let Some(Place { host, at, dir: _dir }) = place() else { return };
    host.stop();
    let mut child = std::process::Command::new("stat").arg(at.join("a.raw")).spawn().unwrap();
    wait_until("a call waits", || !host.held().is_empty());
    let ours: usize = host.held().into_iter().map(|call| host.holds(call)).sum();
    host.release();
    child.wait().unwrap();
    assert_eq!(ours, 0);
}

/// A failing test must not leave processes behind that cannot be ended.
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

fn source() -> Option<Place> {
    let dir = tempfile::tempdir().unwrap();
    let [at, behind] = ["at", "behind"].map(|name| dir.path().join(name));
    std::fs::create_dir(&at).unwrap();
    std::fs::create_dir(&behind).unwrap();
    match FuseHost::mount_source(&at, &behind) {
        Ok(host) => Some(Place { host, at, dir }),
        Err(why) => {
            skip(format_args!("no FUSE file system to be had (/dev/fuse, mount): {why}"));
            None
        }
    }
}

#[test]
fn a_source_has_folders_and_what_is_replaced_behind_it_is_stale() {
    let Some(Place { host: _host, at, dir }) = source() else { return };
    std::fs::create_dir(at.join("one")).unwrap();
    std::fs::write(at.join("one/it"), "text").unwrap();
    std::os::unix::fs::symlink("it", at.join("one/link")).unwrap();
    std::fs::rename(at.join("one"), at.join("two")).unwrap();
    assert_eq!(std::fs::read_to_string(at.join("two/link")).unwrap(), "text");
    let names = std::fs::read_dir(at.join("two")).unwrap().map(|it| it.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["it", "link"]);
    let path = rustix::fs::OFlags::PATH;
    let held = rustix::fs::open(at.join("two/link"), path, Mode::empty()).unwrap();
    let behind = dir.path().join("behind/two");
    std::fs::write(behind.join("new"), "newer").unwrap();
    std::fs::rename(behind.join("new"), behind.join("it")).unwrap();
    assert_eq!(std::fs::read_to_string(at.join("two/it")).unwrap(), "newer");
    let anchor = format!("/proc/self/fd/{}", held.as_raw_fd());
    wait_until("what was replaced and is closed is stale", || {
        std::fs::metadata(&anchor).is_err_and(|it| it.raw_os_error() == Some(libc::ESTALE))
    });
    std::fs::remove_file(at.join("two/link")).unwrap();
    std::fs::remove_file(at.join("two/it")).unwrap();
    std::fs::remove_dir(at.join("two")).unwrap();
}

#[test]
fn a_source_counts_what_is_asked_and_refuses_what_it_is_told_to() {
    let Some(Place { host, at, dir: _dir }) = source() else { return };
    let name = at.join("it");
    std::fs::write(&name, [1; 10_000]).unwrap();
    assert_eq!(host.count(Call::Write).bytes, 10_000);
    for round in 1..3 {
        std::fs::read(&name).unwrap();
        assert_eq!(host.count(Call::Read).bytes, round * 10_000, "each open reads anew");
    }
    for errno in [libc::EIO, libc::ESTALE, libc::ENOSPC, libc::ENOTCONN] {
        host.refuse(&[Call::Read, Call::Write], errno);
        let calls = host.count(Call::Write).calls;
        let failed = std::fs::write(at.join("other"), "x").unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(errno));
        assert_eq!(host.count(Call::Write).calls, calls + 1);
    }
    host.recover();
    host.link(Duration::from_millis(1), 100_000_000);
    assert_eq!(std::fs::read(&name).unwrap(), [1; 10_000]);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "not an image")]
fn a_source_loses_what_was_not_synced() {
    let Some(Place { host, at, dir }) = source() else { return };
    let file = File::options().write(true).create_new(true).open(at.join("it")).unwrap();
    file.write_all_at(b"first", 0).unwrap();
    file.sync_data().unwrap();
    file.write_all_at(b"other and more", 0).unwrap();
    host.lose_unsynced();
    assert_eq!(std::fs::read(dir.path().join("behind/it")).unwrap(), b"first");
}

#[test]
fn a_device_notes_each_read_and_write_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let [at, behind] = ["at", "behind"].map(|name| dir.path().join(name));
    std::fs::create_dir(&at).unwrap();
    std::fs::create_dir(&behind).unwrap();
    let Some(host) = FuseHost::or_skip(FuseHost::mount_device(&at, &behind)) else { return };
    let open = |name: &str| {
        let file = File::options().read(true).write(true).create_new(true).open(at.join(name));
        file.unwrap()
    };
    let [a, b] = ["a", "b"].map(open);
    for _ in 0..2 {
        a.write_all_at(&[1; 8192], 4096).unwrap();
        b.write_all_at(&[2; 512], 0).unwrap();
        a.read_exact_at(&mut [0; 512], 8192).unwrap();
    }
    let of = |call, file: &str, offset| Arrival { call, file: file.into(), offset };
    let round = [of(Call::Write, "a", 4096), of(Call::Write, "b", 0), of(Call::Read, "a", 8192)];
    assert_eq!(host.arrivals(0), [&round[..], &round].concat());
    assert_eq!(host.arrivals(3), round);
}
