//! Reload of a configuration while guests run.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::AtomicBool;
use std::thread;

use flowstone_testkit::{Client, ClientOptions, HANG, Status, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::fixture::{Over, Place, stop};
use crate::hot_disks::{list, listed, verify_until};
use crate::many_disks::{config, serve};

pub fn reload(place: &Place) -> Value {
    let control = place.text("control.sock");
    let text = place.succeed(&["reload", "--json", "--control", &control]);
    serde_json::from_str(&text).unwrap()
}

const NULL: &str = "backend = 'null:1M'";

#[test]
fn what_can_be_changed_is_changed_and_the_rest_is_listed() {
    let place = Place::new();
    let with = |line: &str| format!("{NULL}\n{line}");
    let disks = [("a", &*with("weight = 200")), ("used", NULL), ("gone", NULL), ("b", NULL)];
    let file = config(&place, &disks);
    let mut daemon = serve(&file, 4);
    let mut guest = Client::connect(ClientOptions::new(place.path("used.sock"))).unwrap();
    assert_eq!(guest.write(0, &[1; 512]).unwrap(), Status::Ok);
    let nothing = json!({
        "added": [], "removed": [], "changed": [], "needs_restart": [], "kept": [], "refused": [],
    });
    assert_eq!(reload(&place), nothing);
    let a = with("limit = 'iops=9'\nweight = 300\nqueues = 3");
    config(&place, &[("a", &a), ("b", NULL), ("new", NULL)]);
    let done = reload(&place);
    assert_eq!(done["added"], json!(["new"]));
    assert_eq!(done["removed"], json!(["gone"]));
    assert_eq!(done["changed"], json!(["a: limit", "a: weight"]));
    assert_eq!(done["needs_restart"], json!(["a: queues"]));
    let kept = "used: disk remove used: a guest is attached; ";
    assert!(done["kept"][0].as_str().unwrap().starts_with(kept), "{done}");
    wait_until("it is served", || listed(&place, "new")["state"] == "serving");
    assert!(!place.path("gone.sock").exists());
    let a = place.disk_stats("a");
    assert_eq!((&a["limit"]["iops"], &a["weight"]), (&9.into(), &300.into()));
    assert_eq!(guest.write(0, &[2; 512]).unwrap(), Status::Ok);
    // Reported as long as it applies.
    assert_eq!(reload(&place)["needs_restart"], json!(["a: queues"]));
    drop(guest);
    wait_until("the guest has gone", || listed(&place, "used")["connected"] == false);
    // A signal does the same, and a file that cannot be parsed changes nothing.
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, "[[disk]\n").unwrap();
    daemon.signal(Signal::HUP).unwrap();
    daemon.wait_stderr("flowstone.toml: ", HANG).unwrap();
    assert_eq!(list(&place).len(), 4);
    fs::write(&file, text).unwrap();
    daemon.signal(Signal::HUP).unwrap();
    wait_until("it is gone", || listed(&place, "used") == Value::Null);
    stop(daemon);
}

#[test]
fn each_kind_of_change_beside_a_verified_load() {
    let place = Place::new();
    let write = |turn: u32| {
        let is_odd = turn % 2 == 1;
        let (mode, queues) = if is_odd { ("0660", 2) } else { ("0600", 1) };
        let driven = format!(
            "backend = 'mem:8M'\ngroup = 'web'\nlimit = 'iops={}'\nweight = {}\nsocket-mode = '{mode}'",
            1_000_000 + turn,
            100 + turn
        );
        let fixed = format!("{NULL}\nqueues = {queues}");
        let mut disks = vec![("driven", driven.as_str()), ("fixed", &fixed)];
        disks.push(if is_odd { ("odd", NULL) } else { ("even", NULL) });
        if !is_odd {
            disks.push(("attached", NULL));
        }
        let file = config(&place, &disks);
        let group = format!("[[group]]\nname = 'web'\niops = {}\n", 2_000_000 + turn);
        fs::write(&file, fs::read_to_string(&file).unwrap() + &group).unwrap();
        file
    };
    let daemon = serve(&write(0), 4);
    let attached = Client::connect(ClientOptions::new(place.path("attached.sock"))).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let guest = scope.spawn(|| verify_until(&place.path("driven.sock"), &is_over));
        let over = Over(&is_over);
        for turn in 1..=20 {
            write(turn);
            let done = reload(&place);
            let (added, removed) = if turn % 2 == 1 { ("odd", "even") } else { ("even", "odd") };
            assert_eq!(done["added"], json!([added]), "{done}");
            assert_eq!(done["removed"], json!([removed]), "{done}");
            let changed =
                ["driven: limit", "driven: socket-mode", "driven: weight", "group web: limit"];
            let mut said: Vec<_> = done["changed"].as_array().unwrap().clone();
            said.sort_by_key(Value::to_string);
            assert_eq!(said, changed, "{done}");
            let count = |list: &str| done[list].as_array().unwrap().len() as u32;
            assert_eq!((count("needs_restart"), count("kept")), (turn % 2, turn % 2), "{done}");
            wait_until("it is served", || listed(&place, added)["state"] == "serving");
        }
        drop(over);
        guest.join().unwrap();
    });
    drop(attached);
    stop(daemon);
}

