//! A host that runs out of space, loses the end of a file, or offers a block device.

use std::path::{Path, PathBuf};
use std::process::Command;

use flowstone_testkit::Status;

use crate::fixture::{Place, pattern, stop};

/// A file system of 4 MiB, unmounted when dropped; `None` (and a line that says why) where this
/// user may not mount.
pub struct SmallFileSystem(pub PathBuf);

impl SmallFileSystem {
    pub fn mount(at: PathBuf) -> Option<Self> {
        std::fs::create_dir(&at).unwrap();
        let mounted = run("mount", &["-t", "tmpfs", "-o", "size=4M", "tmpfs", path(&at)]);
        match mounted {
            Ok(()) => Some(Self(at)),
            Err(why) => {
                flowstone_testkit::skip(format_args!("cannot mount a small file system: {why}"));
                None
            }
        }
    }
}

impl Drop for SmallFileSystem {
    fn drop(&mut self) {
        // The kernel releases the rings of an ended daemon a little later.
        let _ = run("umount", &["--lazy", path(&self.0)]);
    }
}

/// A loop device, detached when dropped.
pub struct LoopDevice(pub String);

impl LoopDevice {
    /// Attaches a device to the file; `None`, with a note, if there is none available.
    pub fn attach(file: &Path) -> Option<Self> {
        let made = Command::new("losetup").args(["--find", "--show", path(file)]).output();
        let why = match made {
            Ok(made) if made.status.success() => {
                return Some(Self(String::from_utf8(made.stdout).unwrap().trim().to_owned()));
            }
            Ok(made) => String::from_utf8_lossy(&made.stderr).into_owned(),
            Err(error) => error.to_string(),
        };
        flowstone_testkit::skip(format_args!("no loop device: {why}"));
        None
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = run("losetup", &["--detach", &self.0]);
    }
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs a program; its output is the error if it fails.
pub fn run(program: &str, args: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(args).output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

#[test]
fn a_full_host_fails_writes_and_nothing_else() {
    let place = Place::new();
    let Some(small) = SmallFileSystem::mount(place.path("small")) else { return };
    for engine in ["auto", "uring", "sync"] {
        let image = small.0.join(format!("{engine}.raw"));
        place.succeed(&["create", "--size", "64M", path(&image)]);
        let daemon = place.serve(&["--engine", engine, path(&image)]);
        let mut client = place.client();
        let data = pattern(1 << 20, 3);
        assert_eq!(client.write(0, &data).unwrap(), Status::Ok);
        let statuses: Vec<Status> =
            (1..8).map(|n| client.write(n * 2048, &data).unwrap()).collect();
        assert!(statuses.contains(&Status::IoErr), "{engine}: 8 MiB fit into 4 MiB");
        let mut back = vec![0; 1 << 20];
        assert_eq!(client.read(0, &mut back).unwrap(), Status::Ok);
        assert!(back == data, "{engine}");
        // Space is freed, and writes work again.
        assert_eq!(client.discard(&[(0, 8 * 2048)]).unwrap(), Status::Ok);
        assert_eq!(client.write(2048, &data).unwrap(), Status::Ok);
        assert_eq!(client.flush().unwrap(), Status::Ok);
        assert!(place.stats()["disks"][0]["total"]["errors"]["write"].as_u64().unwrap() > 0);
        drop(client);
        stop(daemon);
        std::fs::remove_file(image).unwrap();
    }
}

#[test]
fn a_file_cut_short_fails_reads_past_its_new_end() {
    let place = Place::new();
    let image = place.image("1M");
    let daemon = place.serve(&["disk.raw"]);
    let mut client = place.client();
    let data = pattern(4096, 1);
    assert_eq!(client.write(0, &data).unwrap(), Status::Ok);
    std::fs::File::options().write(true).open(image).unwrap().set_len(8192).unwrap();
    let mut back = vec![0; 4096];
    assert_eq!(client.read(1024, &mut back).unwrap(), Status::IoErr);
    assert_eq!(client.read(0, &mut back).unwrap(), Status::Ok);
    assert!(back == data);
    stop(daemon);
}

#[test]
fn a_block_device_is_served_like_a_file() {
    let place = Place::new();
    let file = place.image("16M");
    let Some(device) = LoopDevice::attach(&file) else { return };
    for engine in ["uring", "sync"] {
        let args = ["--format", "raw", "--engine", engine, "--name", "loop", &device.0];
        let daemon = place.serve(&args);
        let mut client = place.client();
        assert_eq!(client.config().capacity_bytes(), 16 << 20);
        let data = pattern(1 << 20, 7);
        let mut back = vec![0; 1 << 20];
        assert_eq!(client.write(2048, &data).unwrap(), Status::Ok);
        assert_eq!(client.write_zeroes(&[(2048, 8)], false).unwrap(), Status::Ok);
        assert_eq!(client.discard(&[(2056, 8)]).unwrap(), Status::Ok);
        assert_eq!(client.flush().unwrap(), Status::Ok);
        assert_eq!(client.read(2048, &mut back).unwrap(), Status::Ok);
        assert!(back[..8192].iter().all(|byte| *byte == 0));
        assert!(back[8192..] == data[8192..]);
        drop(client);
        stop(daemon);
    }
    let refusal = place.refused(&["resize", "--format", "raw", &device.0, "32M"]);
    assert!(refusal.contains("a block device has the size it has"), "{refusal}");
}
