//! create, info, check, resize and convert.

use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;

use serde_json::Value;

use crate::fixture::{Place, pattern, stop};

#[test]
fn a_new_image_has_its_size_and_takes_no_room() {
    let place = Place::new();
    place.image("1G");
    let info: Value =
        serde_json::from_str(&place.succeed(&["info", "--json", "disk.raw"])).unwrap();
    assert_eq!(info["format"], "raw");
    assert_eq!(info["virtual_bytes"], 1u64 << 30);
    assert_eq!(info["allocated_bytes"], 0);
    assert!(place.succeed(&["info", "disk.raw"]).contains("1 GiB (1073741824 bytes)"));
}

/// Regression: `flowstone info | head -1` panicked.
#[test]
fn a_tool_whose_reader_has_gone_ends_quietly() {
    let place = Place::new();
    place.image("1M");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_flowstone"));
    let output =
        command.args(["info", "disk.raw"]).current_dir(place.dir.path()).stdout(writer).output();
    let output = output.unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGPIPE), "{}", output.status);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn resize_grows_and_shrinks_but_not_over_data() {
    let place = Place::new();
    let path = place.image("1M");
    place.succeed(&["resize", "disk.raw", "8M"]);
    assert_eq!(path.metadata().unwrap().len(), 8 << 20);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[1; 4096], 3 << 20).unwrap();
    let refusal = place.refused(&["resize", "disk.raw", "2M"]);
    assert!(refusal.contains("data beyond the new end"), "{refusal}");
    assert_eq!(path.metadata().unwrap().len(), 8 << 20);
    place.succeed(&["resize", "disk.raw", "4M"]);
    assert_eq!(path.metadata().unwrap().len(), 4 << 20);
}

#[test]
fn resize_takes_a_difference_and_is_as_careful_with_it() {
    let place = Place::new();
    for name in ["disk.raw", "disk.qcow2", "disk.flow"] {
        place.succeed(&["create", "--size", "8M", name]);
        let size = || {
            let info: Value =
                serde_json::from_str(&place.succeed(&["info", "--json", name])).unwrap();
            info["virtual_bytes"].as_u64().unwrap()
        };
        place.succeed(&["resize", name, "+1.5M"]);
        assert_eq!(size(), 19 << 19);
        place.succeed(&["resize", name, "-512KiB"]);
        assert_eq!(size(), 9 << 20);
        let refusal = place.refused(&["resize", name, "-10M"]);
        assert!(refusal.contains("the disk has 9 MiB"), "{refusal}");
        assert_eq!(size(), 9 << 20);
        // Options are still recognised, wherever they are.
        let format = if name == "disk.flow" { "log" } else { &name[5..] };
        place.succeed(&["resize", name, "+1M", "--format", format]);
        place.succeed(&["resize", name, "-f", format, "-1M"]);
        assert_eq!(size(), 9 << 20);
        assert_eq!(place.run(&["resize", name, "+1X"]).status.code(), Some(2));
        assert_eq!(place.run(&["resize", name, "--fromat"]).status.code(), Some(2));
    }
    let file = std::fs::File::options().write(true).open(place.path("disk.raw")).unwrap();
    file.write_all_at(&[1; 4096], 8 << 20).unwrap();
    let refusal = place.refused(&["resize", "disk.raw", "-1M"]);
    assert!(refusal.contains("data beyond the new end"), "{refusal}");
    assert_eq!(file.metadata().unwrap().len(), 9 << 20);
}

#[test]
fn a_served_disk_grows_by_a_difference_and_does_not_shrink_by_one() {
    let place = Place::new();
    let image = place.image("1M");
    let daemon = place.serve(&["disk.raw"]);
    let resize = ["resize", "--control", &place.text("control.sock"), "disk"];
    for size in [5 << 19, 4 << 20] {
        let said = place.succeed(&[&resize[..], &["+1.5M"]].concat());
        assert!(said.contains("no guest is connected"), "{said}");
        assert_eq!(image.metadata().unwrap().len(), size);
    }
    let refusal = place.refused(&[&resize[..], &["-1M"]].concat());
    assert!(refusal.contains("a guest would lose the end of a disk it is using"), "{refusal}");
    assert_eq!(image.metadata().unwrap().len(), 4 << 20);
    stop(daemon);
}

