//! Invalid input of any kind is answered with one line that says what to do, and nothing is lost.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::Command;

use flowstone_testkit::wait_for;

use crate::fixture::{Place, stop};

/// A user without files here.
const NOBODY: u32 = 65534;

#[test]
fn images_that_are_none_are_refused() {
    let place = Place::new();
    std::fs::create_dir(place.path("dir.raw")).unwrap();
    std::fs::write(place.path("odd.raw"), [0; 513]).unwrap();
    std::fs::write(place.path("empty.raw"), []).unwrap();
    std::fs::write(place.path("nameless"), [0; 512]).unwrap();
    for (image, why) in [
        ("none.raw", "no such file"),
        ("dir.raw", "it is a directory"),
        ("odd.raw", "not a multiple of 512"),
        ("empty.raw", "its size is 0"),
        ("nameless", "does not tell the image format"),
        ("disk.vmdk", "does not tell the image format"),
    ] {
        for command in [&["info"][..], &["check"], &["serve", "--socket", "s.sock"]] {
            let refusal = place.refused(&[command, &[image]].concat());
            assert!(refusal.contains(why), "{command:?} {image}: {refusal}");
        }
    }
    assert!(!place.path("s.sock").exists());
}

#[test]
fn sizes_that_no_disk_has_are_refused() {
    let place = Place::new();
    for (size, why) in [("0", "its size is 0"), ("1000", "not a multiple of 512")] {
        let refusal = place.refused(&["create", "--size", size, "disk.raw"]);
        assert!(refusal.contains(why), "{refusal}");
        assert!(!place.path("disk.raw").exists());
    }
    assert_eq!(
        place.run(&["create", "--size", "8G", "--format", "vmdk", "a"]).status.code(),
        Some(2)
    );
}

#[test]
fn an_image_in_use_is_not_opened_twice() {
    let place = Place::new();
    place.image("1M");
    let daemon = place.serve(&["disk.raw"]);
    for args in [
        &["serve", "--socket", "other.sock", "disk.raw"][..],
        &["serve", "--socket", "other.sock", "--readonly", "disk.raw"],
        &["check", "disk.raw"],
        &["resize", "disk.raw", "2M"],
    ] {
        let refusal = place.refused(args);
        assert!(refusal.contains("using th"), "{refusal}");
    }
    place.succeed(&["info", "disk.raw"]);
    stop(daemon);
    let daemon = place.serve(&["disk.raw"]);
    stop(daemon);
}

#[test]
fn socket_paths_that_cannot_be_are_refused() {
    let place = Place::new();
    place.image("1M");
    std::fs::write(place.path("file"), b"precious").unwrap();
    let _taken = UnixListener::bind(place.path("taken.sock")).unwrap();
    let long = "x".repeat(200);
    for (socket, why) in [
        ("file", "is not a socket"),
        ("taken.sock", "another process is listening"),
        ("no/such/dir.sock", "create the directory"),
        (long.as_str(), "longer than 107 bytes"),
    ] {
        let refusal = place.refused(&["serve", "--socket", socket, "disk.raw"]);
        assert!(refusal.contains(why), "{socket}: {refusal}");
    }
    assert_eq!(std::fs::read(place.path("file")).unwrap(), b"precious");
}

#[test]
fn a_socket_left_by_a_killed_daemon_is_taken_over() {
    let place = Place::new();
    place.image("1M");
    let mut daemon = place.serve(&["disk.raw"]);
    daemon.kill().unwrap();
    assert!(place.path("disk.sock").exists());
    let daemon = place.serve(&["disk.raw"]);
    stop(daemon);
    assert!(!place.path("disk.sock").exists());
    assert!(!place.path("control.sock").exists());
}

