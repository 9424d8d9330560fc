//! Disks added and removed while the daemon runs.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use flowstone_testkit::load::{LoadOptions, run_with_map};
use flowstone_testkit::process::Ready;
use flowstone_testkit::{
    Client, ClientOptions, Daemon, DaemonCommand, HANG, Request, Status, wait_for, wait_until,
};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::fixture::{Over, Place, ask, has_redo_file, pattern, stop};
use crate::hung_host::Hosts;

/// Starts a daemon with one permanent disk.
fn daemon(place: &Place, args: &[&str]) -> Daemon {
    place.serve(&[args, &["--backend", "null:1M", "--name", "other"]].concat())
}

fn add(place: &Place, name: &str, args: &[&str]) -> String {
    place.succeed(&line(place, name, args).iter().map(String::as_str).collect::<Vec<_>>())
}

/// Returns the command line of `disk add` for a disk with a socket of its name.
fn line(place: &Place, name: &str, args: &[&str]) -> Vec<String> {
    let (control, socket) = (place.text("control.sock"), place.text(&format!("{name}.sock")));
    let line = ["disk", "add", "--control", &control, "--name", name, "--socket", &socket];
    line.iter().chain(args).map(|it| (*it).to_owned()).collect()
}

fn refused(place: &Place, name: &str, args: &[&str]) -> String {
    place.refused(&line(place, name, args).iter().map(String::as_str).collect::<Vec<_>>())
}

fn remove(place: &Place, args: &[&str]) -> String {
    place.succeed(&[&["disk", "remove", "--control", &place.text("control.sock")], args].concat())
}

pub fn list(place: &Place) -> Vec<Value> {
    let text = place.succeed(&["disk", "list", "--control", &place.text("control.sock"), "--json"]);
    serde_json::from_str(&text).unwrap()
}

/// Returns the listing of one disk.
pub fn listed(place: &Place, name: &str) -> Value {
    list(place).into_iter().find(|disk| disk["name"] == name).unwrap_or_default()
}

fn client(place: &Place, name: &str) -> Client {
    Client::connect(ClientOptions::new(place.path(&format!("{name}.sock")))).unwrap()
}

#[test]
fn a_disk_is_added_used_changed_and_removed() {
    let place = Place::new();
    place.succeed(&["create", "--size", "1M", "a.flow"]);
    let daemon = daemon(&place, &[]);
    // The image's path is relative to the working directory of the command.
    let said = add(&place, "a", &["a.flow", "--weight", "300", "--layer", "stats"]);
    assert_eq!(said, format!("a: serving, {}\n", place.text("a.sock")));
    let shown = listed(&place, "a");
    let expected = json!({
        "name": "a", "state": "serving", "origin": "api", "socket": place.text("a.sock"),
        "image": place.text("a.flow"), "connected": false, "progress": null,
        "error": null,
    });
    assert_eq!(shown, expected);
    assert_eq!(list(&place).len(), 2);
    assert_eq!(place.disk_stats("a")["weight"], 300);
    let mut guest = client(&place, "a");
    assert_eq!(guest.write(0, &pattern(4096, 3)).unwrap(), Status::Ok);
    assert_eq!(listed(&place, "a")["connected"], true);
    let control = place.text("control.sock");
    let set = ["disk", "set", "--control", &control, "a", "--weight", "7", "--size", "+1M"];
    assert_eq!(place.succeed(&set), "a: limit off, weight 7, size 2 MiB\n");
    let refusal = place.refused(&["disk", "remove", "--control", &control, "a"]);
    assert!(refusal.contains("disk remove a: a guest is attached; detach it, or"), "{refusal}");
    assert_eq!(guest.write(8, &pattern(4096, 4)).unwrap(), Status::Ok);
    remove(&place, &["--force", "a"]);
    assert!(!place.path("a.sock").exists());
    // The image's lock is released, and the guest's writes are there.
    place.succeed(&["check", "--data", "a.flow"]);
    assert_eq!(list(&place).len(), 1);
    add(&place, "b", &["a.flow"]);
    let mut data = [0; 8192];
    assert_eq!(client(&place, "b").read(0, &mut data).unwrap(), Status::Ok);
    assert_eq!(data[..], [pattern(4096, 3), pattern(4096, 4)].concat());
    stop(daemon);
    assert!(!place.path("b.sock").exists());
}

