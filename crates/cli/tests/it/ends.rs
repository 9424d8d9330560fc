//! Commands and daemons that end at a bad moment, and closes that fail.

use std::fs::File;
use std::process::Command;
use std::time::Duration;

use flowstone_testkit::fuse::Call;
use flowstone_testkit::process::Ready;
use flowstone_testkit::{Daemon, DaemonCommand, HANG, Status};
use rustix::process::Signal;
use serde_json::Value;

use crate::fixture::{Place, has_redo_file, pattern};
use crate::hung_host::Hosts;

fn start(args: &[&str]) -> Daemon {
    let command = DaemonCommand::new(env!("CARGO_BIN_EXE_flowstone")).ready(Ready::Now);
    command.args(args.iter().copied()).spawn().unwrap()
}

fn assert_closed(hosts: &Hosts, image: &str) {
    let info = hosts.place.succeed(&["info", "--json", image]);
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_ne!(info["log"]["clean"], false, "{info}");
    assert!(!has_redo_file(&hosts.place.path("behind")), "{image}: it is left");
}

/// Regression: the process exited beside the thread that opened the image. A marked qcow2 image
/// keeps its redo file, and is refused once it is moved.
#[test]
fn an_image_that_is_being_opened_at_sigterm_is_closed_in_order() {
    for format in ["qcow2", "flow"] {
        let Some(hosts) = Hosts::new() else { return };
        let image = hosts.place.text(&format!("at/disk.{format}"));
        hosts.place.succeed(&["create", "--size", "16M", &image]);
        hosts.fake.keep(Call::Write);
        let socket = hosts.place.text("disk.sock");
        let mut daemon = start(&["serve", "--socket", &socket, &image]);
        hosts.fake.wait_until_kept();
        daemon.signal(Signal::TERM).unwrap();
        daemon.wait_stderr("stopping", HANG).unwrap();
        // Time to exit too early.
        std::thread::sleep(Duration::from_millis(100));
        hosts.fake.recover();
        assert!(daemon.wait(HANG).unwrap().success(), "{}", daemon.stderr());
        assert_closed(&hosts, &image);
    }
}

/// Regression: the exit status was 0.
#[test]
fn a_daemon_whose_image_cannot_be_closed_fails() {
    const EIO: i32 = 5;
    for (format, what) in [("raw", "flush "), ("qcow2", "close "), ("flow", "close ")] {
        let Some(hosts) = Hosts::new() else { return };
        let mut daemon = hosts.serve(format, "", "");
        let mut guest = hosts.connect("hung");
        assert_eq!(guest.write(0, &pattern(1 << 20, 3)).unwrap(), Status::Ok);
        drop(guest);
        hosts.fake.refuse(&[Call::Write, Call::Fsync], EIO);
        daemon.signal(Signal::TERM).unwrap();
        let ended = daemon.wait(HANG).unwrap();
        let image = hosts.place.text(&format!("at/hung.{format}"));
        let said = format!("{what}{image}: Input/output error");
        assert!(ended.code() == Some(1) && daemon.stderr().contains(&said), "{}", daemon.stderr());
        hosts.fake.recover();
        hosts.place.assert_sound(&image);
    }
}

/// Regression: the target of an interrupted conversion had its name, and was a valid image without
/// a part of the data. A conversion to qcow2 that failed left a redo file.
#[test]
fn a_copy_has_its_name_when_it_is_whole() {
    for format in ["raw", "qcow2", "flow"] {
        let Some(hosts) = Hosts::new() else { return };
        let place = &hosts.place;
        std::fs::write(place.path("disk.raw"), pattern(4 << 20, 3)).unwrap();
        let copy = format!("at/copy.{format}");
        let (target, part) = (place.text(&copy), place.text(&format!("{copy}.part")));
        let convert = ["convert", &place.text("disk.raw"), &target];
        let behind = |name: &str| place.path(&format!("behind/copy.{format}{name}")).exists();
        hosts.fake.keep(Call::Write);
        let mut cut = start(&convert);
        hosts.fake.wait_until_kept();
        // In the middle of the data, when the image is open.
        while hosts.fake.count(Call::Write).bytes < 1 << 20 {
            hosts.fake.keep(Call::Write);
            hosts.fake.wait_until_kept();
        }
        cut.signal(Signal::KILL).unwrap();
        hosts.fake.recover();
        assert!(!cut.wait(HANG).unwrap().success());
        assert!(!behind("") && behind(".part") && !has_redo_file(&place.path("behind")));
        let refused = place.refused(&convert);
        assert!(refused.contains(".part: it is there: another process"), "{refused}");
        std::fs::remove_file(&part).unwrap();
        hosts.fake.refuse(&[Call::Fsync], rustix::io::Errno::NOSPC.raw_os_error());
        place.refused(&convert);
        hosts.fake.recover();
        assert_eq!(std::fs::read_dir(place.path("behind")).unwrap().count(), 0);
        place.succeed(&convert);
        place.succeed(&["convert", &target, "back.raw"]);
        assert!(std::fs::read(place.path("back.raw")).unwrap() == pattern(4 << 20, 3));
    }
}

/// Regression: they panicked.
#[test]
fn a_command_whose_output_cannot_be_written_says_so_and_fails() {
    let place = Place::new();
    place.image("1M");
    place.succeed(&["create", "--size", "1M", "disk.flow"]);
    place.succeed(&["create", "--size", "1M", "disk.qcow2"]);
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let command = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flowstone"));
        command.args(args).current_dir(place.dir.path());
        command
    };
    for args in [
        &["info", "disk.raw"][..],
        &["info", "--json", "disk.flow"],
        &["check", "disk.qcow2"],
        &["check", "--json", "disk.flow"],
        &["compact", "disk.qcow2"],
    ] {
        let output = command(args).stdout(full()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.starts_with("flowstone: standard output: No space left"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let failed = command(&["info", "none.raw"]).stderr(full()).status().unwrap();
    assert_eq!(failed.code(), Some(1));
    let copied = command(&["convert", "disk.raw", "copy.flow"]).stderr(full()).status().unwrap();
    assert!(copied.success());
    place.succeed(&["check", "copy.flow"]);
}
