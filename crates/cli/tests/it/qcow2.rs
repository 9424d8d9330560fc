//! Interoperability of qcow2 images with QEMU: images made here are read there, and the other way
//! round.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::process::Command;

use flowstone_testkit::load::{Limit, LoadOptions, run};
use flowstone_testkit::{Client, HANG, Status, skip, wait_until};

use crate::fixture::{Place, pattern, stop};

pub const QEMU_IMG: &str = "qemu-img";

/// Returns whether QEMU's tools are installed. Prints a note if not: without them half of this is
/// not tested.
pub fn has_qemu() -> bool {
    let found = Command::new(QEMU_IMG).arg("--version").output().is_ok();
    if !found {
        assert!(
            std::env::var_os("FLOWSTONE_REQUIRE_GUESTS").is_none(),
            "{QEMU_IMG} is required here"
        );
        skip(format_args!("there is no {QEMU_IMG} on this machine (scripts/setup installs it)"));
    }
    found
}

/// Returns the redo files in a folder.
fn redo_files(place: &Place) -> Vec<PathBuf> {
    let all = std::fs::read_dir(place.dir.path()).unwrap().map(|it| it.unwrap().path());
    all.filter(|path| path.extension().is_some_and(|it| it == "redo")).collect()
}

impl Place {
    /// Runs one of QEMU's tools, which must succeed. Returns its output.
    pub fn qemu(&self, args: &[&str]) -> String {
        let output =
            Command::new(args[0]).args(&args[1..]).current_dir(self.dir.path()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {text}{errors}");
        text
    }

    /// Checks that QEMU finds nothing worse than leaked clusters (status 3), which a kill in the
    /// middle of a commit leaves behind.
    fn qemu_reads(&self, image: &str) {
        let args = ["check", image];
        let output =
            Command::new(QEMU_IMG).args(args).current_dir(self.dir.path()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(matches!(output.status.code(), Some(0 | 3)), "{text}{}", output.status);
    }

    /// Checks that both find no error in the image.
    pub fn assert_clean(&self, image: &str) {
        self.qemu(&[QEMU_IMG, "check", "-q", image]);
        self.succeed(&["check", "--format", "qcow2", image]);
    }

    /// Checks that both find the same data in both images.
    pub fn assert_same(&self, one: &str, other: &str) {
        self.qemu(&[QEMU_IMG, "compare", "-q", one, other]);
        for (image, copy) in [(one, "one.raw"), (other, "other.raw")] {
            let _ = std::fs::remove_file(self.path(copy));
            let format = if image.ends_with("raw") { "raw" } else { "qcow2" };
            self.succeed(&["convert", "--source-format", format, image, copy]);
        }
        let read = |name: &str| std::fs::read(self.path(name)).unwrap();
        let (one, other) = (read("one.raw"), read("other.raw"));
        let shared = one.len().min(other.len());
        assert!(one[..shared] == other[..shared]);
    }

    /// Makes a raw file with data and holes.
    pub fn raw(&self, name: &str, bytes: u64) {
        let file = std::fs::File::create(self.path(name)).unwrap();
        file.set_len(bytes).unwrap();
        for (index, at) in (0..bytes).step_by(1_300_000).enumerate() {
            let length = (bytes - at).min(700_000) as usize / 512 * 512;
            file.write_all_at(&pattern(length, index as u8), at / 512 * 512).unwrap();
        }
    }

    /// Serves the image, and applies the same changes to it as to the raw file `model`.
    pub fn exercise(&self, image: &str, model: &str) {
        let daemon = self.serve(&["--format", "qcow2", image]);
        let model = std::fs::File::options().write(true).open(self.path(model)).unwrap();
        let mut client = self.client();
        let sectors = client.config().capacity_bytes() / 512;
        let write = |client: &mut Client, sector: u64, bytes: usize, seed: u8| {
            let data = pattern(bytes, seed);
            assert_eq!(client.write(sector, &data).unwrap(), Status::Ok);
            model.write_all_at(&data, sector * 512).unwrap();
        };
        let zero = |client: &mut Client, sector: u64, count: u64, discard: bool| {
            let ranges = [(sector, count as u32)];
            let status = match discard {
                true => client.discard(&ranges),
                false => client.write_zeroes(&ranges, sector.is_multiple_of(2)),
            };
            assert_eq!(status.unwrap(), Status::Ok);
            model.write_all_at(&vec![0; count as usize * 512], sector * 512).unwrap();
        };
        for step in 0..60u64 {
            let sector = step * 7919 % (sectors - 400);
            match step % 5 {
                0 => zero(&mut client, sector, 1 + step * 6, true),
                1 => zero(&mut client, sector, 1 + step * 3, false),
                2 => write(&mut client, sector, 120 * 512, step as u8),
                _ => write(&mut client, sector, (1 + step as usize % 9) * 512, step as u8),
            }
            if step % 11 == 0 {
                assert_eq!(client.flush().unwrap(), Status::Ok);
            }
        }
        drop(client);
        stop(daemon);
    }
}

#[test]
fn images_made_here_are_in_order_for_qemu() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    for (name, options) in [
        ("plain.qcow2", &["--size", "20M"][..]),
        ("small.qcow2", &["--size", "20M", "--cluster-size", "512"]),
        ("large.qcow2", &["--size", "20M", "--cluster-size", "2M"]),
        ("odd.qcow2", &["--size", "10486272", "--cluster-size", "4K"]),
        ("ahead.qcow2", &["--size", "20M", "--preallocation", "metadata"]),
    ] {
        place.succeed(&[&["create"], options, &[name]].concat());
        place.assert_clean(name);
        let bytes = place.qemu(&[QEMU_IMG, "info", "--output=json", name]);
        assert!(bytes.contains("\"format\": \"qcow2\""));
        place.raw("model.raw", if name == "odd.qcow2" { 10_486_272 } else { 20 << 20 });
        let size = place.path("model.raw").metadata().unwrap().len();
        std::fs::File::create(place.path("model.raw")).unwrap().set_len(size).unwrap();
        place.exercise(name, "model.raw");
        place.assert_clean(name);
        place.assert_same(name, "model.raw");
    }
    assert!(place.path("plain.qcow2").metadata().unwrap().blocks() * 512 < 20 << 20);
}

#[test]
fn images_made_by_qemu_are_read_and_written_here() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    place.raw("source.raw", 12 << 20);
    for (options, compressed) in [
        ("cluster_size=64k", false),
        ("cluster_size=64k", true),
        ("cluster_size=512", true),
        ("cluster_size=2M", true),
        ("compat=0.10,cluster_size=4k", false),
        ("refcount_bits=1", false),
        ("refcount_bits=64,cluster_size=1k", true),
    ] {
        let _ = std::fs::remove_file(place.path("a.qcow2"));
        let mut args = vec![QEMU_IMG, "convert", "-O", "qcow2", "-o", options];
        if compressed {
            args.push("-c");
        }
        args.extend(["source.raw", "a.qcow2"]);
        place.qemu(&args);
        place.assert_clean("a.qcow2");
        place.assert_same("a.qcow2", "source.raw");
        std::fs::copy(place.path("source.raw"), place.path("model.raw")).unwrap();
        place.exercise("a.qcow2", "model.raw");
        place.assert_clean("a.qcow2");
        place.assert_same("a.qcow2", "model.raw");
        assert_eq!(redo_files(&place), [] as [PathBuf; 0], "{options}");
    }
}

