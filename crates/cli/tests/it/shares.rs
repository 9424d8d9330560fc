//! VMs on a slow device that notes the order of its requests: a file system of this process, which
//! serves one request after the other. Numbers and orders of requests are compared, no rates.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flowstone_testkit::fuse::{Call, FuseHost};
use flowstone_testkit::truth::{Holds, Truth, run};
use flowstone_testkit::{Client, ClientOptions, Daemon, Request, Status, wait_for, wait_until};
use serde_json::Value;

use crate::fixture::{Over, Place, stop};
use crate::many_disks::{config, serve};

const BLOCK: usize = 4096;
/// Blocks of an image.
const BLOCKS: u64 = 64 << 20 >> 12;
/// Time of the device for a request.
const SERVICE: Duration = Duration::from_micros(500);
/// Number of requests in which parts are looked at.
const WINDOW: usize = 400;
/// A weight of 100, and four times as much.
const LIGHT: &str = "cpus=1,memory=1G";
const HEAVY: &str = "cpus=4,memory=1G";

/// A folder on the device.
struct Slow {
    // Before the folder: it is mounted there.
    device: FuseHost,
    place: Place,
}

/// A disk: its name, its VM, and the VM's size.
type Disk = (&'static str, &'static str, &'static str);

impl Slow {
    fn new() -> Option<Self> {
        let place = Place::new();
        let [at, behind] = ["at", "behind"].map(|name| place.path(name));
        fs::create_dir(&at).unwrap();
        fs::create_dir(&behind).unwrap();
        let device = FuseHost::or_skip(FuseHost::mount_device(&at, &behind))?;
        Some(Self { device, place })
    }

    /// Makes an image with ext4 for each disk, with one journal of 4 MiB.
    fn make(&self, disks: &[Disk]) {
        for (name, ..) in disks {
            let image = self.image(name);
            self.place.succeed(&["create", "--size", "64M", &image]);
            run("mkfs.ext4", &["-q", "-F", "-b", "4096", "-J", "size=4", &image], "");
        }
    }

    fn image(&self, disk: &str) -> String {
        self.place.text(&format!("at/{disk}.raw"))
    }

    /// Serves the disks, and slows the device down when the VMs and layouts are known.
    fn serve(&self, disks: &[Disk]) -> (Daemon, Vec<Client>) {
        let line = |(name, vm, size): &Disk| {
            let image = self.image(name);
            (*name, format!("image = {image:?}\nvm = \"name={vm},{size}\""))
        };
        let lines: Vec<_> = disks.iter().map(line).collect();
        let lines: Vec<_> = lines.iter().map(|(name, line)| (*name, line.as_str())).collect();
        let daemon = serve(&config(&self.place, &lines), disks.len());
        let connect = |(name, ..): &Disk| {
            let options = ClientOptions::new(self.place.path(&format!("{name}.sock")));
            let (slots, slot_bytes, queue_size) = (128, BLOCK, 256);
            Client::connect(ClientOptions { slots, slot_bytes, queue_size, ..options }).unwrap()
        };
        let clients = disks.iter().map(connect).collect();
        wait_until("the device knows the VMs", || {
            let vms = self.place.stats()["vms"].clone();
            let knows = |(_, vm, size): &Disk| {
                let weight = if *size == HEAVY { 400 } else { 100 };
                let vms = vms.as_array().unwrap();
                vms.iter().any(|it| it["name"] == *vm && it["device_weight"] == weight)
            };
            disks.iter().all(knows)
        });
        for (name, ..) in disks {
            wait_until("the layout is known", || {
                let control = self.place.text("control.sock");
                let said = self.place.succeed(&["stats", "--control", &control, "--layout", name]);
                said.starts_with("ext4 at sector 0")
            });
        }
        self.device.link(Duration::ZERO, (BLOCK as f64 / SERVICE.as_secs_f64()) as u64);
        (daemon, clients)
    }

    /// Waits until the disk has about this part of the requests that the device gets.
    fn wait_for_part(&self, disk: &str, part: f64, tolerance: f64) {
        let (mut from, mut seen) = (self.device.arrivals(0).len(), Vec::new());
        wait_for(&format!("{disk} has {part} of {WINDOW} requests"), || {
            let arrivals = self.device.arrivals(from);
            if arrivals.len() < WINDOW {
                return Err(seen.clone());
            }
            from += arrivals.len();
            let own = arrivals.iter().filter(|it| it.file == format!("{disk}.raw")).count();
            let of_all = own as f64 / arrivals.len() as f64;
            seen.push(of_all);
            if (of_all - part).abs() <= tolerance { Ok(()) } else { Err(seen.clone()) }
        });
    }

    /// Returns the `device_share` of each disk.
    fn shares(&self) -> Vec<Value> {
        let stats = self.place.stats();
        let disks = stats["disks"].as_array().unwrap();
        disks.iter().map(|disk| disk["device_share"].clone()).collect()
    }

    /// Returns whether requests of each disk wait, the limit of requests in flight is about used
    /// up, and the first disk has most of them.
    fn is_the_bottleneck(&self) -> Result<(), Vec<Value>> {
        let shares = self.shares();
        let all = |key: &str| -> Vec<u64> {
            shares.iter().map(|share| share[key].as_u64().unwrap()).collect()
        };
        let (in_flight, depth) = (all("in_flight"), all("depth")[0]);
        let of_light = in_flight[1..].iter().sum::<u64>();
        let is_used = 4 * (in_flight[0] + of_light) > 3 * depth && depth > 0;
        let waits = [all("waiting"), all("held_back")].iter().flatten().all(|it| *it > 0);
        if is_used && waits && in_flight[0] > 2 * of_light { Ok(()) } else { Err(shares) }
    }

    /// Ends the trouble, and the daemon.
    fn end(self, daemon: Daemon) {
        self.device.recover();
        stop(daemon);
    }
}

/// Blocks of an image that hold the same.
fn blocks(image: &str, holds: Option<Holds>) -> Vec<u64> {
    let truth = Truth::of_ext4(image);
    // The first block of a journal tells its size, and is read again when it is written.
    let those = (8..BLOCKS).filter(|block| truth.at(block * BLOCK as u64) == holds);
    those.skip(1).collect()
}

/// Keeps this many requests in flight until the flag is set.
fn keep(
    client: &mut Client,
    depth: usize,
    is_over: &AtomicBool,
    mut next: impl FnMut() -> Request<'static>,
) {
    while !is_over.load(Ordering::Relaxed) {
        while client.in_flight(0) < depth {
            client.submit(0, &next()).unwrap();
        }
        client.notify(0).unwrap();
        assert_eq!(client.wait(0).unwrap().status, Status::Ok);
    }
    assert!(client.drain(0).unwrap().iter().all(|done| done.status == Status::Ok));
}

fn write(block: u64) -> Request<'static> {
    Request::write(block * BLOCK as u64 / 512, &[1; BLOCK])
}

