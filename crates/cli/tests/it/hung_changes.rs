//! Changes of disks while a host hangs: that of a disk which leaves, and that of `state-dir`.

use std::{fs, thread};

use flowstone_testkit::{HANG, Status, wait_until};
use serde_json::json;

use crate::fixture::{ask, pattern};
use crate::hot_disks::{list, listed};
use crate::hung_host::{Hosts, disk, threads};
use crate::many_disks::{config, serve};
use crate::reload::reload;

/// Regression: neither it nor a later one ended, and the other disk was not changed.
#[test]
fn a_reload_that_removes_a_disk_whose_host_hangs_changes_the_others() {
    let Some(hosts) = Hosts::new() else { return };
    let mut daemon = hosts.serve("raw", "", "");
    let mut guest = hosts.connect("hung");
    assert_eq!(guest.write(0, &pattern(4096, 1)).unwrap(), Status::Ok);
    drop(guest);
    wait_until("it has gone", || listed(&hosts.place, "hung")["connected"] == false);
    hosts.fake.stop();
    let well = format!("image = {:?}\nlimit = 'iops=9'", hosts.place.text("well.raw"));
    config(&hosts.place, &[("well", &well), ("new", "backend = 'null:1M'")]);
    // A second one has no other thread that waits.
    for _ in 0..2 {
        let done = reload(&hosts.place);
        let kept = "hung: it is being removed, and its host has not answered yet";
        assert_eq!(done["kept"], json!([kept]), "{done}");
        wait_until("one thread waits", || threads(&daemon, "removal") == 1);
    }
    // What has nothing in common with the disk that leaves does not wait for it.
    daemon.wait_stderr("has not answered yet disk=\"hung\"", HANG).unwrap();
    let said = daemon.stderr();
    let line = |text: &str| said.lines().position(|line| line.contains(text)).unwrap();
    assert!(line("added disk=\"new\"") < line("has not answered yet disk=\"hung\""), "{said}");
    assert_eq!(disk(&hosts.place.stats(), "well")["limit"]["iops"], 9);
    assert_eq!(hosts.connect("new").write(0, &pattern(4096, 1)).unwrap(), Status::Ok);
    let (status, said) = ask(&hosts.place, "DELETE", "/v1/disks/hung", "");
    assert!(status == 409 && said.contains("has not answered yet"), "{status} {said}");
    let hung = format!("image = {:?}", hosts.place.text("at/hung.raw"));
    config(&hosts.place, &[("hung", &hung), ("well", &well), ("new", "backend = 'null:1M'")]);
    let refused = reload(&hosts.place)["refused"].to_string();
    assert!(refused.contains("disk hung: it is being removed"), "{refused}");
    hosts.fake.release();
    wait_until("the disk has gone", || list(&hosts.place).len() == 2);
    assert_eq!(reload(&hosts.place)["added"], json!(["hung"]));
    crate::fixture::stop(daemon);
}

/// Regression: each further change, `disk show` and reload waited for it in a place of the control
/// socket, and in the end nobody was answered.
#[test]
fn a_state_dir_that_hangs_holds_up_one_change_only() {
    let Some(hosts) = Hosts::new() else { return };
    let place = &hosts.place;
    let file = config(place, &[("a", "backend = 'null:1M'"), ("b", "backend = 'null:1M'")]);
    let head = format!("state-dir = {:?}\n", place.text("at/state"));
    fs::write(&file, head + &fs::read_to_string(&file).unwrap()).unwrap();
    let daemon = serve(&file, 3);
    let set = |name: &str| ask(place, "PATCH", &format!("/v1/disks/{name}"), r#"{"weight":7}"#);
    let show = || ask(place, "GET", "/v1/disks/b", "").0;
    assert_eq!(set("b").0, 200);
    hosts.fake.stop();
    thread::scope(|scope| {
        let first = scope.spawn(|| set("a"));
        wait_until("the host is asked", || !hosts.fake.held().is_empty());
        assert_eq!(show(), 200);
        let (status, said) = ask(place, "POST", "/v1/reload", "");
        assert!(status == 409 && said.contains("an earlier change"), "{status} {said}");
        // All the places that are left.
        let others = [(); 31].map(|()| scope.spawn(|| set("b")));
        for (status, said) in others.map(|it| it.join().unwrap()) {
            assert!(matches!(status, 409 | 503), "{status} {said}");
        }
        wait_until("a place is free", || show() == 200);
        assert_eq!(hosts.connect("b").write(0, &pattern(4096, 1)).unwrap(), Status::Ok);
        hosts.fake.release();
        assert_eq!(first.join().unwrap().0, 200);
    });
    assert_eq!(set("b").0, 200);
    crate::fixture::stop(daemon);
}
