//! `compact`, verified by QEMU's tools.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::fixture::Place;
use crate::host_file_systems::Mounted;
use crate::host_trouble::LoopDevice;
use crate::qcow2::{QEMU_IMG, has_qemu};

impl Place {
    /// Writes most of an image through QEMU, cluster by cluster, in scattered order.
    fn fill_at_random(&self, image: &str, disk_bytes: u64, cluster_bytes: u64) {
        let clusters = disk_bytes / cluster_bytes;
        // Odd, while the number of clusters is even and not a multiple of it: so it visits all of
        // them.
        let step = (clusters * 5 / 13) | 1;
        let mut commands = String::new();
        for index in 0..clusters * 7 / 8 {
            let (at, fill) = (index * step % clusters * cluster_bytes, 1 + index % 250);
            commands += &format!("write -q -P {fill} {at} {cluster_bytes}\n");
        }
        let mut qemu_io = Command::new("qemu-io");
        qemu_io.args(["-f", "qcow2", image]).current_dir(self.dir.path());
        let mut child = qemu_io.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
    }

    /// Returns the number of runs of data that QEMU finds in the file.
    fn runs(&self, image: &str) -> usize {
        let map: Value =
            serde_json::from_str(&self.qemu(&[QEMU_IMG, "map", "--output=json", image])).unwrap();
        let mut end = None;
        let mut runs = 0;
        for part in map.as_array().unwrap() {
            // Compressed data and other files have no offset.
            let Some(at) = part["offset"].as_u64().filter(|_| part["depth"] == 0) else { continue };
            runs += usize::from(end != Some(at));
            end = Some(at + part["length"].as_u64().unwrap());
        }
        runs
    }

    fn allocated(&self, image: &str) -> u64 {
        self.path(image).metadata().unwrap().blocks() * 512
    }

    /// Blocks in which the file system stores the extents of the file count, too.
    fn assert_no_larger(&self, image: &str, before: u64) {
        let after = self.allocated(image);
        assert!(after <= before + (8 << 10), "{image}: {before} bytes, then {after}");
    }

    fn copy(&self, image: &str, copy: &str) {
        self.qemu(&["cp", "--sparse=always", image, copy]);
    }

    fn assert_identical(&self, image: &str, other: &str) {
        self.qemu(&[QEMU_IMG, "compare", "-q", image, other]);
    }
}

#[test]
fn data_of_a_qcow2_image_ends_up_in_order() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    for (size, disk_bytes, cluster_bytes) in [
        ("512", 2 << 20, 512),
        ("4K", 24 << 20, 4 << 10),
        ("64K", 128 << 20, 64 << 10),
        ("2M", 128 << 20, 2 << 20),
    ] {
        let options = format!("cluster_size={size}");
        let disk = disk_bytes.to_string();
        place.qemu(&[QEMU_IMG, "create", "-q", "-f", "qcow2", "-o", &options, "a", &disk]);
        place.fill_at_random("a", disk_bytes, cluster_bytes);
        place.copy("a", "before");
        let (runs, allocated) = (place.runs("a"), place.allocated("a"));
        let said = place.succeed(&["compact", "--format", "qcow2", "a"]);
        assert!(said.contains("runs of data") && said.contains("sequential read"), "{said}");
        place.assert_clean("a");
        place.assert_identical("a", "before");
        // Tables between data stay where they are.
        let tables = (disk_bytes / cluster_bytes / (cluster_bytes / 8)) as usize;
        let most = 2 + 2 * tables;
        assert!(place.runs("a") <= most && runs > 2 * most, "{size}: {runs} before, {said}");
        place.assert_no_larger("a", allocated);

        let content = std::fs::read(place.path("a")).unwrap();
        place.succeed(&["compact", "--format", "qcow2", "a"]);
        assert!(std::fs::read(place.path("a")).unwrap() == content, "{size}: a second time");
    }
}

#[test]
fn compressed_clusters_and_backing_files_are_left_alone() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    place.raw("source.raw", 8 << 20);
    for options in
        [&["-c", "source.raw", "a"][..], &["-B", "source.raw", "-F", "raw", "source.raw", "a"]]
    {
        let _ = std::fs::remove_file(place.path("a"));
        place.qemu(&[&[QEMU_IMG, "convert", "-q", "-O", "qcow2"], options].concat());
        place.copy("source.raw", "model.raw");
        place.exercise("a", "model.raw");
        place.copy("a", "before");
        let allocated = place.allocated("a");
        place.succeed(&["compact", "--format", "qcow2", "a"]);
        place.assert_clean("a");
        place.assert_identical("a", "before");
        place.qemu(&[QEMU_IMG, "compare", "-q", "-f", "qcow2", "-F", "raw", "a", "model.raw"]);
        place.assert_no_larger("a", allocated);
    }
}

#[test]
fn an_image_with_snapshots_is_refused() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    place.qemu(&[QEMU_IMG, "create", "-q", "-f", "qcow2", "a.qcow2", "1M"]);
    place.qemu(&[QEMU_IMG, "snapshot", "-c", "before", "a.qcow2"]);
    let refusal = place.refused(&["compact", "a.qcow2"]);
    assert!(refusal.contains("internal snapshots"), "{refusal}");
}

