//! Disks that contend for a host device.

use std::sync::atomic::{AtomicBool, Ordering};

use flowstone_testkit::load::{LoadOptions, LoadReport, run};
use flowstone_testkit::{Client, ClientOptions, Daemon, Status, wait_until};

use crate::fixture::{Over, Place, stop};
use crate::many_disks::{config, serve};

/// Serves two images of a format on the file system of the build; the engine is one used on
/// devices.
/// With a thread for each queue a disk wakes the thread of another one.
const THREADS: [&str; 2] = ["pollers = 'per-queue'\n", "pollers = 1\n"];

fn serve_two(place: &Place, suffix: &str, threads: &str) -> Daemon {
    let line = |name: &str| {
        let image = format!("{name}.{suffix}");
        place.succeed(&["create", "--size", "64M", &image]);
        format!("image = {:?}\nengine = 'uring'", place.text(&image))
    };
    let file = config(place, &[("hog", &line("hog")), ("modest", &line("modest"))]);
    std::fs::write(&file, threads.to_owned() + &std::fs::read_to_string(&file).unwrap()).unwrap();
    serve(&file, 2)
}

fn load(place: &Place, name: &str, workload: &str, iodepth: u16) -> LoadOptions {
    let socket = place.path(&format!("{name}.sock"));
    LoadOptions::new(socket).workload(workload).iodepth(iodepth)
}

fn checked(report: flowstone_testkit::Result<LoadReport>) -> LoadReport {
    let report = report.unwrap();
    assert_eq!(report.errors, 0, "{:?}", report.first_error);
    report
}

/// Writes of a disk so far.
struct Counts {
    asked: u64,
    /// Those that were held back at the device.
    waited: u64,
}

impl Counts {
    fn of(place: &Place, name: &str) -> Self {
        let stats = place.disk_stats(name);
        let asked = stats["total"]["requests"]["write"].as_u64().unwrap();
        Self { asked, waited: stats["held_back"].as_u64().unwrap() }
    }

    fn since(&self, before: &Self) -> Self {
        Self { asked: self.asked - before.asked, waited: self.waited - before.waited }
    }
}

/// The disk that wants more than its part waits. (The shares are measured by `flowstone-bench
/// qos`.)
#[test]
fn a_hog_waits_and_its_neighbour_does_not_and_alone_nobody_does() {
    for threads in THREADS {
        a_hog_waits(threads);
    }
}

fn a_hog_waits(threads: &str) {
    let place = Place::new();
    let daemon = serve_two(&place, "raw", threads);
    // Both were active when they were opened, and are for a moment after that.
    wait_until("alone it does not wait", || {
        let before = place.disk_stats("hog")["held_back"].clone();
        checked(run(&load(&place, "hog", "randwrite", 64).ops(5000)));
        place.disk_stats("hog")["held_back"] == before
    });
    // Both run until the one has waited often, and the other one seldom meanwhile.
    let now = || ["hog", "modest"].map(|name| Counts::of(&place, name));
    let mut before = now();
    let is_over = || {
        let now = now();
        let [hog, modest] = [0, 1].map(|disk: usize| now[disk].since(&before[disk]));
        let is_while = hog.waited >= 100 && modest.asked >= 100;
        if is_while {
            before = now;
        }
        is_while && modest.waited < modest.asked / 10
    };
    let is_enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (name, iodepth) in [("hog", 64), ("modest", 1)] {
            let options = load(&place, name, "randwrite", iodepth).ops(200 * u64::from(iodepth));
            let is_enough = &is_enough;
            scope.spawn(move || {
                while !is_enough.load(Ordering::Relaxed) {
                    checked(run(&options));
                }
            });
        }
        let _over = Over(&is_enough);
        wait_until("it waits, and the other one does not", is_over);
    });
    let hog = place.disk_stats("hog");
    assert!(hog["held_back_s"].as_f64().unwrap() > 0.0, "{hog}");
    let set = ["disk", "set", "--control", &place.text("control.sock"), "hog", "--weight", "10"];
    assert_eq!(place.succeed(&set), "hog: limit off, weight 10\n");
    assert_eq!(place.disk_stats("hog")["weight"], 10);
    stop(daemon);
}

/// Both clients are this process; the configuration assigns their VMs.
#[test]
fn devices_hear_of_the_vms_that_use_their_disks() {
    let place = Place::new();
    let line = |name: &str, vm: &str| {
        let image = format!("{name}.raw");
        place.succeed(&["create", "--size", "64M", &image]);
        let of_vm = "name=of-two,cpus=4,memory=2G";
        let vm = if vm.is_empty() { of_vm } else { vm };
        format!("image = {:?}\nvm = {vm:?}\nweight = 300", place.text(&image))
    };
    let disks = [("a", ""), ("b", "name=said,cpus=2,memory=1G,weight=250"), ("c", "")];
    let lines = disks.map(|(name, vm)| (name, line(name, vm)));
    let disks: Vec<(&str, &str)> = lines.iter().map(|(name, line)| (*name, &**line)).collect();
    let daemon = serve(&config(&place, &disks), 3);
    let clients = ["a", "b", "c"].map(|name| {
        let path = place.path(&format!("{name}.sock"));
        let mut client = Client::connect(ClientOptions::new(path)).unwrap();
        assert_eq!(client.write(0, &[7; 4096]).unwrap(), Status::Ok);
        assert_eq!(client.flush().unwrap(), Status::Ok);
        client
    });
    // Reported by the resource monitor, within a second.
    wait_until("the devices know", || {
        let vms = place.stats()["vms"].clone();
        let weight = |name: &str| {
            let vms = vms.as_array().unwrap();
            vms.iter().find(|vm| vm["name"] == name).map(|vm| vm["device_weight"].clone())
        };
        weight("of-two") == Some(800.into()) && weight("said") == Some(250.into())
    });
    for (disk, vm) in [("a", "of-two"), ("b", "said"), ("c", "of-two")] {
        assert_eq!(place.disk_stats(disk)["vm"], vm);
    }
    let share = place.disk_stats("a")["device_share"].clone();
    assert_eq!((&share["weight"], &share["held_back"]), (&300.into(), &0.into()));
    assert!(share["syncs"].as_u64().unwrap() > 0, "{share}");
    drop(clients);
    stop(daemon);
}

/// Every request below an image passes the scheduler: maintenance, commits and discards as well.
#[test]
fn data_is_right_on_every_format_while_disks_contend() {
    for suffix in ["raw", "qcow2", "flow"] {
        let place = Place::new();
        let daemon = serve_two(&place, suffix, THREADS[1]);
        let verified = |name| {
            let mut options = load(&place, name, "mix", 32).ops(3000);
            options.client = options.client.queues(2);
            options.block_bytes = 16384;
            (options.span_bytes, options.flush_every) = (16 << 20, 50);
            (options.verify, options.verify_final, options.discard_zeroes) = (true, true, true);
            options
        };
        let held_back = |name| place.disk_stats(name)["held_back"].as_u64().unwrap();
        // One load may be over before the other one begins.
        wait_until("disks contend", || {
            std::thread::scope(|scope| {
                let loads = ["hog", "modest"].map(|name| {
                    let options = verified(name);
                    scope.spawn(move || checked(run(&options)))
                });
                loads.into_iter().for_each(|load| drop(load.join().unwrap()));
            });
            held_back("hog") + held_back("modest") > 0
        });
        stop(daemon);
        for name in ["hog", "modest"] {
            place.succeed(&["check", "--data", &format!("{name}.{suffix}")]);
        }
    }
}
