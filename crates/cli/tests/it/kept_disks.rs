//! Changes made on the control socket persist across a restart, and a kill.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::Duration;

use flowstone_testkit::process::Ready;
use flowstone_testkit::{Daemon, DaemonCommand, HANG, wait_for, wait_until};
use serde_json::{Value, json};

use crate::fixture::{Place, ask, stop};
use crate::hot_disks::{list, listed};

/// Starts a daemon with a state directory; `ready` lines say that it listens, that of its control
/// socket among them.
pub fn keeper(place: &Place, args: &[&str], ready: usize) -> Daemon {
    keeper_command(place, args).ready(Ready::Listening(ready)).spawn().unwrap()
}

fn keeper_command(place: &Place, args: &[&str]) -> DaemonCommand {
    DaemonCommand::new(env!("CARGO_BIN_EXE_flowstone"))
        .args(["serve", "--control", &place.text("control.sock")])
        .args(["--state-dir", &place.text("state")])
        .args(args.iter().copied())
}

fn put(place: &Place, name: &str, keys: &Value) -> u16 {
    let mut keys = keys.clone();
    keys["socket"] = place.text(&format!("{name}.sock")).into();
    ask(place, "PUT", &format!("/v1/disks/{name}"), &keys.to_string()).0
}

fn set(place: &Place, what: &str, args: &[&str]) -> String {
    place.succeed(&[&[what, "set", "--control", &place.text("control.sock")], args].concat())
}

fn is_serving(place: &Place, name: &str) -> bool {
    listed(place, name)["state"] == "serving"
}

fn shown(place: &Place, name: &str) -> Value {
    let show = ["disk", "show", "--control", &place.text("control.sock"), "--json", name];
    serde_json::from_str(&place.succeed(&show)).unwrap()
}

#[test]
fn a_daemon_begins_without_disks_and_has_them_again_after_a_restart_and_after_a_kill() {
    let place = Place::new();
    place.succeed(&["create", "--size", "1M", "a.flow"]);
    let mut daemon = keeper(&place, &[], 1);
    assert_eq!(daemon.stdout(), format!("listening on {}\n", place.text("control.sock")));
    assert!(list(&place).is_empty());
    assert_eq!(put(&place, "a", &json!({ "image": place.text("a.flow"), "weight": 300 })), 202);
    wait_until("it is served", || is_serving(&place, "a"));
    assert_eq!(put(&place, "gone", &json!({ "backend": "null:1M" })), 202);
    wait_until("it is served", || is_serving(&place, "gone"));
    assert_eq!(ask(&place, "DELETE", "/v1/disks/gone", "").0, 200);
    assert_eq!(put(&place, "missing", &json!({ "image": place.text("missing.raw") })), 202);
    set(&place, "disk", &["a", "--limit", "iops=900"]);
    // Right after the answer.
    daemon.kill().unwrap();
    let refused = place.run(&["serve", "--control", &place.text("c2"), "--state-dir"]);
    assert_eq!(refused.status.code(), Some(2));
    for _ in 0..2 {
        let mut daemon = keeper(&place, &[], 2);
        wait_until("it has failed", || listed(&place, "missing")["state"] == "failed");
        assert_eq!(list(&place).len(), 2);
        assert!(is_serving(&place, "a"));
        let stats = place.disk_stats("a");
        assert_eq!((&stats["weight"], &stats["limit"]["iops"]), (&300.into(), &900.into()));
        let keys = &shown(&place, "a")["keys"];
        assert_eq!(keys["weight"], json!({ "value": "300", "origin": "api" }));
        let second = place.refused(&[
            "serve",
            "--control",
            &place.text("second.sock"),
            "--state-dir",
            &place.text("state"),
        ]);
        assert!(second.contains("another daemon is using it"), "{second}");
        daemon.kill().unwrap();
    }
}

