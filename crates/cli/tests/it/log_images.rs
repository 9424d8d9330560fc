//! Log images through the command line: create, info, check, convert, resize, and damaged ones.

use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use flowstone_log::fuzzing::{Left, Patch, Target, patched, small_image};
use flowstone_testkit::load::{LoadOptions, run};
use flowstone_testkit::{Status, wait_until};
use serde_json::Value;

use crate::fixture::{Place, pattern, stop};
use crate::host_trouble::LoopDevice;

impl Place {
    /// Makes a log image of this size.
    fn log_image(&self, size: &str) -> PathBuf {
        self.succeed(&["create", "--size", size, "disk.flow"]);
        self.path("disk.flow")
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_slice(&self.run(args).stdout).unwrap()
    }

    /// Makes a raw image with some data, and holes, and a partial block at its end.
    fn source(&self) -> Vec<u8> {
        let path = self.image("9M");
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.write_all_at(&pattern(700_000, 1), 123_456).unwrap();
        file.write_all_at(&pattern(3_000_000, 2), 5 << 20).unwrap();
        file.set_len((9 << 20) + 512).unwrap();
        file.write_all_at(&pattern(1024, 3), (9 << 20) - 512).unwrap();
        std::fs::read(path).unwrap()
    }
}

#[test]
fn statistics_tell_what_the_log_does() {
    let place = Place::new();
    place.succeed(&["create", "--size", "1T", "--erase-unit", "8M", "disk.flow"]);
    let daemon = place.serve(&["disk.flow"]);
    let log = |key: &str| place.stats()["disks"][0]["log"][key].as_u64().unwrap();
    assert!(log("map_memory_bytes") <= 1 << 20, "an empty disk of 1 TiB");
    assert_eq!((log("live_bytes"), log("guest_blocks"), log("segments_dead")), (0, 0, 0));
    let mut guest = place.client();
    for lba in 0..100 {
        assert_eq!(guest.write(lba << 20, &pattern(4096, 1)).unwrap(), Status::Ok);
        assert_eq!(guest.write(lba << 20, &pattern(4096, 2)).unwrap(), Status::Ok);
    }
    assert_eq!((log("live_bytes"), log("guest_blocks")), (100 * 4096, 200));
    let appended = log("appended_blocks");
    assert!((201..=400 + log("map_blocks")).contains(&appended), "{appended}");
    let text = place.succeed(&["stats", "--control", &place.text("control.sock")]);
    assert!(text.contains(" live 400 KiB, ") && text.contains(" segments used "), "{text}");
    drop(guest);
    stop(daemon);
    // The reserve is freed: two segments being filled remain.
    let allocated = place.path("disk.flow").metadata().unwrap().blocks() * 512;
    assert!(allocated <= 65 << 20, "{allocated} bytes on the host");
}