#[test]
fn what_is_based_on_other_images_reads_through_and_is_written_apart() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    place.raw("base.raw", 6 << 20);
    place.succeed(&["create", "--size", "8M", "--backing", "base.raw", "middle.qcow2"]);
    std::fs::File::create(place.path("model.raw")).unwrap().set_len(8 << 20).unwrap();
    let model = std::fs::File::options().write(true).open(place.path("model.raw")).unwrap();
    model.write_all_at(&std::fs::read(place.path("base.raw")).unwrap(), 0).unwrap();
    place.exercise("middle.qcow2", "model.raw");
    place.assert_clean("middle.qcow2");
    place.assert_same("middle.qcow2", "model.raw");

    let base = std::fs::read(place.path("base.raw")).unwrap();
    let options = ["-o", "compat=0.10,cluster_size=1k,backing_file=middle.qcow2,backing_fmt=qcow2"];
    place
        .qemu(&[&[QEMU_IMG, "create", "-q", "-f", "qcow2"], &options[..], &["top", "8M"]].concat());
    place.exercise("top", "model.raw");
    place.assert_clean("top");
    place.qemu(&[QEMU_IMG, "compare", "-q", "-f", "qcow2", "-F", "raw", "top", "model.raw"]);
    assert!(std::fs::read(place.path("base.raw")).unwrap() == base, "a backing file has changed");
    place.assert_clean("middle.qcow2");
}

