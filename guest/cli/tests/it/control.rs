//! `stats`, `record` and `drop`.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use flowstone_testkit::process::Ready;
use flowstone_testkit::{DaemonCommand, HANG, wait_until};
use serde_json::Value;

use crate::fixture::{Mount, PROGRAM};

#[test]
fn hits_and_misses_are_opens_for_reading_with_the_sizes_of_the_files() {
    let Some(mount) = Mount::start(&[]) else { return };
    mount.write_source("it", vec![0; 10_000]);
    fs::read(mount.at("it")).unwrap();
    assert_eq!((mount.stat("misses"), mount.stat("miss_bytes")), (1, 10_000));
    mount.wait_for_copy("it");
    let (hits, bytes) = (mount.stat("hits"), mount.stat("hit_bytes"));
    drop(File::open(mount.at("it")).unwrap());
    assert_eq!(mount.stat("hits"), hits + 1);
    assert_eq!(mount.stat("hit_bytes"), bytes + 10_000, "whether it is read or not");
    drop(File::options().append(true).open(mount.at("it")).unwrap());
    assert_eq!(mount.stat("hits"), hits + 1, "a writer is neither");
}

#[test]
fn stats_say_what_is_held() {
    let Some(mount) = Mount::start(&["--memory", "8M"]) else { return };
    mount.copied("it", vec![0; 10_000]);
    assert_eq!(mount.stat("cached_files"), 1);
    assert_eq!(mount.stat("cached_bytes"), 3 * 4096 + 2048, "whole pages, and what else it takes");
    assert_eq!(mount.stat("limit_bytes"), 8 << 20);
    assert_eq!(mount.stats()["limit_by"], "memory");
    let said = mount.run(&["stats", "--json"], &[]);
    assert_eq!(serde_json::from_slice::<Value>(&said.stdout).unwrap(), mount.stats());
    let text = String::from_utf8(mount.run(&["stats"], &[]).stdout).unwrap();
    assert!(text.contains("cached    1 files, 14 KiB of 8 MiB (--memory)"), "{text}");
    assert!(text.contains("dirty     0 B, 0 conflicts\nsource    up\n"), "{text}");
}

/// `flowstone-guest stats MOUNT | grep -q cached` panicked.
#[test]
fn stats_whose_reader_has_gone_end_quietly() {
    let Some(mount) = Mount::start(&[]) else { return };
    for options in [&["stats"][..], &["stats", "--json"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(PROGRAM);
        let output = command.args(options).arg(mount.root()).stdout(writer).output().unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGPIPE), "{}", output.status);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
}

#[test]
fn what_is_recorded_can_be_simulated() {
    let Some(mount) = Mount::start(&[]) else { return };
    mount.write_source("it", vec![0; 5000]);
    let output = mount.beside("trace");
    let mut recorder = DaemonCommand::new(PROGRAM)
        .arg("record")
        .arg(mount.root())
        .arg("--output")
        .arg(&output)
        .ready(Ready::Now)
        .spawn()
        .unwrap();
    recorder.wait_stderr("recording", HANG).unwrap();
    fs::read(mount.at("it")).unwrap();
    drop(File::options().append(true).open(mount.at("it")).unwrap());
    let lines = || fs::read_to_string(&output).unwrap();
    wait_until("both uses are written down", || lines().lines().count() == 2);
    recorder.terminate(HANG).unwrap();
    let text = lines();
    let fields: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!((fields[0][0], fields[0][2]), ("r", "5000"));
    assert_eq!((fields[1][0], fields[1][2]), ("w", "5000"));
    assert_eq!(fields[0][1], fields[1][1], "of the same file");
}

#[test]
fn a_copy_can_be_dropped_and_so_can_all() {
    let Some(mount) = Mount::start(&[]) else { return };
    mount.copied("one", "1");
    mount.copied("two", "2");
    assert!(mount.run(&["drop"], &["one"]).status.success());
    assert_eq!(mount.stat("cached_files"), 1);
    let misses = mount.stat("misses");
    assert_eq!(mount.read("one"), "1");
    assert_eq!(mount.stat("misses"), misses + 1);
    let path = mount.at("two");
    assert!(mount.run(&["drop"], &[path.to_str().unwrap()]).status.success());
    mount.wait_for_copy("one");
    assert_eq!(mount.stat("cached_files"), 1);
    assert!(mount.run(&["drop"], &[]).status.success());
    assert_eq!((mount.stat("cached_files"), mount.stat("cached_bytes")), (0, 0));
}

#[test]
fn a_copy_that_is_open_is_dropped_when_it_is_closed() {
    let Some(mount) = Mount::with_passthrough(&[]) else { return };
    mount.copied("it", "text");
    let file = File::open(mount.at("it")).unwrap();
    assert!(mount.run(&["drop"], &[]).status.success());
    assert_eq!(mount.stat("cached_files"), 0);
    assert!(mount.stat("cached_bytes") > 0, "its memory is in use");
    assert_eq!(mount.stat("pinned_bytes"), mount.stat("cached_bytes"));
    drop(file);
    wait_until("its memory is given back", || mount.stat("cached_bytes") == 0);
}