#[test]
fn files_that_may_not_be_opened_are_refused() {
    let place = Place::new();
    let image = place.image("1M");
    std::fs::set_permissions(image, PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::set_permissions(place.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_flowstone"));
    command.args(["info", &place.text("disk.raw")]);
    if rustix::process::getuid().is_root() {
        command.uid(NOBODY);
    } else {
        std::fs::set_permissions(place.path("disk.raw"), PermissionsExt::from_mode(0o000)).unwrap();
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(why) => {
            return flowstone_testkit::skip(format_args!(
                "another user cannot run the binary: {why}"
            ));
        }
    };
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{line}");
    assert!(line.contains("permission denied; run as a user who may"), "{line}");
}

#[test]
fn a_control_socket_without_a_daemon_is_refused() {
    let place = Place::new();
    place.refused(&["stats", "--control", "none.sock"]);
    place.refused(&["resize", "--control", "none.sock", "disk", "1G"]);
}

/// Regression: `--control` removed any file at its path, and its failure came after a disk had been
/// offered, whose socket stayed.
#[test]
fn control_socket_paths_that_cannot_be_are_refused_and_nothing_is_left_behind() {
    let place = Place::new();
    let image = place.image("1M");
    std::fs::write(&image, vec![7; 1 << 20]).unwrap();
    let _taken = UnixListener::bind(place.path("taken.sock")).unwrap();
    let long = "x".repeat(200);
    for (control, why) in [
        ("disk.raw", "is not a socket"),
        ("taken.sock", "another process is listening"),
        ("no/such/dir.sock", "create the directory"),
        ("disk.sock", "both a disk's socket and the control socket"),
        (long.as_str(), "longer than 107 bytes"),
    ] {
        let args = ["serve", "--socket", "disk.sock", "--control", control, "disk.raw"];
        let refusal = place.refused(&args);
        assert!(refusal.contains(why), "{control}: {refusal}");
        assert!(!place.path("disk.sock").exists(), "{control}");
    }
    assert_eq!(std::fs::read(image).unwrap(), vec![7; 1 << 20]);
    place.refused(&["serve", "--socket", "disk.sock", "--control", "c.sock", "none.raw"]);
    assert!(!place.path("c.sock").exists(), "a daemon without a disk left its control socket");
}

#[test]
fn only_its_owner_may_use_the_control_socket() {
    let place = Place::new();
    place.image("1M");
    let daemon = place.serve(&["disk.raw"]);
    let mode = place.path("control.sock").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    stop(daemon);
}

#[test]
fn names_that_no_disk_can_have_are_refused() {
    let place = Place::new();
    place.image("1M");
    let long = "x".repeat(129);
    for (name, why) in [
        ("", "is empty"),
        (long.as_str(), "is longer than 128 bytes"),
        ("two\nlines", "has control characters"),
    ] {
        let refusal = place.refused(&["serve", "--socket", "s.sock", "--name", name, "disk.raw"]);
        assert!(refusal.contains(why), "{refusal}");
        assert!(!place.path("s.sock").exists());
    }
}

#[test]
fn serials_that_a_guest_cannot_read_are_refused() {
    let place = Place::new();
    for (serial, why) in [
        ("", "is empty"),
        ("a-serial-of-more-than-20", "is longer than 20 bytes"),
        ("two\nlines", "has control characters"),
    ] {
        let serve = ["serve", "--socket", "s.sock", "--backend", "null:1M", "--serial", serial];
        let refusal = place.refused(&serve);
        assert!(refusal.contains("serial") && refusal.contains(why), "{refusal}");
        assert!(!place.path("s.sock").exists());
    }
}

/// Regression: the daemon's advice was followed by another one, and its message by a colon too
/// many.
#[test]
fn an_error_of_the_daemon_is_shown_as_it_is() {
    let place = Place::new();
    place.image("1M");
    let daemon = place.serve(&["disk.raw"]);
    let control = place.text("control.sock");
    let refusal = place.refused(&["resize", "--control", &control, "disk", "512K"]);
    let why = "a guest would lose the end of a disk it is using";
    let advice = "stop the daemon to shrink an image";
    assert_eq!(refusal, format!("flowstone: resize disk: {why}; {advice}"));
    stop(daemon);
}

#[test]
fn a_disk_served_readonly_does_not_grow() {
    let place = Place::new();
    let image = place.image("1M");
    let daemon = place.serve(&["--readonly", "disk.raw"]);
    let control = place.text("control.sock");
    let refusal = place.refused(&["resize", "--control", &control, "disk", "2M"]);
    assert!(refusal.contains("it is served read-only"), "{refusal}");
    assert_eq!(image.metadata().unwrap().len(), 1 << 20);
    stop(daemon);
}

/// Runs `serve` on `s.sock`, which must be refused soon because the socket is in use, and must
/// leave it unchanged.
fn refused_a_socket_in_use(place: &Place) {
    use std::os::unix::fs::MetadataExt;
    let inode = || std::fs::symlink_metadata(place.path("s.sock")).unwrap().ino();
    let before = inode();
    let mut child = Command::new(env!("CARGO_BIN_EXE_flowstone"))
        .args(["serve", "--backend", "null:1M", "--socket", &place.text("s.sock")])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let status = wait_for("it ends", || child.try_wait().unwrap().ok_or(()));
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(status.code(), Some(1), "{errors}");
    assert!(errors.contains("another process is listening there"), "{errors}");
    assert_eq!(inode(), before, "a live socket was replaced");
}

/// Regression: after any failure to connect, a socket was taken for stale, replaced, and removed at
/// the end: also a live datagram socket. And connecting waited for room in a full backlog.
#[test]
fn a_live_socket_is_not_replaced_whatever_its_type_and_however_busy() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    for (kind, full) in
        [(SocketType::DGRAM, false), (SocketType::SEQPACKET, false), (SocketType::STREAM, true)]
    {
        let place = Place::new();
        let address = SocketAddrUnix::new(place.path("s.sock")).unwrap();
        let make =
            |flags| rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
        let live = make(SocketFlags::CLOEXEC);
        rustix::net::bind(&live, &address).unwrap();
        if kind != SocketType::DGRAM {
            rustix::net::listen(&live, 1).unwrap();
        }
        // Clients that are never accepted, until there is no room for one more.
        let mut waiting = Vec::new();
        let mut room = full;
        while room {
            let client = make(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
            room = rustix::net::connect(&client, &address).is_ok();
            waiting.push(client);
        }
        refused_a_socket_in_use(&place);
        drop(live);
        // Now it is stale, whatever it was; but a process that another test has just forked holds
        // it for a moment.
        let daemon =
            wait_for("it is replaced", || place.serve_on("s.sock", &["--backend", "null:1M"]));
        stop(daemon);
        assert!(!place.path("s.sock").exists());
    }
}

#[test]
fn a_socket_that_took_the_place_of_ours_is_not_removed_at_exit() {
    let place = Place::new();
    let daemon = place.serve(&["--backend", "null:1M"]);
    let mut others = Vec::new();
    for name in ["disk.sock", "control.sock"] {
        std::fs::remove_file(place.path(name)).unwrap();
        others.push(std::os::unix::net::UnixDatagram::bind(place.path(name)).unwrap());
    }
    stop(daemon);
    for name in ["disk.sock", "control.sock"] {
        assert!(place.path(name).exists(), "{name} of another process was removed");
    }
}