/// However it is called then.
#[test]
fn a_disk_takes_the_image_and_the_socket_of_one_that_leaves() {
    let place = Place::new();
    place.succeed(&["create", "--size", "1M", "disk.raw"]);
    let image = format!("image = {:?}", place.text("disk.raw"));
    let file = config(&place, &[("old", &image), ("b", NULL)]);
    let daemon = serve(&file, 2);
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replacen("name = \"old\"", "name = \"new\"", 1)).unwrap();
    let done = reload(&place);
    assert_eq!((&done["removed"], &done["added"]), (&json!(["old"]), &json!(["new"])), "{done}");
    wait_until("it is served", || listed(&place, "new")["state"] == "serving");
    let mut guest = Client::connect(ClientOptions::new(place.path("old.sock"))).unwrap();
    assert_eq!(guest.write(0, &[1; 512]).unwrap(), Status::Ok);
    drop(guest);
    stop(daemon);
}

/// Regression: a key was misspelt, and the disk was removed, with its settings.
#[test]
fn a_disk_that_is_written_with_a_mistake_stays_as_it_is() {
    let place = Place::new();
    let file = config(&place, &[("a", NULL), ("b", NULL)]);
    let daemon = serve(&file, 2);
    let control = place.text("control.sock");
    place.succeed(&["disk", "set", "--control", &control, "a", "--weight", "7"]);
    // It is identified by its name, and by its socket if the name is missing.
    for lines in ["wieght = 3", "group = 'none'", "name = 7"] {
        config(&place, &[("a", &format!("{NULL}\n{lines}")), ("b", NULL)]);
        let text = fs::read_to_string(&file).unwrap();
        if lines == "name = 7" {
            fs::write(&file, text.replacen("name = \"a\"\n", "", 1)).unwrap();
        }
        let done = reload(&place);
        assert_eq!((&done["removed"], &done["kept"]), (&json!([]), &json!([])), "{lines}: {done}");
        assert_eq!(done["refused"].as_array().unwrap().len(), 1, "{lines}: {done}");
        assert_eq!(place.disk_stats("a")["weight"], 7, "{lines}");
    }
    stop(daemon);
}

/// The group of a socket set by the file cannot be restored to its default.
#[test]
fn who_may_connect_changes_while_a_guest_runs() {
    let place = Place::new();
    let with = |lines: &str| format!("{NULL}\n{lines}");
    let own = format!("socket-group = '{}'", rustix::process::getgid().as_raw());
    let file = config(&place, &[("a", &with("socket-mode = '0600'"))]);
    let daemon = serve(&file, 1);
    let mode = || fs::metadata(place.path("a.sock")).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o600);
    let mut guest = Client::connect(ClientOptions::new(place.path("a.sock"))).unwrap();
    for (lines, changed, restart, expected) in [
        ("socket-mode = '0666'".to_owned(), json!(["a: socket-mode"]), json!([]), 0o666),
        (own.clone(), json!(["a: socket-group", "a: socket-mode"]), json!([]), 0o660),
        ("socket-mode = '0600'".into(), json!([]), json!(["a: socket-group, socket-mode"]), 0o660),
        (format!("{own}\nsocket-mode = '0640'"), json!(["a: socket-mode"]), json!([]), 0o640),
    ] {
        config(&place, &[("a", &with(&lines))]);
        let done = reload(&place);
        assert_eq!((&done["changed"], &done["needs_restart"]), (&changed, &restart), "{lines}");
        assert_eq!(mode(), expected, "{lines}");
    }
    assert_eq!(guest.write(0, &[1; 512]).unwrap(), Status::Ok);
    drop(guest);
    stop(daemon);
}

#[test]
fn a_daemon_without_a_file_has_nothing_to_read_again() {
    let place = Place::new();
    let daemon = place.serve(&["--backend", "null:1M"]);
    let refusal = place.refused(&["reload", "--control", &place.text("control.sock")]);
    assert!(refusal.contains("reload: the daemon was started without --config; use"), "{refusal}");
    stop(daemon);
}