#[test]
fn copies_take_no_more_than_they_may() {
    for options in [&["--memory", "1M"][..], &["--memory", "1M", "--policy", "lru"]] {
        let Some(mount) = Mount::start(options) else { return };
        for number in 0..40 {
            mount.write_source(&number.to_string(), vec![0; 60_000]);
        }
        for number in 0..40 {
            fs::read(mount.at(&number.to_string())).unwrap();
        }
        wait_until("copies are made", || mount.stat("fills") >= 10);
        assert!(mount.stat("cached_bytes") <= 1 << 20, "{}", mount.stats());
    }
}

/// Twelve files of the sixteen are the paper's window A, three quarters of the memory: at each
/// epoch `multicache` evicts the oldest of the others. `lru` does nothing then.
#[test]
fn at_each_epoch_multicache_drops_candidates_and_lru_does_not() {
    for (policy, drops) in [("multicache", true), ("lru", false)] {
        let options = ["--policy", policy, "--usage-threshold", "1", "--mem-threshold", "0.5"];
        let memory = ["--memory", "1M", "--epoch", "300ms"];
        let Some(mount) = Mount::start(&[&options[..], &memory].concat()) else { return };
        let name = |number: u32| format!("{number}");
        (0..16).for_each(|number| mount.write_source(&name(number), vec![0; 60_000]));
        // All at once: each waits for the two seconds after its change.
        wait_until("copies are made", || {
            (0..16).for_each(|number| drop(mount.read(&name(number))));
            mount.stat("fills") >= 16
        });
        let epochs = mount.stat("epochs");
        wait_until("epochs end", || mount.stat("epochs") >= epochs + 2);
        assert_eq!(mount.stat("evictions") > 0, drops, "{policy}: {}", mount.stats());
        assert_eq!(mount.stat("cached_bytes") <= (1 << 20) / 4 * 3, drops, "{policy}");
    }
}

#[test]
fn multicache_copies_a_file_at_the_use_that_reaches_its_threshold() {
    let options = ["--policy", "multicache", "--usage-threshold", "3", "--epoch", "100ms"];
    let Some(mount) = Mount::start(&options) else { return };
    for name in ["twice", "three times"] {
        mount.write_source(name, "text");
        (0..2).for_each(|_| drop(mount.read(name)));
    }
    mount.read("three times");
    wait_until("one is copied", || mount.stat("fills") == 1);
    mount.read("three times");
    assert_eq!(mount.stat("hits"), 1);
    mount.read("twice");
    assert_eq!(mount.stat("hits"), 1, "that was its third use");
    wait_until("the other one is copied", || mount.stat("fills") == 2);
}

#[test]
fn copies_may_be_in_a_folder() {
    let Some(mount) = Mount::start(&[]) else { return };
    let folder = mount.beside("copies");
    fs::create_dir(&folder).unwrap();
    let options = ["--dir", folder.to_str().unwrap(), "--size", "4M"];
    let Some(mount) = Mount::start(&options) else { return };
    mount.copied("it", "text");
    assert_eq!(mount.stats()["limit_by"], "size");
    let copies = folder.join("flowstone-copies");
    wait_until("it has a name", || fs::read_dir(&copies).unwrap().count() == 1);
    assert!(mount.run(&["drop"], &[]).status.success());
    assert_eq!(fs::read_dir(&copies).unwrap().count(), 0);
}

#[test]
fn trouble_is_one_line_that_says_what_why_and_what_to_try() {
    let Some(mount) = Mount::start(&[]) else { return };
    let nowhere = mount.beside("nowhere");
    let nowhere = nowhere.to_str().unwrap();
    let at = mount.beside("at");
    fs::create_dir(&at).unwrap();
    let at = at.to_str().unwrap();
    let source = mount.source("");
    let source = source.to_str().unwrap();
    let root = mount.root();
    for args in [
        &["stats", nowhere][..],
        &["drop", at],
        &["record", at, "--output", nowhere],
        &["cache", "--source", nowhere, "--mount", at],
        &["cache", "--source", source, "--mount", nowhere],
        &["cache", "--source", source, "--mount", root.to_str().unwrap()],
        &["cache", "--source", source, "--mount", at, "--dir", nowhere, "--size", "1M"],
    ] {
        let output = Command::new(PROGRAM).args(args).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
        assert!(said.contains(": ") && said.contains("; "), "{args:?}: {said}");
    }
    for args in [&["cache", "--source", source, "--mount", at, "--no-such-option", "1"][..], &["x"]]
    {
        let output = Command::new(PROGRAM).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
}
