//! Memory granted by the host, and withdrawn.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use flowstone_testkit::wait_until;
use serde_json::Value;

use crate::fixture::Mount;

/// Starts a host, and a mount that is connected to it.
fn connected(options: &[&str]) -> Option<(Mount, UnixStream)> {
    let folder = flowstone_testkit::TempDir::new().unwrap();
    let path = folder.path().join("host");
    let listener = UnixListener::bind(&path).unwrap();
    let agent = path.display().to_string();
    let mount = Mount::start(&[options, &["--agent", &agent]].concat())?;
    let (stream, _) = listener.accept().unwrap();
    Some((mount, stream))
}

fn grant(mut host: &UnixStream, bytes: u64, lease_s: u64) {
    let grant =
        serde_json::json!({ "grant": { "bytes": bytes, "lease_s": lease_s, "reason": "" } });
    writeln!(host, "{grant}").unwrap();
}

#[test]
fn a_guest_reports_at_each_epoch_what_it_has() {
    let Some((mount, host)) = connected(&["--epoch", "50ms", "--memory", "8M"]) else { return };
    mount.copied("it", vec![0; 10_000]);
    let has = |line: String| {
        let report: Value = serde_json::from_str(&line).unwrap();
        let report = &report["report"];
        assert_eq!(report["wanted_bytes"], 8 << 20, "{line}");
        report["used_bytes"] == 3 * 4096 + 2048 && report["hits"].as_u64() > Some(0)
    };
    assert!(BufReader::new(host).lines().any(|line| has(line.unwrap())));
}

#[test]
fn what_the_host_does_not_grant_is_given_up_until_the_lease_is_over() {
    let Some((mount, host)) = connected(&["--epoch", "50ms", "--memory", "8M"]) else { return };
    for name in ["one", "two", "three"] {
        mount.copied(name, vec![1; 100_000]);
    }
    grant(&host, 150_000, 300);
    wait_until("the grant is kept", || mount.stats()["limit_by"] == "host");
    assert_eq!(mount.stat("limit_bytes"), 150_000);
    assert!(mount.stat("cached_bytes") <= 150_000, "{}", mount.stats());
    // The remaining copies are still read.
    assert_eq!(mount.read("one").len(), 100_000);
    grant(&host, 150_000, 0);
    wait_until("the lease is over", || mount.stats()["limit_by"] == "memory");
    assert_eq!(mount.stat("limit_bytes"), 8 << 20);
    mount.wait_for_copy("one");
}

/// The host's daemon is restarted, and a later one may send messages that this guest does not know.
#[test]
fn a_host_that_goes_costs_nothing_and_one_that_comes_is_heard() {
    let folder = flowstone_testkit::TempDir::new().unwrap();
    let path = folder.path().join("host");
    let agent = path.display().to_string();
    let options = ["--epoch", "50ms", "--agent", &agent];
    let Some(mount) = Mount::start(&options) else { return };
    mount.copied("it", "text");
    for bytes in [1 << 20, 2 << 20] {
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let (host, _) = listener.accept().unwrap();
        writeln!(&host, "{{\"later\":{{}}}}\nno JSON").unwrap();
        grant(&host, bytes, 300);
        wait_until("the grant is kept", || mount.stat("limit_bytes") == bytes);
    }
    assert_eq!(mount.read("it"), "text");
}

/// The host listens to another port of the same VM.
#[test]
fn a_cache_that_the_host_does_not_hear_says_so_once_and_goes_on_reporting() {
    let Some((mut mount, host)) = connected(&["--epoch", "50ms", "--memory", "8M"]) else { return };
    for _ in 0..3 {
        writeln!(&host, r#"{{"refused":{{"reason":"another one is heard"}}}}"#).unwrap();
    }
    wait_until("it is said", || mount.daemon().stderr().contains("another one is heard"));
    grant(&host, 1 << 20, 300);
    wait_until("the grant is kept", || mount.stat("limit_bytes") == 1 << 20);
    assert_eq!(mount.daemon().stderr().matches("another one is heard").count(), 1);
    assert!(BufReader::new(host).lines().next().unwrap().unwrap().contains("report"));
}