/// Writes these blocks in turn.
fn writes(blocks: Vec<u64>) -> impl FnMut() -> Request<'static> {
    let mut turns = blocks.into_iter().cycle();
    move || write(turns.next().unwrap())
}

/// Reads all blocks in turn.
fn reads() -> impl FnMut() -> Request<'static> {
    let mut turns = (0..BLOCKS).cycle();
    move || Request::read(turns.next().unwrap() * BLOCK as u64 / 512, BLOCK)
}

#[test]
fn vms_are_served_by_their_weights_however_many_disks_they_have() {
    const DISKS: [Disk; 5] = [
        ("heavy", "heavy", HEAVY),
        ("light0", "light", LIGHT),
        ("light1", "light", LIGHT),
        ("light2", "light", LIGHT),
        ("light3", "light", LIGHT),
    ];
    for disks in [&DISKS[..2], &DISKS] {
        let Some(slow) = Slow::new() else { return };
        slow.make(disks);
        let (daemon, mut clients) = slow.serve(disks);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for client in &mut clients {
                scope.spawn(|| keep(client, 32, &is_over, reads()));
            }
            let _over = Over(&is_over);
            slow.wait_for_part("heavy", 0.8, 0.04);
            wait_for("the device is seen to be the bottleneck", || slow.is_the_bottleneck());
        });
        wait_for("nothing is there", || {
            let shares = slow.shares();
            let has_none =
                |share: &Value| ["in_flight", "waiting", "depth"].map(|it| &share[it]) == [0; 3];
            if shares.iter().all(has_none) { Ok(()) } else { Err(shares) }
        });
        drop(clients);
        slow.end(daemon);
    }
}

