//! Groups added, changed and removed while the daemon runs.

use std::fs;

use flowstone_testkit::wait_until;
use serde_json::{Value, json};

use crate::fixture::{Place, ask, stop};
use crate::hot_disks::listed;
use crate::kept_disks::keeper;

fn group(place: &Place, what: &str, args: &[&str]) -> String {
    place.succeed(&[&["group", what, "--control", &place.text("control.sock")], args].concat())
}

fn refused(place: &Place, what: &str, args: &[&str]) -> String {
    place.refused(&[&["group", what, "--control", &place.text("control.sock")], args].concat())
}

fn groups(place: &Place) -> Value {
    serde_json::from_str(&group(place, "list", &["--json"])).unwrap()
}

fn add_disk(place: &Place, name: &str, group: &str) -> String {
    let (control, socket) = (place.text("control.sock"), place.text(&format!("{name}.sock")));
    let add = ["disk", "add", "--control", &control, "--name", name, "--socket", &socket];
    place.succeed(&[&add[..], &["--backend", "null:1M", "--group", group]].concat())
}

#[test]
fn a_group_is_added_used_changed_and_removed() {
    let place = Place::new();
    let daemon = place.serve(&["--backend", "null:1M", "--name", "other"]);
    assert_eq!(groups(&place), json!([]));
    assert_eq!(
        group(&place, "add", &["--iops", "900", "web"]),
        "web: limit iops=900,burst=0.01s\n"
    );
    // The same again succeeds, however it is written.
    group(&place, "add", &["--limit", "iops=900", "web"]);
    let refusal = refused(&place, "add", &["--iops", "800", "web"]);
    assert!(
        refusal.contains("group web: there is another group of that name; remove"),
        "{refusal}"
    );
    add_disk(&place, "a", "web");
    add_disk(&place, "b", "web");
    let limit = json!({ "iops": 900, "bytes_per_s": null, "burst_s": 0.01 });
    let web = json!({ "name": "web", "origin": "api", "limit": limit, "disks": ["a", "b"] });
    assert_eq!(groups(&place), json!([web]));
    assert_eq!(place.disk_stats("a")["group"], "web");
    group(&place, "set", &["--limit", "iops=50", "web"]);
    let listed = "web (api): limit iops=50,burst=0.01s, disks a, b\n";
    assert_eq!(group(&place, "list", &[]), listed);
    let refusal = refused(&place, "remove", &["web"]);
    let why = "group remove web: disk a and 1 more are in it; remove its disks first";
    assert!(refusal.contains(why), "{refusal}");
    for name in ["a", "b"] {
        assert_eq!(ask(&place, "DELETE", &format!("/v1/disks/{name}"), "").0, 200);
    }
    assert_eq!(group(&place, "remove", &["web"]), "web: removed\n");
    assert_eq!(groups(&place), json!([]));
    let refusal = refused(&place, "remove", &["web"]);
    assert!(refusal.contains("group remove web: no group is called that; see"), "{refusal}");
    stop(daemon);
}

