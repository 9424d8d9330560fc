//! A guest's file cache and the host agree on memory (S5.4).

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use flowstone_testkit::{HANG, wait_until};
use serde_json::Value;

use crate::fixture::{Place, stop};

const REPORT: &str = r#"{"report":{"used_bytes":7,"limit_bytes":64,"wanted_bytes":1048576,
    "hits":3,"misses":2,"curve":[0.5,0.9]}}"#;

fn guest_cache(place: &Place) -> Value {
    place.stats()["vms"][0]["guest_cache"].clone()
}

/// This process uses the disk, so it is the VM.
#[test]
fn a_guest_that_reports_is_granted_what_its_vm_may_have() {
    let place = Place::new();
    let (disk, agent) = (place.image("16M"), place.text("agent.sock"));
    let daemon = place.serve(&["--guest-agent", &agent, &disk.display().to_string()]);
    let client = place.client();
    assert_eq!(place.stats()["vms"][0]["guest_cache"], Value::Null, "{}", place.stats());
    let mut guest = UnixStream::connect(&agent).unwrap();
    guest.set_read_timeout(Some(HANG)).unwrap();
    writeln!(guest, "{}", REPORT.replace('\n', "")).unwrap();
    let mut line = String::new();
    BufReader::new(&guest).read_line(&mut line).unwrap();
    let grant: Value = serde_json::from_str(&line).unwrap();
    assert!(grant["grant"]["bytes"].as_u64() <= Some(1 << 20), "{line}");
    assert_eq!(grant["grant"]["lease_s"], 30, "{line}");
    let seen = guest_cache(&place);
    assert_eq!((&seen["used_bytes"], &seen["limit_bytes"]), (&7.into(), &64.into()), "{seen}");
    assert_eq!((&seen["hits"], &seen["misses"]), (&3.into(), &2.into()), "{seen}");
    assert_eq!(seen["grant_bytes"], grant["grant"]["bytes"]);
    assert!(seen["age_s"].as_f64() >= Some(0.0), "{seen}");
    drop(guest);
    wait_until("it to be forgotten", || guest_cache(&place).is_null());
    drop(client);
    stop(daemon);
}

#[test]
fn the_socket_of_agents_is_none_of_the_others() {
    let place = Place::new();
    let (disk, agent) = (place.image("16M"), place.text("agent.sock"));
    let disk = disk.display().to_string();
    let said = place.refused(&["serve", "--socket", &agent, "--guest-agent", &agent, &disk]);
    assert!(said.contains("that of guests' agents"), "{said}");
}
