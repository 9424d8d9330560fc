//! Access to a disk's socket: group and mode, from the command line and from a file.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use flowstone_testkit::Status;

use crate::fixture::{Place, stop};
use crate::many_disks::serve;

/// A group that owns nothing here, and has a name on each Debian system.
const NOGROUP: u32 = 65534;

/// Returns the group and the mode of a socket.
fn access(path: &Path) -> (u32, u32) {
    let file = path.metadata().unwrap();
    assert!(file.file_type().is_socket());
    (file.gid(), file.permissions().mode() & 0o777)
}

/// Returns a group that this process may give a file to: any one, or its own.
fn a_group() -> u32 {
    if rustix::process::getuid().is_root() { NOGROUP } else { rustix::process::getgid().as_raw() }
}

#[test]
fn a_socket_has_the_group_and_the_mode_that_were_asked_for() {
    let place = Place::new();
    let (group, mine) = (a_group(), rustix::process::getgid().as_raw());
    let number = group.to_string();
    for (args, expected) in [
        (&["--socket-mode", "0600"][..], (mine, 0o600)),
        (&["--socket-mode", "777"], (mine, 0o777)),
        (&["--socket-group", &number], (group, 0o660)),
        (&["--socket-group", &number, "--socket-mode", "0o666"], (group, 0o666)),
    ] {
        let daemon = place.serve(&[args, &["--backend", "null:1M"]].concat());
        assert_eq!(access(&place.path("disk.sock")), expected, "{args:?}");
        // The operator's socket keeps its access.
        assert_eq!(access(&place.path("control.sock")), (mine, 0o600));
        let mut client = place.client();
        assert_eq!(client.flush().unwrap(), Status::Ok);
        drop(client);
        stop(daemon);
        assert!(!place.path("disk.sock").exists());
    }
}

#[test]
fn a_group_may_be_given_by_its_name() {
    let place = Place::new();
    let group = rustix::process::getgid().as_raw();
    let output = Command::new("id").arg("-gn").output().unwrap();
    let name = String::from_utf8(output.stdout).unwrap();
    let daemon = place.serve(&["--socket-group", name.trim(), "--backend", "null:1M"]);
    assert_eq!(access(&place.path("disk.sock")), (group, 0o660));
    stop(daemon);
}

#[test]
fn a_disk_of_a_file_has_its_own_group_and_mode_or_those_of_the_file() {
    let place = Place::new();
    let group = a_group();
    let mine = rustix::process::getgid().as_raw();
    let disk = |name: &str, lines: &str| {
        let socket = place.text(&format!("{name}.sock"));
        format!("[[disk]]\nname = '{name}'\nsocket = '{socket}'\nbackend = 'null:1M'\n{lines}\n")
    };
    let text = [
        format!("socket-group = '{group}'\nsocket_mode = '0640'\n"),
        disk("default", ""),
        disk("mode", "socket_mode = '0600'"),
        disk("both", &format!("socket-group = '{mine}'\nsocket-mode = '0666'")),
    ];
    std::fs::write(place.path("flowstone.toml"), text.concat()).unwrap();
    let daemon = serve(&place.text("flowstone.toml"), 3);
    assert_eq!(access(&place.path("default.sock")), (group, 0o640));
    assert_eq!(access(&place.path("mode.sock")), (group, 0o600));
    assert_eq!(access(&place.path("both.sock")), (mine, 0o666));
    stop(daemon);
}

#[test]
fn groups_and_modes_that_cannot_be_are_refused_in_one_line() {
    let place = Place::new();
    for (option, value, why) in [
        ("--socket-group", "no-such-group", "there is no group `no-such-group`"),
        ("--socket-mode", "rw", "write an octal number up to 777"),
        ("--socket-mode", "1777", "write an octal number up to 777"),
    ] {
        let serve = ["serve", "--socket", "s.sock", "--backend", "null:1M", option, value];
        let output = place.run(&serve);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.lines().next().unwrap().contains(why), "{errors}");
    }
    let text = format!(
        "[[disk]]\nname = 'a'\nbackend = 'null:1M'\nsocket = '{}'\nsocket-group = 'no-such-group'\n",
        place.text("s.sock")
    );
    std::fs::write(place.path("flowstone.toml"), text).unwrap();
    let refusal = place.refused(&["serve", "--config", "flowstone.toml"]);
    assert!(refusal.contains("there is no group `no-such-group`"), "{refusal}");
    assert!(!place.path("s.sock").exists());
}

/// An unprivileged daemon can give its socket only to a group that it is in.
#[test]
fn a_group_that_the_daemon_is_not_in_is_refused_and_no_socket_stays() {
    let place = Place::new();
    std::fs::set_permissions(place.dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_flowstone"));
    command
        .args(["serve", "--backend", "null:1M", "--socket", &place.text("s.sock")])
        .args(["--socket-group", "0"])
        .stdout(Stdio::null());
    if rustix::process::getuid().is_root() {
        command.uid(NOGROUP).gid(NOGROUP);
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
    assert!(line.contains("choose a group that you are in, or run as root"), "{line}");
    assert!(!place.path("s.sock").exists());
}
