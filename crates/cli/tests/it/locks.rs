//! Tools that meet a lock: the ring of a killed daemon holds its image until its last request has
//! left the kernel, and a tool that runs right after the kill waits for that.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use rustix::fs::{FlockOperation, fcntl_lock};

use crate::fixture::Place;

/// Holds the lock of an image, like a process that is about to end.
fn hold(place: &Place, name: &str) -> File {
    let file = File::options().read(true).write(true).open(place.path(name)).unwrap();
    fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    file
}

#[test]
fn tools_wait_for_a_lock_and_say_for_what() {
    let place = Place::new();
    for name in ["disk.raw", "disk.qcow2", "disk.flow"] {
        place.succeed(&["create", "--size", "8M", name]);
        let copy = format!("copy-{name}");
        for args in [
            &["check", name][..],
            &["check", "--repair", name],
            &["compact", name],
            &["convert", name, &copy],
            &["resize", name, "16M"],
        ] {
            let lock = hold(&place, name);
            let mut tool = Command::new(env!("CARGO_BIN_EXE_flowstone"))
                .args(args)
                .current_dir(place.dir.path())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut errors = BufReader::new(tool.stderr.take().unwrap());
            let mut line = String::new();
            errors.read_line(&mut line).unwrap();
            let expected =
                format!("flowstone: {name} is locked; waiting up to 5 s for its last user");
            assert!(line.starts_with(&expected), "{args:?}: {line}");
            drop(lock);
            let mut rest = String::new();
            errors.read_to_string(&mut rest).unwrap();
            assert!(tool.wait().unwrap().success(), "{args:?}: {rest}");
            assert!(!rest.contains("is locked"), "{args:?} says it twice: {rest}");
        }
    }
}

#[test]
fn a_tool_does_not_wait_for_ever() {
    let place = Place::new();
    place.image("1M");
    let _lock = hold(&place, "disk.raw");
    let refusal = place.refused(&["check", "disk.raw"]);
    assert!(refusal.contains("another process is using this image"), "{refusal}");
    // `info` only reads, and so waits for nothing.
    let info = place.run(&["info", "disk.raw"]);
    assert!(info.status.success() && info.stderr.is_empty());
}