#[test]
fn a_vm_whose_requests_are_all_commits_gets_its_weight() {
    const DISKS: [Disk; 2] = [("all", "all", LIGHT), ("usual", "usual", LIGHT)];
    let Some(slow) = Slow::new() else { return };
    slow.make(&DISKS);
    let journal = blocks(&slow.image("all"), Some(Holds::Journal));
    let data = blocks(&slow.image("usual"), None);
    let (daemon, mut clients) = slow.serve(&DISKS);
    // With the smaller depth the device has room for all requests of the other one, which has fewer
    // than a commit may be ahead by: uncharged, the commits take 15 of 16.
    for (depth, part, tolerance) in [(32, 0.5, 0.08), (8, 0.5, 0.08)] {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (loads, is_over) = ([(&journal, 32), (&data, depth)], &is_over);
            for (client, (blocks, depth)) in clients.iter_mut().zip(loads) {
                scope.spawn(move || keep(client, depth, is_over, writes(blocks.clone())));
            }
            let _over = Over(is_over);
            slow.wait_for_part("all", part, tolerance);
        });
    }
    let classes = slow.place.disk_stats("all")["classes"].clone();
    assert!(classes["journal"]["writes"].as_u64() >= Some(WINDOW as u64 / 2), "{classes}");
    assert_eq!(classes["data"]["writes"], 0, "{classes}");
    drop(clients);
    slow.end(daemon);
}

/// Another VM contends, so requests of the disk wait in the daemon.
#[test]
fn a_commit_is_sent_before_the_bulk_writes_that_wait() {
    const DISKS: [Disk; 2] = [("bulk", "bulk", LIGHT), ("other", "other", LIGHT)];
    const BULK: usize = 96;
    let Some(slow) = Slow::new() else { return };
    slow.make(&DISKS);
    let [journal, data] = [Some(Holds::Journal), None].map(|it| blocks(&slow.image("bulk"), it));
    let (daemon, mut clients) = slow.serve(&DISKS);
    let [bulk, other] = &mut clients[..] else { unreachable!("two disks") };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| keep(other, 4, &is_over, reads()));
        let _over = Over(&is_over);
        // Returns the number of bulk writes that arrive after a write that was submitted last.
        let mut overtaken = |last: u64| {
            let from = slow.device.arrivals(0).len();
            for block in &data[..BULK] {
                bulk.submit(0, &write(*block)).unwrap();
            }
            bulk.submit(0, &write(last)).unwrap();
            bulk.notify(0).unwrap();
            assert!(bulk.drain(0).unwrap().iter().all(|done| done.status == Status::Ok));
            // The daemon also reads the layout.
            let mut own = slow.device.arrivals(from);
            own.retain(|it| it.file == "bulk.raw" && it.call == Call::Write);
            assert_eq!(own.len(), BULK + 1);
            BULK - own.iter().position(|it| it.offset == last * BLOCK as u64).unwrap()
        };
        wait_until("a commit overtakes most of them", || overtaken(journal[0]) > BULK / 2);
        // Sixteen threads send requests of a file.
        for _ in 0..4 {
            assert!(overtaken(data[BULK]) < BULK / 2);
        }
    });
    drop(clients);
    slow.end(daemon);
}