#[test]
fn backing_files_are_followed_only_where_that_is_allowed() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    std::fs::create_dir(place.path("other")).unwrap();
    place.raw("other/base.raw", 1 << 20);
    place.raw("base.raw", 1 << 20);
    let based_on = |name: &str, format: &str| {
        let _ = std::fs::remove_file(place.path("a.qcow2"));
        place.qemu(&[QEMU_IMG, "create", "-q", "-f", "qcow2", "a.qcow2", "1M"]);
        let mut args = vec![QEMU_IMG, "rebase", "-q", "-u", "-b", name];
        if !format.is_empty() {
            args.extend(["-F", format]);
        }
        args.push("a.qcow2");
        place.qemu(&args);
    };
    based_on("other/base.raw", "raw");
    place.succeed(&["convert", "a.qcow2", "below.raw"]);
    std::fs::create_dir(place.path("images")).unwrap();
    place.succeed(&["create", "--size", "1M", "--backing", "../base.raw", "images/b.qcow2"]);
    let refusal = place.refused(&["convert", "images/b.qcow2", "x.raw"]);
    assert!(refusal.contains("in another directory") && refusal.contains("--backing-dir"));
    place.succeed(&["convert", "--backing-dir", ".", "images/b.qcow2", "x.raw"]);
    for (name, format, why) in [
        ("nbd:localhost:1", "raw", "not a plain file name"),
        ("json:{\"driver\":\"null-co\"}", "raw", "not a plain file name"),
        ("missing.raw", "raw", "does not exist"),
        ("base.raw", "vmdk", "has the format `vmdk`"),
        ("a.qcow2", "qcow2", "longer than 16, or a loop"),
    ] {
        based_on(name, format);
        let refusal = place.refused(&["convert", "a.qcow2", "y.raw"]);
        assert!(refusal.contains(why), "{name}: {refusal}");
        assert!(!place.path("y.raw").exists());
    }
}

#[test]
fn what_would_be_misread_is_refused_by_name() {
    if !has_qemu() {
        return;
    }
    let place = Place::new();
    let make = |name: &str, options: &str| {
        place.qemu(&[QEMU_IMG, "create", "-q", "-f", "qcow2", "-o", options, name, "1M"]);
    };
    make("data.qcow2", "data_file=data.raw");
    make("extended.qcow2", "extended_l2=on,cluster_size=128k");
    make("zstd.qcow2", "compression_type=zstd");
    make("snapshot.qcow2", "cluster_size=64k");
    place.qemu(&[QEMU_IMG, "snapshot", "-c", "before", "snapshot.qcow2"]);
    for (image, why) in [
        ("data.qcow2", "its data is in another file"),
        ("extended.qcow2", "extended L2"),
        ("zstd.qcow2", "not deflated"),
    ] {
        let refusal = place.refused(&["convert", image, "x.raw"]);
        assert!(refusal.contains(why), "{image}: {refusal}");
    }
    let refusal = place.refused(&["resize", "snapshot.qcow2", "2M"]);
    assert!(refusal.contains("internal snapshots"), "{refusal}");
    place.succeed(&["convert", "snapshot.qcow2", "snapshot.raw"]);
}

#[test]
fn several_queues_at_once_leave_the_image_in_order() {
    let place = Place::new();
    place.succeed(&["create", "--size", "64M", "disk.qcow2"]);
    let daemon = place.serve(&["--queues", "4", "--pollers", "per-queue", "disk.qcow2"]);
    let mut options = LoadOptions::new(place.path("disk.sock"));
    options.workload = "mix".parse().unwrap();
    options.client = place.options().queues(4);
    options.verify_final = true;
    options.discard_zeroes = true;
    options.iodepth = 16;
    options.flush_every = 50;
    options.verify = true;
    options.limit = Limit::Ops(12_000);
    let report = run(&options).unwrap();
    assert_eq!(report.errors, 0);
    stop(daemon);
    place.succeed(&["check", "disk.qcow2"]);
    if has_qemu() {
        place.assert_clean("disk.qcow2");
        place.succeed(&["convert", "disk.qcow2", "copy.raw"]);
        place.assert_same("disk.qcow2", "copy.raw");
    }
}