/// Regression: a change answered with an error was in force all the same, and a disk removed in
/// this way came back at the next start.
#[test]
fn what_cannot_be_kept_is_not_done() {
    let place = Place::new();
    let daemon = keeper(&place, &[], 1);
    assert_eq!(put(&place, "a", &json!({ "backend": "null:1M", "weight": 300 })), 202);
    wait_until("it is served", || is_serving(&place, "a"));
    assert_eq!(ask(&place, "PUT", "/v1/groups/web", "{\"iops\": 50}").0, 200);
    fs::rename(place.path("state"), place.path("away")).unwrap();
    assert_eq!(ask(&place, "PATCH", "/v1/disks/a", "{\"weight\": 7}").0, 500);
    assert_eq!(ask(&place, "PATCH", "/v1/groups/web", "{\"limit\": \"iops=9\"}").0, 500);
    assert_eq!(ask(&place, "DELETE", "/v1/disks/a", "").0, 500);
    assert!(is_serving(&place, "a"));
    assert_eq!(place.disk_stats("a")["weight"], 300);
    let groups: Value = serde_json::from_str(&ask(&place, "GET", "/v1/groups", "").1).unwrap();
    assert_eq!(groups[0]["limit"]["iops"], 50, "{groups}");
    fs::rename(place.path("away"), place.path("state")).unwrap();
    assert_eq!(ask(&place, "PATCH", "/v1/disks/a", "{\"weight\": 7}").0, 200);
    assert_eq!(place.disk_stats("a")["weight"], 7);
    assert_eq!(ask(&place, "DELETE", "/v1/disks/a", "").0, 200);
    stop(daemon);
    let daemon = keeper(&place, &[], 1);
    assert!(list(&place).is_empty());
    stop(daemon);
}

/// Regression: files with other names than the daemon's own were removed with a disk.
#[test]
fn files_of_state_with_other_names_are_not_taken_for_the_daemons() {
    let place = Place::new();
    let daemon = keeper(&place, &[], 1);
    assert_eq!(put(&place, "a", &json!({ "backend": "null:1M" })), 202);
    wait_until("it is served", || is_serving(&place, "a"));
    stop(daemon);
    let folder = place.path("state");
    fs::copy(folder.join("0.toml"), folder.join("00.toml")).unwrap();
    fs::create_dir(folder.join("folder.new")).unwrap();
    let mut daemon = keeper(&place, &[], 2);
    daemon.wait_stderr("00.toml: its name is none that a daemon gives", HANG).unwrap();
    assert!(is_serving(&place, "a"));
    assert_eq!(ask(&place, "DELETE", "/v1/disks/a", "").0, 200);
    assert!(folder.join("00.toml").exists() && !folder.join("0.toml").exists());
    stop(daemon);
}

/// Regression: the last file won by chance, and a removal took one of them: the disk came back at
/// the next start.
#[test]
fn of_several_files_of_state_about_a_disk_none_is_used_or_changed() {
    let place = Place::new();
    let daemon = keeper(&place, &[], 1);
    let null = json!({ "backend": "null:1M" });
    assert_eq!(put(&place, "a", &null), 202);
    wait_until("it is served", || is_serving(&place, "a"));
    assert_eq!(put(&place, "b", &null), 202);
    assert_eq!(ask(&place, "PUT", "/v1/groups/web", "{\"iops\": 50}").0, 200);
    stop(daemon);
    let file = |number: u32| place.path(&format!("state/{number}.toml"));
    let read = |number: u32| fs::read_to_string(file(number)).unwrap();
    let [disk, group] = ["disk = \"a\"", "group = \"web\""]
        .map(|about| (0..3).find(|number| read(*number).starts_with(about)).expect("it is kept"));
    fs::copy(file(disk), file(7)).unwrap();
    fs::copy(file(group), file(8)).unwrap();
    let before = [disk, group, 7, 8].map(read);
    let mut daemon = keeper(&place, &[], 2);
    assert!(is_serving(&place, "b"));
    let failed = listed(&place, "a");
    assert_eq!((&failed["state"], &failed["origin"]), (&"failed".into(), &"api".into()));
    let why = format!("{disk}.toml, 7.toml are all about it, so none is used");
    assert_eq!(failed["error"]["why"], why.as_str());
    assert_eq!(shown(&place, "a")["error"], failed["error"]);
    daemon.wait_stderr(&format!("{group}.toml, 8.toml are all about it"), HANG).unwrap();
    // None of this can be persisted, so it is not done.
    let keys = json!({ "backend": "mem:1M", "socket": place.text("a.sock") }).to_string();
    for (method, target, body, about) in [
        ("PUT", "disks/a", &*keys, &why),
        ("PATCH", "disks/a", "{\"weight\": 7}", &why),
        ("DELETE", "disks/a", "", &why),
        ("PUT", "groups/web", "{\"iops\": 50}", &format!("{group}.toml, 8.toml are all about it")),
        ("PATCH", "groups/web", "{\"limit\": \"off\"}", &"8.toml".into()),
        ("DELETE", "groups/web", "", &"8.toml".into()),
    ] {
        let (status, said) = ask(&place, method, &format!("/v1/{target}"), body);
        assert!(status == 400 && said.contains(about.as_str()), "{method} {target}: {said}");
    }
    assert_eq!(ask(&place, "GET", "/v1/groups", "").1.trim(), "[]");
    stop(daemon);
    assert_eq!([disk, group, 7, 8].map(read), before);
    // A disk of the configuration follows the configuration, and the files are reported all the
    // same.
    let config = self::file(&place, "weight = 100");
    let daemon = keeper(&place, &["--config", &config], 3);
    assert_eq!((&*place.disk_stats("a")["weight"].to_string(), list(&place).len()), ("100", 4));
    assert_eq!(ask(&place, "PATCH", "/v1/disks/a", "{\"weight\": 7}").0, 400);
    assert_eq!(ask(&place, "DELETE", "/v1/disks/a", "").0, 400);
    assert_eq!(place.disk_stats("a")["weight"], 100);
    stop(daemon);
    assert_eq!([disk, group, 7, 8].map(read), before);
    // One of two is left.
    fs::remove_file(file(7)).unwrap();
    fs::remove_file(file(group)).unwrap();
    let daemon = keeper(&place, &[], 3);
    assert!(is_serving(&place, "a") && list(&place).len() == 2);
    assert_eq!(ask(&place, "DELETE", "/v1/disks/a", "").0, 200);
    assert_eq!(ask(&place, "DELETE", "/v1/groups/web", "").0, 200);
    stop(daemon);
    assert!(![disk, group, 7, 8].into_iter().any(|number| file(number).exists()));
}