#[test]
fn a_name_and_a_socket_are_one_disks_alone() {
    let place = Place::new();
    let daemon = daemon(&place, &[]);
    let (null, mem) = (["--backend", "null:1M"], ["--backend", "mem:1M"]);
    add(&place, "a", &null);
    assert_eq!(add(&place, "a", &null), format!("a: serving, {}\n", place.text("a.sock")));
    let refusal = refused(&place, "a", &mem);
    assert!(refusal.contains("disk a: there is another disk of that name; remove"), "{refusal}");
    let refusal = refused(&place, "other", &null);
    assert!(refusal.contains("there is another disk of that name"), "{refusal}");
    let body = |socket: &str| json!({ "backend": "null:1M", "socket": socket }).to_string();
    let put = |name: &str, body: &str| ask(&place, "PUT", &format!("/v1/disks/{name}"), body);
    let (status, said) = put("c", &body(&place.text("a.sock")));
    assert!(status == 409 && said.contains("disk a has the socket"), "{status} {said}");
    let (status, said) = put("c", &body(&place.text("control.sock")));
    assert!(status == 400 && said.contains("the control socket"), "{status} {said}");
    let (status, said) = put("c", &body("c.sock"));
    assert!(status == 400 && said.contains("and to which folder is not known"), "{status} {said}");
    let (status, said) = put("c", r#"{"backend":"null:1M","scoket":"/c"}"#);
    assert!(status == 400 && said.contains("did you mean `socket`?"), "{status} {said}");
    let (status, said) = put("c", r#"{"name":"d","backend":"null:1M","socket":"/c"}"#);
    assert!(status == 400 && said.contains("its `name` is"), "{status} {said}");
    // The same, as programs write it.
    let text = json!({ "socket": place.text("a.sock"), "backend": "null:1M", "readonly": false });
    assert_eq!(put("a", &text.to_string()).0, 200);
    // A name that is no path.
    let socket = place.text("strange.sock");
    let (status, said) = put("..%2Fa%20%22b%22", &body(&socket));
    assert_eq!(status, 202, "{said}");
    let is_served = || listed(&place, "../a \"b\"")["state"] == "serving";
    wait_until("it is served", is_served);
    remove(&place, &["../a \"b\""]);
    let (status, said) = ask(&place, "GET", "/v1/disks/..%2Fa%20%22b%22", "");
    assert_eq!(status, 404, "{said}");
    stop(daemon);
}

#[test]
fn a_disk_that_fails_is_listed_and_may_be_added_again() {
    let place = Place::new();
    let daemon = daemon(&place, &[]);
    let refusal = refused(&place, "a", &["a.raw"]);
    assert!(refusal.contains("a.raw: no such file"), "{refusal}");
    let failed = listed(&place, "a");
    assert_eq!((&failed["state"], &failed["error"]["kind"]), (&"failed".into(), &"invalid".into()));
    assert_eq!(place.stats()["failed"][0]["name"], "a");
    place.succeed(&["create", "--size", "1M", "a.raw"]);
    add(&place, "a", &["a.raw"]);
    assert_eq!(listed(&place, "a")["state"], "serving");
    assert_eq!(place.stats()["failed"], json!([]));
    // A disk with a locked image is opening until its patience ends, and is removed meanwhile.
    let args = ["a.raw", "--no-wait"];
    add(&place, "b", &args);
    assert_eq!(listed(&place, "b")["state"], "opening");
    remove(&place, &["b"]);
    assert_eq!(listed(&place, "b"), Value::Null);
    assert!(!place.path("b.sock").exists());
    // Its name is free.
    add(&place, "b", &["--backend", "null:1M"]);
    stop(daemon);
}

/// Returns the threads, descriptors and resident bytes of a process.
fn footprint(pid: u32) -> [u64; 3] {
    let count = |what: &str| fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count() as u64;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kib: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    [count("task"), count("fd"), kib << 10]
}

/// A disk is added, used, changed and removed repeatedly beside one whose reads are verified.
/// Regression: the cache kept 4,096 words and all frames of every former disk.
fn disks_come_and_go(times: usize) {
    let place = Place::new();
    place.succeed(&["create", "--size", "4M", "a.flow"]);
    // One poller from the beginning: those of `auto` come with the load, and stay.
    let cache = ["--cache", "16M", "--cache-min", "16M", "--pollers", "1"];
    let daemon = place.serve(&[&cache[..], &["--backend", "mem:8M", "--name", "other"]].concat());
    let set = ["disk", "set", "--control", &place.text("control.sock"), "a", "--size", "+64K"];
    let turn = |turn: usize| {
        add(&place, "a", &["a.flow"]);
        let mut guest = client(&place, "a");
        let data = pattern(65536, 5);
        for lba in (0..8192).step_by(128) {
            assert_eq!(guest.write(lba, &data).unwrap(), Status::Ok);
        }
        place.succeed(&[&set[..], &["--weight", &(turn % 100 + 1).to_string()]].concat());
        drop(guest);
        wait_until("the guest has gone", || listed(&place, "a")["connected"] == false);
        remove(&place, &["a"]);
    };
    let is_over = AtomicBool::new(false);
    let before = thread::scope(|scope| {
        let neighbour = scope.spawn(|| verify_until(&place.path("disk.sock"), &is_over));
        let over = Over(&is_over);
        // The allocator fills its caches.
        (0..20).for_each(turn);
        let before = footprint(daemon.pid());
        (0..times).for_each(turn);
        drop(over);
        neighbour.join().unwrap();
        before
    });
    remove(&place, &["--force", "other"]);
    let cached = place.stats()["cache"]["bytes"].clone();
    assert_eq!(cached, 0, "nothing is held of disks that are gone");
    let after = wait_for("threads that had something to do have ended", || {
        let after = footprint(daemon.pid());
        if after[0] <= before[0] && after[1] <= before[1] { Ok(after) } else { Err(after) }
    });
    assert!(after[2] <= before[2] + (4 << 20), "{before:?} {after:?}");
    stop(daemon);
}

/// Drives the disk at a socket and verifies its reads.
pub fn verify_until(socket: &Path, is_over: &AtomicBool) {
    let mut load = LoadOptions::new(socket).workload("mix").iodepth(8).ops(500);
    (load.verify, load.verify_final) = (true, true);
    let mut known = None;
    while !is_over.load(Ordering::Relaxed) {
        let (report, map) = run_with_map(&load, known).unwrap();
        assert_eq!(report.errors, 0);
        known = Some(map);
    }
}

#[test]
fn nothing_stays_of_disks_that_come_and_go() {
    disks_come_and_go(50);
}

#[test]
#[ignore = "a soak"]
fn soak_disks_come_and_go() {
    disks_come_and_go(500);
}

/// A hanging host leaves its disk stopping, and delays the end. Regression: the daemon exited after
/// three seconds, and the image was as after a kill.
#[test]
fn a_disk_that_takes_long_to_stop_holds_up_no_other() {
    let Some(hosts) = Hosts::new() else { return };
    let place = &hosts.place;
    place.succeed(&["create", "--size", "16M", "at/slow.qcow2"]);
    let mut daemon = daemon(place, &[]);
    add(place, "slow", &[&place.text("at/slow.qcow2")]);
    let mut guest = client(place, "slow");
    assert_eq!(guest.write(0, &pattern(4096, 1)).unwrap(), Status::Ok);
    hosts.fake.stop();
    guest.submit(0, &Request::flush()).unwrap();
    guest.notify(0).unwrap();
    wait_until("the host is asked", || !hosts.fake.held().is_empty());
    let mut removal = DaemonCommand::new(env!("CARGO_BIN_EXE_flowstone"))
        .args(["disk", "remove", "--force", "--control", &place.text("control.sock"), "slow"])
        .ready(Ready::Now)
        .spawn()
        .unwrap();
    wait_until("it stops", || listed(place, "slow")["state"] == "stopping");
    add(place, "a", &["--backend", "null:1M"]);
    remove(place, &["a"]);
    assert!(refused(place, "slow", &["--backend", "null:1M"]).contains("it is being removed"));
    assert!(removal.try_wait().unwrap().is_none());
    daemon.signal(Signal::TERM).unwrap();
    wait_until("the others have stopped", || !place.path("disk.sock").exists());
    // As long as the daemon waits for a monitor.
    thread::sleep(Duration::from_secs(4));
    assert!(daemon.try_wait().unwrap().is_none(), "it did not wait");
    hosts.fake.release();
    let status = daemon.wait(HANG).unwrap();
    assert!(status.success(), "{status}: {}", daemon.stderr());
    assert!(!has_redo_file(&place.path("behind")));
    let _ = removal.wait(HANG);
}