#[test]
fn a_new_log_image_takes_no_room_and_tells_its_layout() {
    let place = Place::new();
    place.succeed(&["create", "--size", "1T", "--erase-unit", "8M", "disk.flow"]);
    let path = place.path("disk.flow");
    let info = place.json(&["info", "--json", "disk.flow"]);
    assert_eq!(
        (info["format"].as_str(), info["virtual_bytes"].as_u64()),
        (Some("log"), Some(1 << 40))
    );
    assert!(path.metadata().unwrap().blocks() * 512 <= 64 << 10);
    let log = &info["log"];
    assert_eq!(log["segment_bytes"], 32 << 20);
    assert_eq!((&log["streams"], &log["reserve_percent"]), (&"one".into(), &25.into()));
    assert_eq!((&log["live_bytes"], &log["clean"]), (&0.into(), &true.into()));
    assert_eq!(
        (&log["write_amplification"], &log["checkpoint_age_s"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(place.run(&["check", "--data", "disk.flow"]).status.code(), Some(0));

    let options = ["--segment", "256K", "--reserve", "3", "--streams", "class"];
    place.succeed(&[&["create", "--size", "5M", "--format", "log"][..], &options, &["b"]].concat());
    let log = &place.json(&["info", "--json", "--format", "log", "b"])["log"];
    assert_eq!((&log["segment_bytes"], &log["streams"]), (&(256 << 10).into(), &"class".into()));
    let text = place.succeed(&["info", "disk.flow"]);
    assert!(text.contains("segments    ") && text.contains("closed in order"), "{text}");
}

#[test]
fn layouts_that_cannot_be_are_refused() {
    let place = Place::new();
    for (options, why) in [
        (&["--segment", "3M", "a.flow"][..], "a power of two"),
        (&["--segment", "128K", "a.flow"], "a power of two"),
        (&["--segment", "2G", "a.flow"], "a power of two"),
        (&["--erase-unit", "2K", "a.flow"], "a multiple of 4K"),
        (&["--erase-unit", "2G", "a.flow"], "a multiple of 4K"),
        (&["--erase-unit", "8M", "a.raw"], "a raw image has no segments"),
        (&["--reserve", "2", "a.flow"], "a reserve is 3 to 74 percent"),
        (&["--reserve", "75", "a.flow"], "a reserve is 3 to 74 percent"),
        (&["--segment", "4M", "a.raw"], "a raw image has no segments"),
        (&["--reserve", "30", "a.raw"], "a raw image has no segments"),
        (&["--streams", "split", "a.raw"], "a raw image has no segments"),
    ] {
        let refusal = place.refused(&[&["create", "--size", "1G"], options].concat());
        assert!(refusal.contains(why), "{options:?}: {refusal}");
        assert!(!place.path(options[2]).exists());
    }
    let refusal = place.refused(&["create", "--size", "20T", "a.flow"]);
    assert!(refusal.contains("16 TiB"), "{refusal}");
    let refusal = place.refused(&["create", "--size", "1T", "--segment", "256K", "a.flow"]);
    assert!(refusal.contains("larger --segment"), "{refusal}");
    assert_eq!(
        place.run(&["create", "--size", "1G", "--streams", "x", "a.flow"]).status.code(),
        Some(2)
    );
}

#[test]
fn a_log_image_that_exists_gets_other_streams() {
    let place = Place::new();
    place.log_image("64M");
    let streams = || place.json(&["info", "--json", "disk.flow"])["log"]["streams"].clone();
    for (number, wanted) in (1..).zip(["class", "one", "class"]) {
        let daemon = place.serve(&["--streams", wanted, "disk.flow"]);
        let mut guest = place.client();
        assert_eq!(guest.write(number * 64, &pattern(4096, number as u8)).unwrap(), Status::Ok);
        drop(guest);
        stop(daemon);
        assert_eq!(streams(), wanted);
    }
    let daemon = place.serve(&["disk.flow"]);
    let mut read = vec![0; 4096];
    for number in 1..4 {
        assert_eq!(place.client().read(number * 64, &mut read).unwrap(), Status::Ok);
        assert!(read == pattern(4096, number as u8), "write {number}");
    }
    stop(daemon);
    assert_eq!(streams(), "class", "what is not asked for stays");
    let readonly = ["serve", "--socket", "s", "--readonly", "--streams", "one", "disk.flow"];
    assert!(place.refused(&readonly).contains("open for reading only"));
    place.image("1M");
    let refusal = place.refused(&["serve", "--socket", "s", "--streams", "class", "disk.raw"]);
    assert!(refusal.contains("only a log image has streams"), "{refusal}");
}

/// Regression: a mounted file system is never idle for long: the sorting pass waited for that, and
/// never ran.
#[test]
fn blocks_are_put_in_order_beside_a_guest_that_writes_now_and_then() {
    let place = Place::new();
    place.log_image("32M");
    let daemon = place.serve(&["--resort", "1G", "disk.flow"]);
    let mut scattered = LoadOptions::new(place.path("disk.sock")).workload("randwrite").iodepth(32);
    (scattered.client, scattered.seed) = (place.options(), 1);
    assert_eq!(run(&scattered.ops(16_000)).unwrap().errors, 0);
    let passes = || place.stats()["disks"][0]["log"]["resort_passes"].as_u64().unwrap();
    let mut guest = place.client();
    wait_until("a pass is made", || {
        // In a definer, the write would make the classifier read the layout again each time.
        assert_eq!(guest.write(40_000, &pattern(4096, 1)).unwrap(), Status::Ok);
        assert_eq!(guest.flush().unwrap(), Status::Ok);
        std::thread::sleep(std::time::Duration::from_secs(1));
        passes() > 0
    });
    drop(guest);
    stop(daemon);
    place.succeed(&["check", "--data", "disk.flow"]);
}

#[test]
fn segments_follow_what_the_drive_erases() {
    let place = Place::new();
    let made = |image: &str, options: &[&str]| {
        let output = place.run(&[&["create"], options, &[image]].concat());
        assert!(output.status.success(), "{output:?}");
        let log = place.json(&["info", "--json", image])["log"].clone();
        let said = String::from_utf8(output.stderr).unwrap();
        let unit = (log["erase_unit_bytes"].as_u64(), log["erase_unit_from"].as_str());
        assert_eq!(unit.0.is_some(), unit.1.is_some());
        (log["segment_bytes"].as_u64().unwrap() >> 20, unit.0.unwrap() >> 20, said)
    };
    // Where a raw image is gentler, both commands say so: `create` with the cost, in one line. On
    // 64 GiB and units of 32 MiB, the default, that is 57 % more flash; 147 % on 4 GiB.
    let size = |size| ["--size", size];
    let with = |size, unit| ["--size", size, "--erase-unit", unit];
    for (image, options, segment, unit, times) in [
        ("a.flow", &size("64G")[..], 128, 32, "1.1 to 1.8 times"),
        ("b.flow", &size("4G"), 32, 32, "1.5 to 3 times"),
        ("c.flow", &with("100G", "24M"), 128, 24, "1.1 to 1.8 times"),
        ("d.flow", &with("1G", "24M"), 8, 24, "1.5 to 3 times"),
        ("e.flow", &with("1G", "2M"), 8, 2, "1.1 to 1.8 times"),
    ] {
        let (made_segment, made_unit, said) = made(image, options);
        assert_eq!((made_segment, made_unit), (segment, unit), "{image}");
        let gentler = format!("{image}: raw with TRIM is gentler");
        assert!(said.contains(&gentler) && said.contains(times), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        let text = place.succeed(&["info", image]);
        assert!(text.contains("a raw image with TRIM is gentler"), "{text}");
    }
    let (segment, _, said) = made("f.flow", &with("4G", "512K"));
    assert_eq!((segment, &*said), (8, ""));
    let text = place.succeed(&["info", "f.flow"]);
    assert!(text.contains("512 KiB (by option)\n"), "{text}");
    // An explicit value is used, or refused.
    let options = ["--size", "1G", "--erase-unit", "2M", "--segment", "4M"];
    assert_eq!(made("g.flow", &options).0, 4);
    let refused = place.refused(&[
        "create",
        "--size",
        "1G",
        "--erase-unit",
        "2M",
        "--segment",
        "1M",
        "no.flow",
    ]);
    assert!(refused.contains("no multiple of the --erase-unit"), "{refused}");
    // An existing image becomes one with this erase unit.
    place.succeed(&["convert", "--erase-unit", "1M", "g.flow", "h.flow"]);
    let log = &place.json(&["info", "--json", "h.flow"])["log"];
    assert_eq!(
        (&log["erase_unit_from"], &log["segment_bytes"]),
        (&"option".into(), &(4 << 20).into())
    );
}

#[test]
fn convert_goes_both_ways_and_keeps_holes() {
    let place = Place::new();
    let source = place.source();
    place.succeed(&["convert", "--segment", "512K", "disk.raw", "copy.flow"]);
    let info = place.json(&["info", "--json", "copy.flow"]);
    assert_eq!(info["virtual_bytes"], source.len());
    assert_eq!(info["log"]["segment_bytes"], 512 << 10);
    assert!(info["log"]["live_bytes"].as_u64().unwrap() < 4 << 20);
    assert!(info["log"]["write_amplification"].as_f64().unwrap() < 1.5);
    let report = place.json(&["check", "--data", "--json", "copy.flow"]);
    assert_eq!(report["error_count"], 0);
    assert_eq!(report["readable_bytes"], info["log"]["live_bytes"]);
    place.succeed(&["convert", "copy.flow", "again.flow"]);
    place.succeed(&["convert", "again.flow", "back.raw"]);
    assert!(std::fs::read(place.path("back.raw")).unwrap() == source);
    let allocated = place.path("back.raw").metadata().unwrap().blocks() * 512;
    assert!(allocated < 5 << 20, "{allocated} bytes are allocated");
    let refusal = place.refused(&["convert", "--segment", "512K", "copy.flow", "no.raw"]);
    assert!(refusal.contains("a raw image has no segments"), "{refusal}");
}

#[test]
fn resize_grows_and_shrinks_a_log_image_but_not_over_data() {
    let place = Place::new();
    let mut content = place.source();
    place.succeed(&["convert", "disk.raw", "copy.flow"]);
    let refusal = place.refused(&["resize", "copy.flow", "4M"]);
    assert!(refusal.contains("data beyond the new end"), "{refusal}");
    place.succeed(&["resize", "copy.flow", "40M"]);
    place.succeed(&["resize", "copy.flow", "10M"]);
    place.succeed(&["check", "--data", "copy.flow"]);
    place.succeed(&["convert", "copy.flow", "back.raw"]);
    content.resize(10 << 20, 0);
    assert!(std::fs::read(place.path("back.raw")).unwrap() == content);
    let refusal = place.refused(&["resize", "copy.flow", "20T"]);
    assert!(refusal.contains("--segment"), "{refusal}");
}

#[test]
fn compact_leaves_the_content_as_it_is() {
    let place = Place::new();
    let content = place.source();
    place.succeed(&["convert", "disk.raw", "copy.flow"]);
    place.succeed(&["compact", "copy.flow"]);
    place.succeed(&["check", "--data", "copy.flow"]);
    place.succeed(&["convert", "copy.flow", "back.raw"]);
    assert!(std::fs::read(place.path("back.raw")).unwrap() == content);
}

#[test]
fn a_log_image_in_use_can_be_looked_at_and_nothing_else() {
    let place = Place::new();
    place.log_image("64M");
    let daemon = place.serve(&["disk.flow"]);
    let mut client = place.client();
    assert_eq!(client.write(0, &pattern(1 << 20, 7)).unwrap(), Status::Ok);
    assert_eq!(client.flush().unwrap(), Status::Ok);
    let info = place.json(&["info", "--json", "disk.flow"]);
    assert_eq!(
        (&info["virtual_bytes"], &info["log"]["clean"]),
        (&(64 << 20).into(), &false.into())
    );
    for args in [
        &["serve", "--socket", "other.sock", "disk.flow"][..],
        &["serve", "--socket", "other.sock", "--readonly", "disk.flow"],
        &["check", "disk.flow"],
        &["check", "--repair", "disk.flow"],
        &["resize", "disk.flow", "128M"],
        &["compact", "disk.flow"],
        &["convert", "disk.flow", "copy.raw"],
    ] {
        let refusal = place.refused(args);
        assert!(refusal.contains("using th"), "{args:?}: {refusal}");
    }
    drop(client);
    stop(daemon);
    let log = &place.json(&["info", "--json", "disk.flow"])["log"];
    assert_eq!((&log["clean"], &log["live_bytes"]), (&true.into(), &(1 << 20).into()));
    assert!(log["checkpoint_age_s"].as_u64().unwrap() < 600);
    assert!(log["write_amplification"].as_f64().unwrap() > 1.0);
    let report = place.json(&["check", "--data", "--json", "disk.flow"]);
    assert_eq!((&report["error_count"], &report["readable_bytes"]), (&0.into(), &(1 << 20).into()));
}

#[test]
fn an_image_that_was_not_closed_is_checked_without_changing_it() {
    let place = Place::new();
    let path = place.path("killed.flow");
    std::fs::write(&path, small_image(Left::Killed)).unwrap();
    let report = place.json(&["check", "--data", "--json", "killed.flow"]);
    assert_eq!(report["error_count"], 0, "{report}");
    assert!(report["notes"][0].as_str().unwrap().contains("the next start replays"), "{report}");
    assert!(std::fs::read(&path).unwrap() == small_image(Left::Killed));
    let info = place.succeed(&["info", "killed.flow"]);
    assert!(info.contains("not closed in order"), "{info}");
}

/// Regression: space allocated ahead of a guest's writes, beyond everything used, stayed allocated
/// after a kill.
#[test]
fn a_killed_image_gives_back_what_had_been_got_ahead() {
    let place = Place::new();
    place.succeed(&["create", "--size", "64M", "--segment", "1M", "disk.flow"]);
    let mut daemon = place.serve(&["--name", "disk", "disk.flow"]);
    let mut load = LoadOptions::new(place.path("disk.sock")).workload("write").iodepth(32);
    load.block_bytes = 128 << 10;
    assert_eq!(run(&load.ops(200)).unwrap().errors, 0);
    daemon.kill().unwrap();
    let before = std::fs::metadata(place.path("disk.flow")).unwrap().blocks() * 512;
    stop(place.serve(&["--name", "disk", "disk.flow"]));
    let info = place.json(&["info", "--json", "disk.flow"]);
    let used = (info["log"]["segments_used"].as_u64().unwrap() + 2) << 20;
    let after = info["allocated_bytes"].as_u64().unwrap();
    assert!(after <= used && used < before, "{before}, then {after}, of which {used} are used");
}

/// A host file system that is full of unused segments.
#[test]
fn repair_says_what_it_has_done_and_does_it_once() {
    let place = Place::new();
    let path = place.path("disk.flow");
    let mut bytes = small_image(Left::Closed).to_vec();
    // One of the two superblocks is the older one: losing it costs nothing.
    let older = |bytes: &[u8]| {
        let generation =
            |at: usize| u64::from_le_bytes(bytes[at + 56..at + 64].try_into().unwrap());
        if generation(0) < generation(65536) { 0 } else { 65536 }
    };
    let at = older(&bytes);
    bytes[at + 100] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let refusal = place.refused(&["convert", "disk.flow", "copy.raw"]);
    assert!(refusal.contains("is damaged") && refusal.contains("check --repair"), "{refusal}");
    let output = place.run(&["check", "disk.flow"]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("error: disk.flow: superblock"), "{text}");
    let text = place.succeed(&["check", "--repair", "--data", "disk.flow"]);
    assert!(text.contains("repaired: superblock") && text.contains("0 errors"), "{text}");
    let again = place.succeed(&["check", "--repair", "disk.flow"]);
    assert!(!again.contains("repaired"), "{again}");
    place.succeed(&["convert", "disk.flow", "copy.raw"]);
    // The newer one cannot be replaced.
    let mut bytes = std::fs::read(&path).unwrap();
    let newer = 65536 - older(&bytes);
    bytes[newer + 100] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let output = place.run(&["check", "--repair", "disk.flow"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("not repaired: it is not certain"), "{text}");
}

/// A block is corrupted while its image is served: its readers get an error, and the operator
/// learns where.
#[test]
fn statistics_tell_where_a_served_image_is_damaged() {
    let place = Place::new();
    let path = place.log_image("8M");
    let content = pattern(4096, 7);
    let daemon = place.serve(&["disk.flow"]);
    let mut guest = place.client();
    assert_eq!(guest.write(80, &content).unwrap(), Status::Ok);
    let damage = || place.stats()["disks"][0]["damage"].clone();
    assert_eq!(damage(), serde_json::json!({ "met": 0, "recent": [] }));
    let bytes = std::fs::read(&path).unwrap();
    let offset = bytes.windows(4096).position(|window| window == content).unwrap() as u64;
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[!content[0]], offset).unwrap();
    for met in 1..=2 {
        assert_eq!(guest.read(80, &mut [0; 4096]).unwrap(), Status::IoErr);
        let what = "the checksum of a block does not fit";
        let recent = serde_json::json!([{ "what": what, "lba": 80, "offset": offset }]);
        assert_eq!(damage(), serde_json::json!({ "met": met, "recent": recent }));
    }
    drop(guest);
    stop(daemon);
}

#[test]
fn log_images_that_are_none_are_refused() {
    let place = Place::new();
    std::fs::write(place.path("empty.flow"), []).unwrap();
    std::fs::write(place.path("zeroes.flow"), vec![0; 1 << 20]).unwrap();
    std::fs::write(place.path("noise.flow"), pattern(1 << 20, 5)).unwrap();
    place.image("1M");
    for image in ["empty.flow", "zeroes.flow", "noise.flow"] {
        for command in [&["info"][..], &["check"], &["convert"], &["serve", "--socket", "s.sock"]] {
            let target: &[&str] = if command[0] == "convert" { &["t.raw"] } else { &[] };
            let refusal = place.refused(&[command, &[image], target].concat());
            assert!(refusal.contains("it is not a log image"), "{command:?} {image}: {refusal}");
        }
    }
    let refusal = place.refused(&["info", "--format", "log", "disk.raw"]);
    assert!(refusal.contains("it is not a log image"), "{refusal}");
}

/// The newest superblock of a new image is in the second slot.
fn with_superblock_word(place: &Place, at: u16, bytes: &[u8]) {
    let path = place.log_image("8M");
    let patch = Patch { target: Target::Superblock(1), at, bytes: bytes.to_vec() };
    std::fs::write(&path, patched(std::fs::read(&path).unwrap(), &patch)).unwrap();
}

#[test]
fn images_of_later_versions_are_refused_and_the_reason_is_named() {
    for (at, bytes, why) in [
        (8, [2, 0], "its format version is 2, this program knows 1"),
        (16, [0x20, 1], "it uses incompatible features 0x120"),
    ] {
        let place = Place::new();
        with_superblock_word(&place, at, &bytes);
        for args in [
            &["info", "disk.flow"][..],
            &["check", "disk.flow"],
            &["check", "--repair", "disk.flow"],
            &["serve", "--socket", "s.sock", "--readonly", "disk.flow"],
            &["convert", "disk.flow", "copy.raw"],
        ] {
            let refusal = place.refused(args);
            assert!(refusal.contains(why), "{args:?}: {refusal}");
            assert!(refusal.contains("use a newer version"), "{refusal}");
        }
    }
}

#[test]
fn features_that_can_only_be_read_are_only_read() {
    let place = Place::new();
    with_superblock_word(&place, 24, &[4]);
    place.succeed(&["info", "disk.flow"]);
    let text = place.succeed(&["check", "disk.flow"]);
    assert!(text.contains("features 0x4"), "{text}");
    place.succeed(&["convert", "disk.flow", "copy.raw"]);
    for args in [&["resize", "disk.flow", "9M"][..], &["serve", "--socket", "s.sock", "disk.flow"]]
    {
        let refusal = place.refused(args);
        assert!(refusal.contains("features 0x4 that this version can only read"), "{refusal}");
    }
    let daemon = place.serve(&["--readonly", "disk.flow"]);
    stop(daemon);
}

#[test]
fn compatible_features_of_later_versions_are_kept() {
    let place = Place::new();
    with_superblock_word(&place, 32, &[9]);
    place.succeed(&["resize", "disk.flow", "9M"]);
    let bytes = std::fs::read(place.path("disk.flow")).unwrap();
    assert_eq!((bytes[32], bytes[65536 + 32]), (9, 9));
}

/// A truncated copy.
#[test]
fn half_a_copy_is_refused() {
    let place = Place::new();
    let content = place.source();
    place.succeed(&["convert", "disk.raw", "whole.flow"]);
    let whole = std::fs::read(place.path("whole.flow")).unwrap();
    for part in [1, 30, 50, 70, 90] {
        std::fs::write(place.path("half.flow"), &whole[..whole.len() * part / 100]).unwrap();
        let output = place.run(&["convert", "half.flow", "copy.raw"]);
        if output.status.success() {
            // Only segments that were ready for use, and had not been used, are missing.
            assert!(std::fs::read(place.path("copy.raw")).unwrap() == content, "{part} %");
            std::fs::remove_file(place.path("copy.raw")).unwrap();
            continue;
        }
        let refusal = place.refused(&["convert", "half.flow", "copy.raw"]);
        let told = refusal.contains("cut short") || refusal.contains("superblock");
        assert!(told, "{part} %: {refusal}");
        let output = place.run(&["check", "half.flow"]);
        assert_eq!(output.status.code(), Some(2), "{part} %");
        assert!(!place.path("copy.raw").exists());
    }
    // Holes in place of the rest. Beyond the data is space that was allocated ahead of it, and
    // freed.
    let data = whole.iter().rposition(|byte| *byte != 0).unwrap();
    let file = std::fs::File::create(place.path("holes.flow")).unwrap();
    file.write_all_at(&whole[..data * 30 / 100], 0).unwrap();
    file.set_len(whole.len() as u64).unwrap();
    place.refused(&["convert", "holes.flow", "copy.raw"]);
}

#[test]
fn a_log_image_that_may_only_be_read_is_only_read() {
    const NOBODY: u32 = 65534;
    let place = Place::new();
    place.source();
    place.succeed(&["convert", "disk.raw", "copy.flow"]);
    std::fs::set_permissions(place.path("copy.flow"), PermissionsExt::from_mode(0o444)).unwrap();
    std::fs::set_permissions(place.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flowstone"));
        command.args(args).current_dir(place.dir.path());
        if rustix::process::getuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command.output()
    };
    let output = match run(&["check", "--data", "copy.flow"]) {
        Ok(output) => output,
        Err(why) => {
            return flowstone_testkit::skip(format_args!(
                "another user cannot run the binary: {why}"
            ));
        }
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = run(&["resize", "copy.flow", "20M"]).unwrap();
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(line.contains("permission denied"), "{line}");
}

#[test]
fn a_block_device_holds_a_log_image_if_it_was_empty() {
    let place = Place::new();
    let content = place.source();
    let file = place.path("device");
    std::fs::File::create(&file).unwrap().set_len(32 << 20).unwrap();
    let Some(attached) = LoopDevice::attach(&file) else { return };
    let device = attached.0.as_str();
    place.succeed(&["create", "--size", "8M", "--format", "log", device]);
    let refusal = place.refused(&["create", "--size", "8M", "--format", "log", device]);
    assert!(refusal.contains("there is something at the start"), "{refusal}");
    let daemon = place.serve(&["--format", "log", device]);
    let mut client = place.client();
    assert_eq!(client.write(0, &content[..1 << 20]).unwrap(), Status::Ok);
    drop(client);
    stop(daemon);
    place.succeed(&["check", "--data", "--format", "log", device]);
    place.succeed(&["convert", "--source-format", "log", device, "back.raw"]);
    let back = std::fs::read(place.path("back.raw")).unwrap();
    assert!(back[..1 << 20] == content[..1 << 20]);
}

/// An image of half of the data would pass for a whole one.
#[test]
fn a_device_that_is_too_small_for_the_data_holds_no_image_afterwards() {
    let place = Place::new();
    place.source();
    let file = place.path("device");
    std::fs::File::create(&file).unwrap().set_len(4 << 20).unwrap();
    let Some(attached) = LoopDevice::attach(&file) else { return };
    let device = attached.0.as_str();
    for _ in 0..2 {
        let refusal = place.refused(&["convert", "--format", "log", "disk.raw", device]);
        assert!(refusal.contains("convert: write"), "{refusal}");
        let refusal = place.refused(&["check", "--format", "log", device]);
        assert!(refusal.contains("not a log image"), "{refusal}");
    }
}

#[test]
fn compact_keeps_every_block_and_gives_space_back() {
    let place = Place::new();
    let content = place.source();
    place.succeed(&["convert", "disk.raw", "disk.flow"]);
    // Twice: the second run finds everything in order.
    for _ in 0..2 {
        place.succeed(&["compact", "disk.flow"]);
        place.succeed(&["check", "--data", "disk.flow"]);
    }
    place.succeed(&["convert", "disk.flow", "copy.raw"]);
    assert!(std::fs::read(place.path("copy.raw")).unwrap() == content);
}
