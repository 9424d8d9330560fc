//! The redo file of a killed daemon, found by a process that sees another boot of the host: in a
//! mount namespace with its own boot number, as containers have, and in a time namespace. The
//! host's memory is preserved, or not.

use std::process::{Command, Output};

use flowstone_testkit::{Status, skip};

use crate::fixture::{Place, pattern, stop};
use crate::qcow2::kill_with_unflushed_writes;

const NUMBER: &str = "00000000-1111-4222-8333-444444444444\n";
/// Hides the session's data in the host's memory.
const FORGET: &str = "mount -t tmpfs none /dev/shm && mount -t tmpfs none /run";
/// The host was started a day earlier.
const DAY: [&str; 4] = ["--time", "--fork", "--boottime", "86400"];

/// Runs `flowstone` with this boot number, in other namespaces, after the command `before`.
fn run_elsewhere(place: &Place, namespaces: &[&str], before: &str, args: &[&str]) -> Output {
    std::fs::write(place.path("boot_id"), NUMBER).unwrap();
    let bind = "mount --bind boot_id /proc/sys/kernel/random/boot_id";
    let script = format!("{bind} && {before} && exec \"$@\"");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--map-root-user"]).args(namespaces);
    command.args(["sh", "-c", &script, "sh", env!("CARGO_BIN_EXE_flowstone")]).args(args);
    command.current_dir(place.dir.path()).output().unwrap()
}

/// Returns whether this machine has such namespaces. Skips the test if not.
fn has_namespaces(namespaces: &[&str]) -> bool {
    let place = Place::new();
    let can = Command::new("unshare").arg("--version").output().is_ok()
        && run_elsewhere(&place, namespaces, FORGET, &["--version"]).status.success();
    if !can {
        skip(format_args!("no namespaces for this user: {namespaces:?}"));
    }
    can
}

fn assert_has_writes(place: &Place, image: &str) {
    let held = std::fs::read(place.path(image)).unwrap();
    for number in 0..50usize {
        let at = number * 640 * 512;
        assert!(held[at..at + 4096] == pattern(4096, number as u8), "block {number}");
    }
}

/// Regression: a restarted container gets another boot number although the host stays up: completed
/// writes read as zeroes, and nothing was logged. Its clock may have been set, too.
#[test]
fn completed_writes_are_there_when_a_container_is_started_again() {
    for namespaces in [&[][..], &DAY] {
        if !has_namespaces(namespaces) {
            continue;
        }
        let place = Place::new();
        place.succeed(&["create", "--size", "64M", "disk.qcow2"]);
        kill_with_unflushed_writes(&place, "disk.qcow2");
        let run = |args: &[&str]| run_elsewhere(&place, namespaces, "true", args);
        let output = run(&["check", "--repair", "disk.qcow2"]);
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(told.contains("changes of a killed daemon wait in"), "{told}");
        let output = run(&["convert", "disk.qcow2", "copy.raw"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_has_writes(&place, "copy.raw");
        let daemon = place.serve(&["disk.qcow2"]);
        let mut found = vec![0; 4096];
        assert_eq!(place.client().read(640, &mut found).unwrap(), Status::Ok);
        assert!(found == pattern(4096, 1));
        stop(daemon);
        place.succeed(&["check", "disk.qcow2"]);
    }
}

/// Another host that shares the storage was up all along, and cannot know the memory of this one. A
/// host started at the same time may be this one after a power cut, if its clock has no battery.
/// Regression: its redo file was believed.
#[test]
fn another_host_gives_nothing_up_that_this_one_has() {
    for namespaces in [&[][..], &DAY] {
        if !has_namespaces(namespaces) {
            continue;
        }
        let place = Place::new();
        place.succeed(&["create", "--size", "64M", "disk.qcow2"]);
        kill_with_unflushed_writes(&place, "disk.qcow2");
        let before = std::fs::read(place.path("disk.qcow2")).unwrap();
        for args in [
            &["convert", "disk.qcow2", "a.raw"][..],
            &["check", "disk.qcow2"],
            &["check", "--repair", "disk.qcow2"],
            &["compact", "disk.qcow2"],
        ] {
            let output = run_elsewhere(&place, namespaces, FORGET, args);
            let refusal = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{args:?}: {refusal}");
            assert!(refusal.contains("; serve the image where it was served, or, if"), "{refusal}");
        }
        assert!(std::fs::read(place.path("disk.qcow2")).unwrap() == before);
        place.succeed(&["convert", "disk.qcow2", "copy.raw"]);
        assert_has_writes(&place, "copy.raw");
        stop(place.serve(&["disk.qcow2"]));
    }
}