#[test]
fn the_short_options_of_qemu_img_mean_the_same_here() {
    let place = Place::new();
    place.succeed(&["create", "-f", "raw", "--size", "1M", "base"]);
    place.succeed(&["create", "-f", "qcow2", "-b", "base", "-F", "raw", "--size", "1M", "top"]);
    place.succeed(&["convert", "-f", "qcow2", "-O", "log", "top", "copy"]);
    let info = |format: &str, name: &str| place.succeed(&["info", "-f", format, name]);
    assert!(info("log", "copy").contains("1 MiB"));
    assert!(info("qcow2", "top").contains("base"));
    place.succeed(&["check", "-f", "log", "copy"]);
    place.succeed(&["compact", "-f", "log", "copy"]);
    let daemon = place.serve(&["-f", "log", "copy"]);
    stop(daemon);
}

#[test]
fn convert_copies_data_and_keeps_holes() {
    let place = Place::new();
    let path = place.image("64M");
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&pattern(100_000, 3), 5 << 20).unwrap();
    // Written zeroes become a hole too.
    file.write_all_at(&vec![0; 8 << 20], 32 << 20).unwrap();
    file.write_all_at(&pattern(512, 4), (64 << 20) - 512).unwrap();
    place.succeed(&["convert", "disk.raw", "copy.img"]);
    let copy = std::fs::read(place.path("copy.img")).unwrap();
    assert!(copy == std::fs::read(&path).unwrap());
    let allocated = place.path("copy.img").metadata().unwrap().blocks() * 512;
    assert!(allocated < 1 << 20, "{allocated} bytes are allocated");
}

#[test]
fn convert_refuses_to_overwrite_and_leaves_nothing_half_made() {
    let place = Place::new();
    place.image("1M");
    std::fs::write(place.path("there.raw"), b"precious").unwrap();
    let refusal = place.refused(&["convert", "disk.raw", "there.raw"]);
    assert!(refusal.contains("exists already"), "{refusal}");
    assert_eq!(std::fs::read(place.path("there.raw")).unwrap(), b"precious");
    place.refused(&["convert", "none.raw", "new.raw"]);
    assert!(!place.path("new.raw").exists());
}

#[test]
fn check_reads_everything_and_reports_status_0() {
    let place = Place::new();
    let path = place.image("16M");
    std::fs::File::options().write(true).open(path).unwrap().write_all_at(&[5; 70_000], 0).unwrap();
    let report = place.succeed(&["check", "--json", "disk.raw"]);
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["error_count"], 0);
    assert!(report["readable_bytes"].as_u64().unwrap() >= 70_000);
    assert_eq!(place.run(&["check", "disk.raw"]).status.code(), Some(0));
}

#[test]
fn the_command_line_is_described_completely() {
    let place = Place::new();
    for command in ["create", "info", "check", "convert", "resize", "serve", "stats"] {
        let help = place.succeed(&[command, "--help"]);
        assert!(help.contains("Usage: flowstone"), "{help}");
    }
    assert_eq!(place.run(&["serve"]).status.code(), Some(2));
    assert_eq!(place.run(&["create", "--size", "4Q", "a.raw"]).status.code(), Some(2));
}

/// Regression: a copy that could not be opened after it was made stayed as an empty image.
#[test]
fn convert_leaves_nothing_behind_if_its_target_cannot_be_opened() {
    const NOBODY: u32 = 65534;
    let place = Place::new();
    let source = place.image("1M");
    std::fs::set_permissions(source, PermissionsExt::from_mode(0o644)).unwrap();
    std::fs::set_permissions(place.dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    // Without any permission of its own, the new file cannot be opened again.
    let program = env!("CARGO_BIN_EXE_flowstone");
    let script = format!("umask 777; exec {program} convert disk.raw copy.raw");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).current_dir(place.dir.path());
    if rustix::process::getuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = match command.output() {
        Ok(output) if output.status.code() != Some(126) => output,
        why => {
            return flowstone_testkit::skip(format_args!(
                "another user cannot run the binary: {why:?}"
            ));
        }
    };
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{line}");
    assert!(line.contains("copy.raw.part: permission denied"), "{line}");
    assert!(!place.path("copy.raw").exists() && !place.path("copy.raw.part").exists());
}