/// Regression: after the removal of its `lock` a second daemon could start, and each replaced the
/// other one's records.
#[test]
fn a_folder_of_state_is_one_daemons_whatever_is_removed_from_it() {
    let place = Place::new();
    fs::create_dir(place.path("state")).unwrap();
    // Of an earlier version.
    fs::write(place.path("state/lock"), "").unwrap();
    let daemon = keeper(&place, &[], 1);
    assert_eq!(put(&place, "a", &json!({ "backend": "null:1M" })), 202);
    wait_until("it is served", || is_serving(&place, "a"));
    for entry in fs::read_dir(place.path("state")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let (control, state) = (place.text("second.sock"), place.text("state"));
    let second = place.refused(&["serve", "--control", &control, "--state-dir", &state]);
    let why = "another daemon is using it; stop that, or choose another folder";
    assert!(second.contains(&format!("state-dir {state}: {why}")), "{second}");
    // The first one continues, and persists changes.
    assert_eq!(put(&place, "b", &json!({ "backend": "null:1M" })), 202);
    stop(daemon);
    let daemon = keeper(&place, &[], 2);
    assert!(is_serving(&place, "b"));
    stop(daemon);
}

fn file(place: &Place, weight: &str) -> String {
    let text = format!(
        "[[group]]\nname = 'web'\niops = 100\n\
         [[disk]]\nname = 'a'\nbackend = 'null:1M'\nsocket = '{}'\ngroup = 'web'\n{weight}\n",
        place.text("a.sock")
    );
    fs::write(place.path("flowstone.toml"), text).unwrap();
    place.text("flowstone.toml")
}

#[test]
fn what_was_set_of_a_disk_of_the_file_wins_until_the_file_changes() {
    let place = Place::new();
    let config = file(&place, "weight = 100");
    let daemon = keeper(&place, &["--config", &config], 2);
    set(&place, "disk", &["a", "--weight", "7"]);
    set(&place, "group", &["web", "--limit", "iops=50"]);
    // The file's group, and one that is added; only one of them is possible.
    assert_eq!(put(&place, "b", &json!({ "backend": "null:1M" })), 202);
    stop(daemon);
    let mut daemon = keeper(&place, &["--config", &config], 3);
    daemon
        .wait_stderr("disk a: weight = 7 was set, and wins over the configuration", HANG)
        .unwrap();
    let stats = place.stats();
    assert_eq!(stats["groups"][0]["limit"]["iops"], 50);
    assert_eq!(place.disk_stats("a")["weight"], 7);
    assert_eq!(shown(&place, "a")["keys"]["weight"], json!({ "value": "7", "origin": "api" }));
    assert_eq!(shown(&place, "a")["keys"]["group"], json!({ "value": "web", "origin": "file" }));
    stop(daemon);
    let text = file(&place, "weight = 200");
    let more =
        format!("[[disk]]\nname = 'b'\nbackend = 'mem:1M'\nsocket = '{}'\n", place.text("b"));
    fs::write(&text, fs::read_to_string(&text).unwrap() + &more).unwrap();
    let mut daemon = keeper(&place, &["--config", &config], 3);
    daemon.wait_stderr("weight has changed in the configuration, which wins", HANG).unwrap();
    daemon.wait_stderr("it was added before, and the configuration's wins", HANG).unwrap();
    assert_eq!(place.disk_stats("a")["weight"], 200);
    assert_eq!(listed(&place, "b")["origin"], "file");
    stop(daemon);
}

/// Regression: it was listed as one of the configuration, which has none.
#[test]
fn a_file_of_state_that_cannot_be_read_costs_its_disk_alone() {
    let place = Place::new();
    let daemon = keeper(&place, &[], 1);
    assert_eq!(put(&place, "a", &json!({ "backend": "null:1M" })), 202);
    assert_eq!(put(&place, "b", &json!({ "backend": "null:1M" })), 202);
    stop(daemon);
    fs::write(place.path("state/0.toml"), "nonsense").unwrap();
    // These can be parsed, but their contents are invalid.
    fs::write(place.path("state/7.toml"), "disk = 'c'\n[added]\nscoket = '/c'\n").unwrap();
    fs::write(place.path("state/8.toml"), "group = 'd'\n[added]\niops = 0\n").unwrap();
    let daemon = keeper(&place, &[], 2);
    assert!(is_serving(&place, "b"));
    let all = list(&place);
    let failed: Vec<&Value> = all.iter().filter(|disk| disk["state"] == "failed").collect();
    let [unread, ..] = failed[..] else { panic!("{all:?}") };
    assert!(unread["error"]["what"].as_str().unwrap().contains("0.toml"), "{unread}");
    assert_eq!(failed.len(), 3, "{failed:?}");
    assert!(failed.iter().all(|disk| disk["origin"] == "api"), "{failed:?}");
    stop(daemon);
    let config = place.text("flowstone.toml");
    let disk = |socket: &str| format!("[[disk]]\nbackend = 'null:1M'\nsocket = '{socket}'\n");
    fs::write(&config, disk(&place.text("x")) + "scoket = 'y'\n").unwrap();
    let daemon = keeper(&place, &["--config", &config], 2);
    let all = list(&place);
    let failed = all.iter().filter(|disk| disk["state"] == "failed");
    assert_eq!(failed.filter(|disk| disk["origin"] == "file").count(), 1, "{all:?}");
    stop(daemon);
    assert_eq!(fs::read_to_string(place.path("state/0.toml")).unwrap(), "nonsense");
}

/// Adds and removes disks until it is killed. Answered changes are there; the one in progress is
/// there as a whole, or not at all.
fn kill_at_any_moment(times: u64) {
    let place = Place::new();
    let keys = json!({ "backend": "null:1M", "queues": 3 });
    let mut there = BTreeSet::new();
    for turn in 0..times {
        let mut daemon = keeper(&place, &[], 1);
        let names: BTreeSet<String> = wait_for("all are served", || {
            let all = list(&place);
            let is_over = all.iter().all(|disk| disk["state"] == "serving");
            let name = |disk: &Value| disk["name"].as_str().unwrap().to_owned();
            if is_over { Ok(all.iter().map(name).collect()) } else { Err(all) }
        });
        let on_its_way = |name: &&String| !name.starts_with("late");
        assert_eq!(
            names.iter().filter(on_its_way).collect::<BTreeSet<_>>(),
            there.iter().collect()
        );
        for late in names.iter().filter(|name| !on_its_way(name)) {
            // As a whole.
            assert_eq!(shown(&place, late)["keys"]["queues"]["value"], "3");
            assert_eq!(ask(&place, "DELETE", &format!("/v1/disks/{late}"), "").0, 200);
        }
        for step in 0..3 {
            let name = format!("d{}", (turn + step) % 5);
            if there.contains(&name) {
                assert_eq!(ask(&place, "DELETE", &format!("/v1/disks/{name}"), "").0, 200);
                there.remove(&name);
            } else {
                assert_eq!(put(&place, &name, &keys), 202);
                there.insert(name);
            }
        }
        let late = json!({ "backend": "null:1M", "queues": 3, "socket": place.text("late.sock") });
        let late = late.to_string();
        let mut socket = UnixStream::connect(place.path("control.sock")).unwrap();
        let head = format!("PUT /v1/disks/late{turn} HTTP/1.1\r\nhost: x\r\ncontent-length: ");
        socket.write_all(format!("{head}{}\r\n\r\n{late}", late.len()).as_bytes()).unwrap();
        sleep(Duration::from_micros(100 * (turn % 20)));
        daemon.kill().unwrap();
    }
}

#[test]
fn a_kill_at_any_moment_loses_nothing_that_was_answered() {
    kill_at_any_moment(20);
}

#[test]
#[ignore = "a soak"]
fn soak_kills_lose_nothing_that_was_answered() {
    kill_at_any_moment(200);
}
