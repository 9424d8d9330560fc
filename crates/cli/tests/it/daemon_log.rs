//! The log of a daemon, on a terminal and elsewhere, and that it survives the loss of its reader.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use flowstone_testkit::{Client, HANG, Status};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};

use crate::fixture::{Place, stop};

/// First character of each change of colour.
const ESCAPE: char = '\u{1b}';

/// Makes a terminal: our end and the daemon's.
fn terminal() -> (File, OwnedFd) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let theirs = ioctl_tiocgptpeer(&ours, OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    (ours.into(), theirs)
}

/// Starts a daemon that serves `disk.raw` and logs to `log`, and waits until it listens.
fn start(place: &Place, log: impl Into<Stdio>, environment: &[(&str, &str)]) -> Child {
    let mut daemon = Command::new(env!("CARGO_BIN_EXE_flowstone"))
        .args(["serve", "--socket", &place.text("disk.sock"), &place.text("disk.raw")])
        .env_remove("NO_COLOR")
        .envs(environment.iter().copied())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .unwrap();
    // Its first line says that it listens; the pipe is closed then.
    daemon.stdout.take().unwrap().read_exact(&mut [0; 12]).unwrap();
    daemon
}

fn end(daemon: &mut Child) {
    kill_process(Pid::from_child(daemon), Signal::TERM).unwrap();
    assert!(daemon.wait().unwrap().success());
}

/// Returns everything written to a terminal, until the last writer has ended.
fn said_to_a_terminal(environment: &[(&str, &str)]) -> String {
    let place = Place::new();
    place.image("1M");
    let (mut ours, theirs) = terminal();
    let mut daemon = start(&place, theirs, environment);
    end(&mut daemon);
    let mut said = Vec::new();
    // A terminal without another end is an I/O error.
    let _ = ours.read_to_end(&mut said);
    let said = String::from_utf8(said).unwrap();
    assert!(said.contains("serving"), "{said:?}");
    said
}

#[test]
fn the_log_has_colours_on_a_terminal_only_and_not_with_no_color() {
    let said = said_to_a_terminal(&[]);
    assert!(said.contains(ESCAPE), "{said:?}");
    let said = said_to_a_terminal(&[("NO_COLOR", "1")]);
    assert!(!said.contains(ESCAPE), "{said:?}");
    // Empty equals unset (no-color.org).
    let said = said_to_a_terminal(&[("NO_COLOR", "")]);
    assert!(said.contains(ESCAPE), "{said:?}");

    let place = Place::new();
    place.image("1M");
    let mut daemon = place.serve(&["disk.raw"]);
    daemon.wait_stderr("serving", HANG).unwrap();
    assert!(!daemon.stderr().contains(ESCAPE), "{:?}", daemon.stderr());
    stop(daemon);
}

#[test]
fn signals_that_others_turn_their_logs_with_do_not_end_a_daemon_and_sigterm_still_does() {
    let place = Place::new();
    place.image("1M");
    let mut daemon = place.serve(&["disk.raw"]);
    let mut client = place.client();
    for (signal, name) in
        [(Signal::HUP, "SIGHUP"), (Signal::USR1, "SIGUSR1"), (Signal::USR2, "SIGUSR2")]
    {
        daemon.signal(signal).unwrap();
        let line = format!("{name} has no effect");
        daemon.wait_stderr(&line, HANG).unwrap();
        assert_eq!(client.write(0, &[1; 512]).unwrap(), Status::Ok);
        assert_eq!(client.flush().unwrap(), Status::Ok);
    }
    drop(client);
    stop(daemon);
}

/// Regression: with an empty or a misspelt FLOWSTONE_LOG nothing was logged, errors included.
#[test]
fn a_selection_that_is_empty_or_misspelt_is_as_none() {
    for (value, warns) in [("", false), ("debgu", true), ("flowstone_image=error", false)] {
        let said = said_to_a_terminal(&[("FLOWSTONE_LOG", value), ("NO_COLOR", "1")]);
        assert_eq!(said.contains("FLOWSTONE_LOG: "), warns, "{value:?}: {said}");
    }
}

/// Regression: a log line that could not be written made its thread panic: a closed terminal or
/// pipe took the disk away with the next connection.
#[test]
fn a_daemon_whose_log_has_no_reader_any_more_goes_on_serving() {
    let place = Place::new();
    place.image("1M");
    let serves = |daemon: &mut Child| {
        for round in 0..3 {
            // Each connection logs a line.
            let mut client = Client::connect(place.options()).unwrap();
            assert_eq!(client.write(0, &[round; 512]).unwrap(), Status::Ok);
            assert_eq!(client.flush().unwrap(), Status::Ok);
        }
        end(daemon);
    };
    let mut daemon = start(&place, Stdio::piped(), &[]);
    drop(daemon.stderr.take());
    serves(&mut daemon);

    let (ours, theirs) = terminal();
    let mut daemon = start(&place, theirs, &[]);
    drop(ours);
    kill_process(Pid::from_child(&daemon), Signal::HUP).unwrap();
    serves(&mut daemon);
}
