//! A log image is copied, to another path and another file system: while it is unused, and while a
//! guest writes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use flowstone_testkit::{Client, ClientOptions, Status, wait_until};

use crate::fixture::{Place, stop};

const BLOCK: usize = 4096;
const BLOCK_SECTORS: u64 = 8;
const BLOCKS: u64 = 2048;
const CREATE: [&str; 5] = ["create", "--size", "8M", "--segment", "256K"];

/// Returns the content of a block written as the `version`th of all writes.
fn content(lba: u64, version: u64) -> Vec<u8> {
    let words = [lba.to_le_bytes(), version.to_le_bytes()].concat();
    words.iter().copied().cycle().take(BLOCK).collect()
}

/// Returns the version of a block's content; 0 if it was never written.
fn version_of(lba: u64, bytes: &[u8]) -> u64 {
    if bytes.iter().all(|byte| *byte == 0) {
        return 0;
    }
    let version = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
    assert!(bytes == content(lba, version), "block {lba} holds what was never written there");
    version
}

/// Overwrites blocks at random. Returns the last versions.
fn overwrite(guest: &mut Client, goes_on: impl Fn(u64) -> bool) -> Vec<u64> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut versions = vec![0; BLOCKS as usize];
    for version in (1..).take_while(|version| goes_on(*version)) {
        let lba = random.u64(..BLOCKS);
        let written = guest.write(lba * BLOCK_SECTORS, &content(lba, version)).unwrap();
        assert_eq!(written, Status::Ok);
        versions[lba as usize] = version;
        if version % 64 == 0 {
            assert_eq!(guest.flush().unwrap(), Status::Ok);
        }
    }
    versions
}

/// Returns the version of each block; `None` for read errors.
fn versions(guest: &mut Client) -> Vec<Option<u64>> {
    let mut bytes = vec![0; BLOCK];
    let mut read = |lba: u64| match guest.read(lba * BLOCK_SECTORS, &mut bytes).unwrap() {
        Status::Ok => Some(version_of(lba, &bytes)),
        _ => None,
    };
    (0..BLOCKS).map(&mut read).collect()
}

/// Makes a folder on another kind of file system than that of the build, if there is one.
fn elsewhere() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

#[test]
fn a_stopped_log_image_opens_wherever_it_is_copied() {
    let place = Place::new();
    place.succeed(&[&CREATE[..], &["disk.flow"]].concat());
    let daemon = place.serve(&["disk.flow"]);
    let mut guest = place.client();
    // Several times the disk: segments have been cleaned and reused.
    let written = overwrite(&mut guest, |version| version <= 4 * BLOCKS);
    drop(guest);
    stop(daemon);
    let folder = elsewhere();
    for copy in [place.path("moved.flow"), folder.path().join("moved.flow")] {
        fs::copy(place.path("disk.flow"), &copy).unwrap();
        let copy = copy.to_str().unwrap();
        place.succeed(&["check", "--data", copy]);
        let daemon = place.serve(&[copy]);
        let mut guest = place.client();
        let seen = versions(&mut guest);
        assert!(seen.iter().zip(&written).all(|(seen, written)| *seen == Some(*written)));
        assert_eq!(guest.write(0, &content(0, 1)).unwrap(), Status::Ok);
        drop(guest);
        stop(daemon);
        place.succeed(&["check", "--data", copy]);
    }
}

/// Checks a copy made meanwhile: refused, or with blocks as they were at some time, or blocks that
/// return read errors. Returns whether it was opened.
fn judge(place: &Place, copy: &Path, last: u64) -> bool {
    let socket = "copy.sock";
    let daemon = match place.serve_on(socket, &[copy.to_str().unwrap()]) {
        Ok(daemon) => daemon,
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("damage") || text.contains("cut short"), "{text}");
            return false;
        }
    };
    let mut guest = Client::connect(ClientOptions::new(place.path(socket))).unwrap();
    let seen = versions(&mut guest);
    assert!(seen.iter().flatten().all(|version| *version <= last));
    drop(guest);
    stop(daemon);
    true
}

#[test]
fn a_copy_of_a_log_image_in_use_is_refused_or_holds_nothing_that_was_never_written() {
    let place = Place::new();
    place.succeed(&[&CREATE[..], &["disk.flow"]].concat());
    let daemon = place.serve(&["disk.flow"]);
    let copies: Vec<PathBuf> =
        (0..12).map(|number| place.path(&format!("copy-{number}.flow"))).collect();
    let (reached, copied) = (AtomicU64::new(0), AtomicBool::new(false));
    let last = thread::scope(|scope| {
        let guest = scope.spawn(|| {
            let mut guest = place.client();
            let written = overwrite(&mut guest, |version| {
                reached.store(version, Ordering::Relaxed);
                !copied.load(Ordering::Relaxed)
            });
            written.into_iter().max().unwrap()
        });
        for (copy, version) in copies.iter().zip((0..).step_by(600)) {
            wait_until("blocks are written", || reached.load(Ordering::Relaxed) >= version);
            fs::copy(place.path("disk.flow"), copy).unwrap();
        }
        copied.store(true, Ordering::Relaxed);
        guest.join().unwrap()
    });
    stop(daemon);
    let opened = copies.iter().filter(|copy| judge(&place, copy, last)).count();
    println!("{opened} of {} copies were opened", copies.len());
}
