//! An operator who finds a daemon dead checks the image, and perhaps repairs it, before it is
//! served again. Whatever the kill has left, no completed request is lost, and the requests in
//! flight are still executed.

use std::time::Duration;

use fastrand::Rng;
use flowstone_testkit::load::{Limit, LoadOptions, run};

use crate::fixture::{Place, stop};

/// Duration of the load, during which its daemons are killed.
const LOAD: Duration = Duration::from_secs(4);
const DISK: &str = "24M";

/// Runs `check`. It waits for the ring of the killed daemon to release the image, but not for ever:
/// on a busy disk the last sync of the daemon sometimes takes longer.
fn check(place: &Place, options: &[&str], name: &str) -> (i32, String) {
    for _ in 0..12 {
        let output = place.run(&[&["check"], options, &[name]].concat());
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        if !said.contains("another process is using this image") {
            return (output.status.code().unwrap(), said);
        }
    }
    panic!("{name} is never free");
}

/// Kills the daemon under a verified load repeatedly; `look` accesses the image before the next one
/// starts. The last one stops in order; then `check` returns one of `codes`.
fn killed_and_looked_at(name: &str, codes: &[i32], look: impl Fn(&Place, u32)) {
    let place = Place::new();
    let seed = fastrand::u64(..);
    println!("{name}: seed {seed}");
    let mut random = Rng::with_seed(seed);
    place.succeed(&["create", "--size", DISK, name]);
    let serve = || place.serve(&["--queues", "2", "--pollers", "per-queue", name]);
    let mut daemon = serve();
    let load = |reconnect| {
        let mut options = LoadOptions::new(place.path("disk.sock")).workload("mix").iodepth(8);
        options.client.queues = 2;
        options.verify = true;
        options.verify_final = true;
        options.discard_zeroes = true;
        options.flush_every = 30;
        options.seed = seed;
        options.reconnect = reconnect;
        options.limit = Limit::Time { ramp: Duration::ZERO, runtime: LOAD };
        options
    };
    std::thread::scope(|scope| {
        let options = load(Some(Duration::from_secs(60)));
        let guest = scope.spawn(move || run(&options));
        let mut kill = 0;
        while !guest.is_finished() {
            std::thread::sleep(Duration::from_millis(random.u64(100..700)));
            daemon.kill().unwrap();
            look(&place, kill);
            kill += 1;
            daemon = serve();
        }
        let report = guest.join().unwrap().unwrap();
        assert_eq!(report.errors, 0, "{name}, seed {seed}");
        assert!(report.reconnects > 0, "{name}, seed {seed}: no kill under load");
    });
    stop(daemon);
    let (code, said) = check(&place, &["--data"], name);
    assert!(codes.contains(&code), "{name}, seed {seed}: {code}: {said}");
}

const FORMATS: [&str; 3] = ["disk.raw", "disk.qcow2", "disk.flow"];

#[test]
fn check_finds_no_error_behind_a_kill() {
    for name in FORMATS {
        // A kill after a commit of a qcow2 image's entries, but before their old clusters are
        // uncounted, leaves a leak, which stays until a repair (docs/qcow2.md, case by case).
        let codes: &[i32] = if name == "disk.qcow2" { &[0, 3] } else { &[0] };
        killed_and_looked_at(name, codes, |place, kill| {
            let (code, said) = check(place, &["--data"], name);
            assert!(matches!(code, 0 | 3), "{name}, kill {kill}: {code}: {said}");
        });
    }
}

#[test]
fn check_repair_behind_a_kill_loses_nothing() {
    for name in FORMATS {
        killed_and_looked_at(name, &[0], |place, kill| {
            let (code, said) = check(place, &["--data", "--repair"], name);
            assert_eq!(code, 0, "{name}, kill {kill}: {said}");
            // There is nothing left to repair.
            let (code, said) = check(place, &["--data"], name);
            assert_eq!(code, 0, "{name}, kill {kill}, again: {said}");
        });
    }
}