#[test]
fn a_killed_compact_leaves_a_valid_image() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    let disk_bytes = 64 << 20;
    place.qemu(&[QEMU_IMG, "create", "-q", "-f", "qcow2", "-o", "cluster_size=4K", "a", "64M"]);
    place.fill_at_random("a", disk_bytes, 4 << 10);
    place.copy("a", "before");
    for round in 0..6 {
        let mut compact = Command::new(env!("CARGO_BIN_EXE_flowstone"));
        compact.args(["compact", "--format", "qcow2", "a"]).current_dir(place.dir.path());
        let mut child = compact.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(150 + 200 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        // Its last requests may hold the lock for a moment.
        while place.run(&["info", "--format", "qcow2", "a"]).status.success()
            && place.run(&["check", "--format", "qcow2", "a"]).status.code() == Some(1)
        {
            std::thread::sleep(Duration::from_millis(20));
        }
        place.assert_identical("a", "before");
        // Only leaks are allowed.
        let check = place.run(&["check", "--format", "qcow2", "a"]).status.code();
        assert!(matches!(check, Some(0 | 3)), "{check:?}");
    }
    let said = place.succeed(&["compact", "--format", "qcow2", "a"]);
    place.assert_identical("a", "before");
    assert!(place.runs("a") < 100, "{said}");
}

#[test]
fn a_block_device_is_put_in_order_within_its_size() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    let disk_bytes = 24 << 20;
    place.qemu(&[QEMU_IMG, "create", "-q", "-f", "qcow2", "-o", "cluster_size=4K", "a", "24M"]);
    place.fill_at_random("a", disk_bytes, 4 << 10);
    let used = place.path("a").metadata().unwrap().len();
    for (spare, fits) in [(8 << 20, true), (0, false)] {
        place.copy("a", "device");
        let file = std::fs::File::options().write(true).open(place.path("device")).unwrap();
        file.set_len(used + spare).unwrap();
        let Some(device) = LoopDevice::attach(&place.path("device")) else { return };
        let args = ["compact", "--format", "qcow2", &device.0];
        if fits {
            let said = place.succeed(&args);
            assert!(said.contains("host extents        unknown"), "{said}");
        } else {
            assert!(place.refused(&args).contains("No space left"));
        }
        place.qemu(&[QEMU_IMG, "check", "-q", "-f", "qcow2", &device.0]);
        place.qemu(&[QEMU_IMG, "compare", "-q", "-f", "qcow2", "-F", "qcow2", &device.0, "a"]);
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "nothing else syncs this file")]
fn a_full_host_stops_compact_and_loses_nothing() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    let Some(_mounted) = Mounted::make(&place, "ext4") else { return };
    let (image, disk_bytes) = ("on-ext4/a", 256 << 20);
    place.qemu(&[QEMU_IMG, "create", "-q", "-f", "qcow2", image, "256M"]);
    place.fill_at_random(image, disk_bytes, 64 << 10);
    place.copy(image, "before");
    let mut ballast = std::fs::File::create(place.path("on-ext4/ballast")).unwrap();
    while ballast.write_all(&[1; 64 << 10]).is_ok() {}
    ballast.set_len(ballast.metadata().unwrap().len() - (2 << 20)).unwrap();
    ballast.sync_all().unwrap();
    drop(ballast);
    let refusal = place.refused(&["compact", "--format", "qcow2", image]);
    assert!(refusal.contains("No space left") && refusal.contains("free space"), "{refusal}");
    place.assert_clean(image);
    place.assert_identical(image, "before");
    std::fs::remove_file(place.path("on-ext4/ballast")).unwrap();
    let said = place.succeed(&["compact", "--format", "qcow2", image]);
    place.assert_clean(image);
    place.assert_identical(image, "before");
    assert!(place.runs(image) < 10, "{said}");
}

#[test]
fn every_format_says_how_its_data_lies() {
    let place = Place::new();
    let path = place.image("24M");
    let file = std::fs::File::options().write(true).open(path).unwrap();
    for at in [0, 8 << 20, 16 << 20] {
        std::os::unix::fs::FileExt::write_all_at(&file, &vec![7; 2 << 20], at).unwrap();
    }
    drop(file);
    place.succeed(&["convert", "disk.raw", "disk.flow"]);
    place.succeed(&["convert", "disk.raw", "disk.qcow2"]);
    for (image, runs) in [("disk.raw", "3           3"), ("disk.qcow2", "1           1")] {
        let said = place.succeed(&["compact", image]);
        assert!(said.contains(&format!("runs of data        {runs}")), "{image}: {said}");
    }
    let said = place.succeed(&["compact", "disk.flow"]);
    for name in
        ["before      after", "on the host", "runs of data", "host extents", "sequential read"]
    {
        assert!(said.contains(name), "{said}");
    }
}

#[test]
fn an_idle_time_pass_that_cannot_be_is_refused_with_what_to_do() {
    let place = Place::new();
    place.image("1M");
    let serve = ["serve", "--socket", "s", "disk.raw", "--resort"];
    for (limit, expected) in [("some", "use a size such as 20G, or off"), ("0", "use a size")] {
        let output = place.run(&[&serve[..], &[limit]].concat());
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{limit}: {errors}");
        assert!(errors.contains(expected), "{limit}: {errors}");
    }
    let refusal = place.refused(&[&serve[..], &["1G"]].concat());
    assert!(refusal.contains("only a log image"), "{refusal}");
}