#[test]
fn a_group_takes_the_keys_of_the_file_and_any_name() {
    let place = Place::new();
    let daemon = place.serve(&["--backend", "null:1M"]);
    let put = |name: &str, body: &Value| {
        ask(&place, "PUT", &format!("/v1/groups/{name}"), &body.to_string())
    };
    let (status, said) = put("a%2Fb%20%22c%22", &json!({ "bw": "10M", "burst": "2s" }));
    assert_eq!(status, 200, "{said}");
    assert_eq!(groups(&place)[0]["name"], "a/b \"c\"");
    assert_eq!(groups(&place)[0]["limit"]["bytes_per_s"], 10 << 20);
    for (body, why) in [
        (json!({ "iosp": 5 }), "did you mean `iops`?"),
        (json!({ "iops": 0 }), "is no rate"),
        (json!({ "iops": 5, "limit": "bw=1M" }), "limit"),
        (json!({ "burst": "2s" }), "say what is limited"),
        (json!({ "name": "d", "iops": 5 }), "its `name` is"),
        (json!([]), "send the keys of a [[group]]"),
    ] {
        let (status, said) = put("c", &body);
        assert!(status == 400 && said.contains(why), "{body}: {status} {said}");
    }
    let long = "x".repeat(129);
    assert_eq!(put(&long, &json!({ "iops": 5 })).0, 400);
    let (status, said) = ask(&place, "PATCH", "/v1/groups/none", r#"{"limit":"off"}"#);
    assert_eq!(status, 404, "{said}");
    assert_eq!(ask(&place, "DELETE", "/v1/groups/none", "").0, 404);
    stop(daemon);
}

#[test]
fn groups_are_there_after_a_kill_and_their_disks_are_in_them() {
    let place = Place::new();
    let mut daemon = keeper(&place, &[], 1);
    group(&place, "add", &["--iops", "900", "web"]);
    group(&place, "add", &["--bw", "1M", "gone"]);
    add_disk(&place, "a", "web");
    group(&place, "set", &["--limit", "iops=50", "web"]);
    group(&place, "remove", &["gone"]);
    // Right after the answer.
    daemon.kill().unwrap();
    let daemon = keeper(&place, &[], 2);
    wait_until("it is served", || listed(&place, "a")["state"] == "serving");
    let all = groups(&place);
    assert_eq!(all.as_array().unwrap().len(), 1);
    assert_eq!((&all[0]["origin"], &all[0]["limit"]["iops"]), (&"api".into(), &50.into()));
    assert_eq!(all[0]["disks"], json!(["a"]));
    stop(daemon);
}

/// Regression: adding a group with its original limit succeeded, but the limit set meanwhile stayed
/// in force.
#[test]
fn a_limit_that_is_put_is_in_force_also_if_the_group_was_made_with_it() {
    let place = Place::new();
    let file = place.path("flowstone.toml");
    let write = |iops: u32| {
        fs::write(&file, format!("[[group]]\nname = 'file'\niops = {iops}\n")).unwrap();
    };
    write(900);
    let path = file.display().to_string();
    let start = || keeper(&place, &["--config", &path], 1);
    let mut daemon = start();
    let ask = |method: &str, name: &str, body: &Value| {
        let (status, said) = ask(&place, method, &format!("/v1/groups/{name}"), &body.to_string());
        (status, serde_json::from_str::<Value>(&said).unwrap()["limit"]["iops"].clone())
    };
    let in_force = || {
        let all = groups(&place);
        let iops = |name: &str| {
            let all = all.as_array().unwrap();
            all.iter().find(|group| group["name"] == name).unwrap()["limit"]["iops"].clone()
        };
        [iops("file"), iops("web")]
    };
    assert_eq!(ask("PUT", "web", &json!({ "iops": 900 })), (200, 900.into()));
    for name in ["file", "web"] {
        assert_eq!(ask("PATCH", name, &json!({ "limit": "iops=50" })), (200, 50.into()));
        // The current limit and the original one; another one is refused, and changes nothing.
        assert_eq!(ask("PUT", name, &json!({ "iops": 50 })), (200, 50.into()));
        assert_eq!(ask("PUT", name, &json!({ "iops": 60 })), (409, Value::Null));
        assert_eq!(in_force()[usize::from(name == "web")], 50);
        assert_eq!(ask("PUT", name, &json!({ "iops": 900 })), (200, 900.into()));
        assert_eq!(ask("PATCH", name, &json!({ "limit": "iops=50" })), (200, 50.into()));
        assert_eq!(ask("PATCH", name, &json!({ "limit": "iops=900" })), (200, 900.into()));
        assert_eq!(ask("PATCH", name, &json!({ "limit": "iops=50" })), (200, 50.into()));
        assert_eq!(ask("PUT", name, &json!({ "iops": 900 })), (200, 900.into()));
    }
    assert_eq!(in_force(), [900, 900]);
    // Right after the answer.
    daemon.kill().unwrap();
    let daemon = start();
    assert_eq!(in_force(), [900, 900]);
    assert_eq!(place.stats()["groups"][0]["limit"]["iops"], 900);
    // A limit added holds like one that is set: until the file changes.
    place.succeed(&["reload", "--control", &place.text("control.sock")]);
    assert_eq!(in_force(), [900, 900]);
    write(800);
    place.succeed(&["reload", "--control", &place.text("control.sock")]);
    assert_eq!(in_force(), [800, 900]);
    stop(daemon);
}

#[test]
fn a_reload_adds_changes_and_removes_groups() {
    let place = Place::new();
    let file = place.path("flowstone.toml");
    let write = |groups: &str| {
        let socket = place.text("a.sock");
        let disk = format!("[[disk]]\nname = 'a'\nbackend = 'null:1M'\nsocket = '{socket}'\n");
        fs::write(&file, format!("{disk}{groups}")).unwrap();
    };
    let of = |name: &str, iops: u32| format!("[[group]]\nname = '{name}'\niops = {iops}\n");
    write(&[of("web", 100), of("gone", 5)].concat());
    let path = file.display().to_string();
    let daemon = keeper(&place, &["--config", &path], 2);
    let reload = || -> Value {
        let control = place.text("control.sock");
        serde_json::from_str(&place.succeed(&["reload", "--json", "--control", &control])).unwrap()
    };
    group(&place, "set", &["--limit", "iops=7", "web"]);
    // A setting stays as long as the file is the same.
    let done = reload();
    assert_eq!((&done["changed"], &groups(&place)[1]["limit"]["iops"]), (&json!([]), &7.into()));
    group(&place, "add", &["--iops", "1", "mine"]);
    write(&[of("web", 200), of("new", 3), of("mine", 2)].concat());
    let done = reload();
    assert_eq!(done["added"], json!(["group new"]));
    assert_eq!(done["removed"], json!(["group gone"]));
    assert_eq!(done["changed"], json!(["group web: limit"]));
    assert_eq!(done["kept"], json!(["group mine: it was added on the control socket"]));
    let all = groups(&place);
    let iops = |index: usize| all[index]["limit"]["iops"].as_u64().unwrap();
    assert_eq!([iops(0), iops(1), iops(2)], [1, 3, 200], "{all}");
    stop(daemon);
    // The settings are dropped, and the file's group of a name wins.
    let mut daemon = keeper(&place, &["--config", &path], 2);
    let hang = flowstone_testkit::HANG;
    daemon.wait_stderr("it was added before, and the configuration's wins", hang).unwrap();
    let all = groups(&place);
    assert_eq!((&all[0]["limit"]["iops"], &all[0]["origin"]), (&2.into(), &"file".into()));
    assert_eq!(all[2]["limit"]["iops"], 200);
    stop(daemon);
}