#[test]
fn images_change_format_and_size() {
    let place = Place::new();
    place.raw("a.raw", 9 << 20);
    place.succeed(&["convert", "a.raw", "b.qcow2"]);
    place.succeed(&["convert", "b.qcow2", "c.flow"]);
    place.succeed(&["convert", "--cluster-size", "2M", "c.flow", "d.qcow2"]);
    place.succeed(&["resize", "d.qcow2", "3G"]);
    place.succeed(&["compact", "d.qcow2"]);
    place.succeed(&["check", "d.qcow2"]);
    let info = place.succeed(&["info", "d.qcow2"]);
    assert!(info.contains("3 GiB") && info.contains("clusters    2 MiB"), "{info}");
    place.succeed(&["convert", "d.qcow2", "e.raw"]);
    let read = |name: &str| std::fs::read(place.path(name)).unwrap();
    assert!(read("e.raw")[..9 << 20] == read("a.raw"));
    let daemon = place.serve(&["b.qcow2"]);
    let mut client = place.client();
    place.succeed(&["resize", "--control", "control.sock", "b.qcow2", "20M"]);
    assert!(client.wait_config_change(HANG).unwrap());
    let last = (20 << 20) / 512 - 8;
    assert_eq!(client.write(last, &pattern(4096, 1)).unwrap(), Status::Ok);
    drop(client);
    stop(daemon);
    place.succeed(&["check", "b.qcow2"]);
}

#[test]
fn options_that_make_no_image_are_refused() {
    let place = Place::new();
    for (options, why) in [
        (&["--cluster-size", "3K", "a.qcow2"][..], "a power of two"),
        (&["--cluster-size", "256", "a.qcow2"], "a power of two"),
        (&["--cluster-size", "4M", "a.qcow2"], "a power of two"),
        (&["--cluster-size", "64K", "a.raw"], "a raw image has no clusters"),
        (&["--segment", "1M", "a.qcow2"], "a qcow2 image has no segments"),
        (&["--backing", "none.raw", "a.qcow2"], "no such file"),
        (&["--backing", "none", "a.qcow2"], "does not tell the image format"),
    ] {
        let refusal = place.refused(&[&["create", "--size", "1G"], options].concat());
        assert!(refusal.contains(why), "{options:?}: {refusal}");
        assert!(!place.path("a.qcow2").exists() && !place.path("a.raw").exists());
    }
    let huge = place.refused(&["create", "--size", "1T", "--cluster-size", "512", "a.qcow2"]);
    assert!(huge.contains("L1 table is larger") && huge.contains("--cluster-size"), "{huge}");
}

#[test]
fn a_killed_daemon_forgets_nothing_that_has_completed() {
    let place = Place::new();
    place.succeed(&["create", "--size", "64M", "disk.qcow2"]);
    let block = |number: u64, round: u8| pattern(4096, round ^ number as u8);
    for round in 1..4u8 {
        let mut daemon = place.serve(&["disk.qcow2"]);
        let mut client = place.client();
        let mut found = vec![0; 4096];
        for number in 0..200u64 {
            let sector = number * 640;
            if round > 1 {
                assert_eq!(client.read(sector, &mut found).unwrap(), Status::Ok);
                assert!(found == block(number, round - 1), "block {number} in round {round}");
            }
            assert_eq!(client.write(sector, &block(number, round)).unwrap(), Status::Ok);
        }
        daemon.kill().unwrap();
    }
    assert_eq!(redo_files(&place).len(), 1);
    // The killed daemon's last requests may hold the lock for a moment.
    let locked = |output: &std::process::Output| {
        String::from_utf8_lossy(&output.stderr).contains("is using this image")
    };
    wait_until("the lock", || !locked(&place.run(&["convert", "disk.qcow2", "early.raw"])));
    stop(place.serve(&["disk.qcow2"]));
    assert_eq!(redo_files(&place).len(), 0);
    assert_eq!(place.run(&["check", "--repair", "disk.qcow2"]).status.code(), Some(0));
    place.succeed(&["convert", "disk.qcow2", "copy.raw"]);
    let copy = std::fs::read(place.path("copy.raw")).unwrap();
    assert!(copy == std::fs::read(place.path("early.raw")).unwrap(), "seen without recovery");
    for number in 0..200u64 {
        let at = number as usize * 640 * 512;
        assert!(copy[at..at + 4096] == block(number, 3), "block {number}");
    }
    if has_qemu() {
        place.assert_clean("disk.qcow2");
    }
}

