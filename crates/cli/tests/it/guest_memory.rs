//! Warnings about guests' memory that may be charged to the daemon's memory cgroup.

use std::fs;

use flowstone_testkit::{Client, ClientOptions, DaemonCommand, HANG, skip};

use crate::cache::MemoryGroup;
use crate::fixture::Place;
use crate::many_disks::config;

const LIMIT: u64 = 96 << 20;

/// A guest with about two thirds of that.
fn guest(place: &Place, name: &str) -> Client {
    let options = ClientOptions::new(place.path(&format!("{name}.sock")));
    Client::connect(ClientOptions { slots: 8, slot_bytes: 7 << 20, ..options }).unwrap()
}

fn bytes(guest: &Client) -> u64 {
    guest.memory().regions().iter().map(|region| region.bytes as u64).sum()
}

/// Regression: each of two guests had less memory than the daemon's cgroup, and both more: the
/// daemon could be killed, and nothing had warned of it.
#[test]
fn guests_with_more_memory_than_the_daemons_cgroup_together_are_warned_of() {
    let Some(group) = MemoryGroup::new(LIMIT) else { return };
    let place = Place::new();
    let file = config(&place, &["a", "b"].map(|name| (name, "backend = 'null:8M'")));
    // The daemon cannot see the peers' processes, as in a container: both are this one.
    let unshare = "unshare --pid --fork --kill-child";
    let can = std::process::Command::new("sh").args(["-c", &format!("{unshare} true")]).status();
    if !can.is_ok_and(|status| status.success()) {
        return skip("no PID namespace");
    }
    let serve = format!("exec {unshare} {} serve --config {file}", env!("CARGO_BIN_EXE_flowstone"));
    let command = DaemonCommand::new("sh").args(["-c", &group.run(&serve)]);
    let mut daemon =
        command.ready(flowstone_testkit::process::Ready::Listening(2)).spawn().unwrap();
    let guests = ["a", "b"].map(|name| guest(&place, name));
    let both: u64 = guests.iter().map(bytes).sum();
    assert!(guests.iter().all(|guest| bytes(guest) < LIMIT) && both > LIMIT, "{both}");
    daemon
        .wait_stderr("is limited to 96 MiB, and the memory of the guests that are", HANG)
        .unwrap();
    let memory = place.stats()["memory"].clone();
    assert_eq!(
        (&memory["guest_bytes"], &memory["cgroup_limit_bytes"]),
        (&both.into(), &LIMIT.into())
    );
    // Not repeated for each queue, nor for the same total.
    let said = daemon.stderr();
    assert_eq!(said.matches("the memory cgroup of the daemon").count(), 1, "{said}");
    drop(guests);
    daemon.kill().unwrap();
    // Its last process leaves the cgroup a moment later.
    flowstone_testkit::wait_until("nothing is in the cgroup", || {
        fs::read_to_string(group.processes()).is_ok_and(|it| it.is_empty())
    });
}
