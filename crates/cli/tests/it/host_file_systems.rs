//! Every format on every host file system: written data is read back, also after a kill, and
//! discarded space goes back to the host.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use flowstone_testkit::load::{Limit, LoadOptions, run};
use flowstone_testkit::{Client, Status, wait_until};

use rustix::fs::{FallocateFlags, fallocate};

use crate::fixture::{Place, stop};
use crate::host_trouble;

const DISK_BYTES: u64 = 64 << 20;
/// Left after the whole disk has been discarded: segments and tables being filled.
const EMPTY_BYTES_MAX: u64 = 6 << 20;

/// A file system in a file, unmounted when dropped.
pub struct Mounted(pub PathBuf);

impl Mounted {
    /// Returns `None`, and says why, if this user may not mount.
    pub fn make(place: &Place, kind: &str) -> Option<Self> {
        Self::make_with(place, kind, "loop")
    }

    /// The same, mounted with these options.
    fn make_with(place: &Place, kind: &str, options: &str) -> Option<Self> {
        let file = place.path(kind);
        File::create(&file).unwrap().set_len(512 << 20).unwrap();
        let at = place.path(&format!("on-{kind}"));
        std::fs::create_dir(&at).unwrap();
        let quiet = if kind == "ext4" { "-F" } else { "-f" };
        let program = format!("mkfs.{kind}");
        let made = host_trouble::run(&program, &["-q", quiet, file.to_str().unwrap()]);
        let mount = ["-o", options, file.to_str().unwrap(), at.to_str().unwrap()];
        match made.and_then(|()| host_trouble::run("mount", &mount)) {
            Ok(()) => Some(Self(at)),
            Err(why) => {
                flowstone_testkit::skip(format_args!("no {kind} to put images on: {why}"));
                None
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // The kernel releases the rings of an ended daemon a little later.
        let _ = host_trouble::run("umount", &["--lazy", self.0.to_str().unwrap()]);
    }
}

/// Runs random requests of all kinds, and verifies every read, and the whole disk at the end.
fn exercise(place: &Place, seed: u64) {
    let mut options = LoadOptions::new(place.path("disk.sock")).workload("mix").iodepth(16);
    options.client = place.options();
    options.verify = true;
    options.verify_final = true;
    options.discard_zeroes = true;
    options.flush_every = 40;
    options.seed = seed;
    options.limit = Limit::Ops(4000);
    assert_eq!(run(&options).unwrap().errors, 0);
}

fn every_format_on(kind: &str) {
    let place = Place::new();
    let Some(host) = Mounted::make(&place, kind) else { return };
    for format in ["raw", "flow", "qcow2"] {
        let image = host.0.join(format!("disk.{format}"));
        let name = image.to_str().unwrap();
        place.succeed(&["create", "--size", &DISK_BYTES.to_string(), name]);
        let mut daemon = place.serve(&[name]);
        exercise(&place, 1);
        daemon.kill().unwrap();
        drop(daemon);
        let daemon = place.serve(&[name]);
        exercise(&place, 2);
        discard_everything(&mut place.client());
        stop(daemon);
        let left = allocated(&image);
        assert!(left <= EMPTY_BYTES_MAX, "{kind}, {format}: {left} bytes are still on the host");
        place.succeed(&["check", "--data", name]);
        std::fs::remove_file(image).unwrap();
    }
}

/// The last hop: a guest's discards pass through the image and the host's file system to the device
/// below it.
#[test]
fn what_is_discarded_leaves_the_device_below_a_mount_with_discard() {
    let place = Place::new();
    let Some(host) = Mounted::make_with(&place, "ext4", "loop,discard") else { return };
    let device = place.path("ext4");
    for format in ["raw", "flow", "qcow2"] {
        let image = host.0.join(format!("disk.{format}"));
        let name = image.to_str().unwrap();
        place.succeed(&["create", "--size", &DISK_BYTES.to_string(), name]);
        let daemon = place.serve(&[name]);
        let mut guest = place.client();
        let data = crate::fixture::pattern(1 << 20, 7);
        for start in (0..DISK_BYTES / 512).step_by(2048) {
            assert_eq!(guest.write(start, &data).unwrap(), Status::Ok, "{format}");
        }
        assert_eq!(guest.flush().unwrap(), Status::Ok);
        let full = allocated(&device);
        assert!(full >= DISK_BYTES, "{format}: {full} bytes");
        discard_everything(&mut guest);
        let folder = File::open(&host.0).unwrap();
        wait_until("the device has the space back", || {
            // The file system notifies the device when it has committed.
            rustix::fs::syncfs(&folder).unwrap();
            allocated(&device) <= full - DISK_BYTES * 9 / 10
        });
        drop(guest);
        stop(daemon);
        std::fs::remove_file(image).unwrap();
    }
}

fn discard_everything(guest: &mut Client) {
    let step = 8 << 20;
    for start in (0..DISK_BYTES).step_by(step) {
        let range = (start / 512, step as u32 / 512);
        assert_eq!(guest.discard(&[range]).unwrap(), Status::Ok);
    }
    assert_eq!(guest.flush().unwrap(), Status::Ok);
}

#[expect(clippy::disallowed_methods, reason = "this test is not about lost writes")]
fn allocated(image: &Path) -> u64 {
    // File systems with delayed allocation report exact numbers only after a sync.
    File::open(image).unwrap().sync_all().unwrap();
    image.metadata().unwrap().blocks() * 512
}

/// Space is allocated to the image, then the host is filled up.
fn kept_space_on(kind: &str) {
    let place = Place::new();
    let Some(host) = Mounted::make(&place, kind) else { return };
    let image = host.0.join("disk.raw");
    let name = image.to_str().unwrap();
    place.succeed(&["create", "--size", &DISK_BYTES.to_string(), name]);
    let file = File::options().write(true).open(&image).unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, DISK_BYTES).unwrap();
    drop(file);
    let daemon = place.serve(&["--discard", "keep", name]);
    let mut guest = place.client();
    let data = vec![7; 1 << 20];
    let write_all = |guest: &mut Client| {
        for start in (0..DISK_BYTES / 512).step_by(2048) {
            assert_eq!(guest.write(start, &data).unwrap(), Status::Ok, "{kind}");
        }
        assert_eq!(guest.flush().unwrap(), Status::Ok);
    };
    write_all(&mut guest);
    let before = allocated(&image);
    let mut rest = File::create(host.0.join("rest")).unwrap();
    while rest.write(&data).is_ok_and(|bytes| bytes > 0) {}
    discard_everything(&mut guest);
    assert_eq!(allocated(&image), before, "{kind}");
    let mut back = vec![7; 1 << 20];
    assert_eq!(guest.read(8 * 2048, &mut back).unwrap(), Status::Ok);
    assert!(back.iter().all(|byte| *byte == 0), "{kind}");
    write_all(&mut guest);
    stop(daemon);
}

#[test]
fn kept_space_is_there_when_the_host_is_full() {
    kept_space_on("ext4");
    kept_space_on("xfs");
}

#[test]
fn space_is_not_kept_where_the_host_writes_elsewhere() {
    let place = Place::new();
    let Some(host) = Mounted::make(&place, "btrfs") else { return };
    let image = host.0.join("disk.raw");
    let name = image.to_str().unwrap();
    place.succeed(&["create", "--size", "64M", name]);
    let refusal = place.refused(&["serve", "--socket", "s.sock", "--discard", "keep", name]);
    assert!(refusal.contains("btrfs writes data elsewhere each time"), "{refusal}");
    assert!(refusal.contains("use --discard deallocate, or put the image on"), "{refusal}");
    assert!(!place.path("s.sock").exists());
}

#[test]
fn every_format_works_on_ext4() {
    every_format_on("ext4");
}

#[test]
fn every_format_works_on_xfs() {
    every_format_on("xfs");
}

#[test]
fn every_format_works_on_btrfs() {
    every_format_on("btrfs");
}