/// Kills a daemon that has completed writes and flushed none.
pub fn kill_with_unflushed_writes(place: &Place, image: &str) {
    let mut daemon = place.serve(&[image]);
    let mut client = place.client();
    for number in 0..50u64 {
        let data = pattern(4096, number as u8);
        assert_eq!(client.write(number * 640, &data).unwrap(), Status::Ok);
    }
    daemon.kill().unwrap();
    daemon.wait(HANG).unwrap();
    // Its last requests may hold the lock for a moment.
    let locked = || {
        let output = place.run(&["check", image]);
        String::from_utf8_lossy(&output.stderr).contains("is using this image")
    };
    wait_until("the lock", || !locked());
}

#[test]
fn tools_between_a_kill_and_the_restart_leave_what_has_completed() {
    let place = Place::new();
    place.succeed(&["create", "--size", "64M", "disk.qcow2"]);
    kill_with_unflushed_writes(&place, "disk.qcow2");
    place.succeed(&["convert", "disk.qcow2", "early.raw"]);
    if has_qemu() {
        // QEMU accepts the mark.
        place.qemu(&[QEMU_IMG, "info", "disk.qcow2"]);
        place.qemu_reads("disk.qcow2");
    }
    let told = place.run(&["check", "disk.qcow2"]);
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.contains("changes of a killed daemon wait in"), "{told}");
    assert_eq!(place.run(&["check", "--repair", "disk.qcow2"]).status.code(), Some(0));
    place.succeed(&["convert", "disk.qcow2", "late.raw"]);
    stop(place.serve(&["disk.qcow2"]));
    place.succeed(&["check", "disk.qcow2"]);
    place.succeed(&["convert", "disk.qcow2", "after.raw"]);
    let read = |name: &str| std::fs::read(place.path(name)).unwrap();
    let early = read("early.raw");
    assert!((0..50).all(|it| early[it * 640 * 512..][..4096] == pattern(4096, it as u8)));
    assert!(read("late.raw") == early && read("after.raw") == early);
}

#[test]
fn an_image_whose_redo_file_is_gone_is_refused_until_it_is_given_up() {
    let place = Place::new();
    place.succeed(&["create", "--size", "64M", "disk.qcow2"]);
    kill_with_unflushed_writes(&place, "disk.qcow2");
    let redo = redo_files(&place).pop().unwrap();
    std::fs::rename(&redo, place.path("kept")).unwrap();
    for command in [
        &["convert", "disk.qcow2", "a.raw"][..],
        &["check", "disk.qcow2"],
        &["resize", "disk.qcow2", "80M"],
        &["compact", "disk.qcow2"],
    ] {
        let refusal = place.refused(command);
        let name = redo.file_name().unwrap().display();
        assert!(refusal.contains(&format!("{name} is not there")), "{command:?}: {refusal}");
    }
    std::fs::rename(place.path("kept"), &redo).unwrap();
    std::os::unix::fs::symlink("disk.qcow2", place.path("link.qcow2")).unwrap();
    place.succeed(&["convert", "link.qcow2", "link.raw"]);
    std::fs::remove_file(&redo).unwrap();
    let given_up = place.succeed(&["check", "--repair", "disk.qcow2"]);
    assert!(given_up.contains("were given up"), "{given_up}");
    place.succeed(&["convert", "disk.qcow2", "a.raw"]);
    kill_with_unflushed_writes(&place, "link.qcow2");
    assert_eq!(redo_files(&place).len(), 1);
    if has_qemu() {
        // A write by other software makes it void.
        place.qemu(&[QEMU_IMG, "resize", "-q", "disk.qcow2", "65M"]);
        place.succeed(&["check", "disk.qcow2"]);
        stop(place.serve(&["disk.qcow2"]));
        place.assert_clean("disk.qcow2");
    }
}
