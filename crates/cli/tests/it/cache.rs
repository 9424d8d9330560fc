//! The cache shared by all disks of a daemon, seen by operators and guests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use flowstone_testkit::{
    Client, ClientOptions, Daemon, DaemonCommand, Request, Status, skip, wait_for, wait_until,
};
use serde_json::Value;

use crate::fixture::{Place, pattern, stop};

/// I/O priority of jbd2: best effort, level 3.
const JOURNAL_IOPRIO: u32 = 0x4003;

fn read(client: &mut Client, sector: u64, bytes: usize) -> Vec<u8> {
    let mut data = vec![0xcc; bytes];
    assert_eq!(client.read(sector, &mut data).unwrap(), Status::Ok);
    data
}

fn number(report: &Value, key: &str) -> u64 {
    report[key].as_u64().unwrap_or_else(|| panic!("no {key} in {report}"))
}

/// Requests below the cache are not visible here, so the daemon has to report them.
#[test]
fn what_is_read_again_comes_from_memory_on_every_format() {
    for image in ["disk.raw", "disk.qcow2", "disk.flow"] {
        let place = Place::new();
        place.succeed(&["create", "--size", "64M", image]);
        let daemon = place.serve(&["--cache", "8M", "--name", "disk", image]);
        let mut client = place.client();
        let data = pattern(65536, 7);
        assert_eq!(client.write(128, &data).unwrap(), Status::Ok);
        for _ in 0..2 {
            assert_eq!(read(&mut client, 128, 65536), data);
            assert_eq!(read(&mut client, 80_000, 4096), [0; 4096]);
        }
        let stats = place.stats();
        let (cache, disk) = (&stats["cache"], &stats["disks"][0]["cache"]);
        assert_eq!(cache["policy"], "default");
        assert_eq!((number(cache, "bytes"), number(cache, "target_bytes")), (17 << 12, 8 << 20));
        let counted = ["hits", "misses", "insertions", "bytes"].map(|key| number(disk, key));
        assert_eq!(counted, [33, 1, 17, 17 << 12], "{disk}");
        let control = place.text("control.sock");
        let said = place.succeed(&["stats", "--control", &control]);
        assert!(said.contains("cache  68 KiB of 8 MiB, default"), "{said}");
        assert!(said.contains(", hits 33, insertions 17, misses 1"), "{said}");
        drop(client);
        stop(daemon);
        // Nothing was only in memory.
        let daemon = place.serve(&["--name", "disk", image]);
        assert_eq!(read(&mut place.client(), 128, 65536), data);
        assert!(
            place.stats().get("cache").is_none()
                && place.stats()["disks"][0].get("cache").is_none()
        );
        stop(daemon);
    }
}

/// Without a known file system, a journal is recognised by the priority of its writes.
#[test]
fn journals_stay_out_of_the_cache_unless_that_is_switched_off() {
    for (pdc, held) in [("on", 0), ("off", 4096)] {
        let place = Place::new();
        place.image("8M");
        let daemon = place.serve(&["--cache", "4M", "--pdc", pdc, "disk.raw"]);
        let mut client = place.client();
        let request = Request::write(800, &[1; 4096]).with_ioprio(JOURNAL_IOPRIO);
        assert_eq!(client.request(&request).unwrap().status, Status::Ok);
        let stats = place.stats();
        assert_eq!(stats["disks"][0]["classes"]["journal"]["writes"], 1);
        assert_eq!(number(&stats["cache"], "bytes"), held, "--pdc {pdc}");
        drop(client);
        stop(daemon);
    }
}

fn serve_file(place: &Place, config: &str) -> Daemon {
    DaemonCommand::new(env!("CARGO_BIN_EXE_flowstone"))
        .args(["serve", "--config", &place.text(config)])
        .spawn()
        .unwrap()
}

fn connect(place: &Place, name: &str) -> Client {
    let path = place.path(&format!("{name}.sock"));
    wait_until("the socket", || path.exists());
    Client::connect(ClientOptions::new(path)).unwrap()
}

/// Cache space used by one disk is not available to another one.
#[test]
fn disks_of_a_file_share_one_cache() {
    let place = Place::new();
    let disk = |name: &str| {
        let socket = place.text(&format!("{name}.sock"));
        format!("[[disk]]\nname = '{name}'\nbackend = 'mem:8M'\nsocket = '{socket}'\n")
    };
    let head = format!("control = '{}'\ncache = '1M'\n", place.text("control.sock"));
    fs::write(place.path("two.toml"), head + &disk("a") + &disk("b")).unwrap();
    let daemon = serve_file(&place, "two.toml");
    let mut clients = ["a", "b"].map(|name| connect(&place, name));
    assert_eq!(clients[0].write(0, &pattern(65536, 1)).unwrap(), Status::Ok);
    // More than the cache holds, repeatedly: it earns the space that `a` does not use.
    for part in (0..8).cycle().take(64) {
        assert_eq!(clients[1].write(part % 5 * 512, &pattern(262_144, 2)).unwrap(), Status::Ok);
        read(&mut clients[1], part % 3 * 512, 262_144);
    }
    assert_eq!(read(&mut clients[0], 0, 65536), pattern(65536, 1));
    let stats = place.stats();
    let [a, b] = [0, 1].map(|index| stats["disks"][index]["cache"].clone());
    assert!(number(&b, "bytes") > 700 << 10, "{b}");
    assert!(number(&a, "bytes") + number(&b, "bytes") <= 1 << 20, "{a} {b}");
    assert!(number(&stats["cache"], "bytes") <= 1 << 20);
    drop(clients);
    stop(daemon);
}

/// Both clients are this process; the configuration overrides that for one of them.
#[test]
fn disks_belong_to_vms_by_the_process_that_connects_and_by_the_configuration() {
    let place = Place::new();
    let disk = |name: &str, vm: &str| {
        let socket = place.text(&format!("{name}.sock"));
        format!("[[disk]]\nname = '{name}'\nbackend = 'mem:8M'\nsocket = '{socket}'\nvm = '{vm}'\n")
    };
    let head = format!("control = '{}'\ncache = '1M'\n", place.text("control.sock"));
    let disks = [disk("a", ""), disk("b", ""), disk("c", "name=heavy,cpus=3,memory=96M")].concat();
    fs::write(place.path("vms.toml"), head + &disks).unwrap();
    let daemon = serve_file(&place, "vms.toml");
    assert_eq!(place.stats()["vms"], Value::Array(Vec::new()), "nobody is connected");
    let clients = ["a", "b", "c"].map(|name| connect(&place, name));
    wait_until("the cache hears of VMs", || place.stats()["cache"]["vms"] == 2);
    assert!(daemon.stderr().contains("vm=\"heavy\""));
    let vms = place.stats()["vms"].clone();
    let vms = vms.as_array().unwrap();
    let of =
        |disks: &[&str]| vms.iter().find(|vm| vm["disks"] == serde_json::json!(disks)).unwrap();
    let (ours, heavy) = (of(&["a", "b"]), of(&["c"]));
    assert_eq!((number(ours, "pid"), number(ours, "cpus")), (std::process::id().into(), 1));
    assert_eq!((&heavy["name"], number(heavy, "cpus")), (&"heavy".into(), 3));
    assert_eq!(number(heavy, "memory_bytes"), 96 << 20);
    let ratio = 3.0 * f64::from(96 << 20) / number(ours, "memory_bytes") as f64;
    let weight = |vm: &Value| vm["weight"].as_f64().unwrap();
    assert!((weight(heavy) / weight(ours) - ratio).abs() < 0.001 * ratio, "{vms:?}");
    assert_eq!(number(&ours["cache"], "hits"), 0);
    let printed = place.succeed(&["stats", "--control", &place.text("control.sock")]);
    assert!(printed.contains("\nvm     heavy: 3 vCPUs, 96 MiB, a weight of"), "{printed}");
    drop(clients);
    stop(daemon);
}

/// Reads a block until it comes from the cache. Returns the number of reads before that.
fn reads_before_a_hit(place: &Place, client: &mut Client, disk: usize, sector: u64) -> u64 {
    let hits = || number(&place.stats()["disks"][disk]["cache"], "hits");
    let before = hits();
    for reads in 0..64 {
        read(client, sector, 4096);
        if hits() > before {
            return reads;
        }
    }
    panic!("it is not kept");
}

/// The paper's rules: a block is kept from its Nth access on, not before, with room for all.
#[test]
fn a_block_is_kept_when_its_accesses_reach_the_threshold() {
    let place = Place::new();
    place.image("8M");
    for (policy, threshold, reads) in [
        ("multicache-count", &[][..], 2),
        ("multicache-count", &["--freq-threshold", "1"], 1),
        ("multicache-count", &["--freq-threshold", "5"], 5),
        ("multicache-weight", &["--freq-threshold", "3"], 3),
    ] {
        let args = [&["--cache", "4M", "--cache-policy", policy], threshold, &["disk.raw"]];
        let daemon = place.serve(&args.concat());
        let mut client = place.client();
        assert_eq!(
            reads_before_a_hit(&place, &mut client, 0, 800),
            reads,
            "{policy} {threshold:?}"
        );
        let cache = place.stats()["disks"][0]["cache"].clone();
        let counted = ["insertions", "refusals", "misses", "bytes"].map(|key| number(&cache, key));
        assert_eq!(counted, [1, reads - 1, reads, 4096], "{policy} {threshold:?}");
        drop(client);
        stop(daemon);
    }
}

/// By the paper's weight an access of one of two equal VMs counts a quarter.
#[test]
fn the_threshold_of_weights_counts_accesses_by_a_vms_part() {
    let place = Place::new();
    let disk = |name: &str| {
        let socket = place.text(&format!("{name}.sock"));
        let vm = format!("name={name},cpus=2,memory=64M");
        format!("[[disk]]\nname = '{name}'\nbackend = 'mem:8M'\nsocket = '{socket}'\nvm = '{vm}'\n")
    };
    let disks = disk("a") + &disk("b");
    for (threshold, reads) in [("", 8), ("freq-threshold = '0.5'\n", 2)] {
        let head = format!("control = '{}'\ncache = '1M'\n", place.text("control.sock"));
        let policy = "cache-policy = 'multicache-weight'\n";
        fs::write(place.path("two.toml"), head + policy + threshold + &disks).unwrap();
        let daemon = serve_file(&place, "two.toml");
        let mut clients = ["a", "b"].map(|name| connect(&place, name));
        wait_until("the cache hears of VMs", || place.stats()["cache"]["vms"] == 2);
        for (disk, client) in clients.iter_mut().enumerate() {
            assert_eq!(reads_before_a_hit(&place, client, disk, 800), reads, "{threshold}");
        }
        drop(clients);
        stop(daemon);
    }
}

#[test]
fn a_cache_that_cannot_be_is_refused_with_what_to_do() {
    let place = Place::new();
    let serve = ["serve", "--socket", "s", "--backend", "mem:1M"];
    for (args, expected) in [
        (&["--cache", "4K"][..], "use a size from 1 MiB to 4 TiB"),
        (
            &["--cache", "1M", "--cache-policy", "lru"],
            "[possible values: default, multicache-count, multicache-weight]",
        ),
        (&["--cache-policy", "multicache"], "without a cache; give --cache"),
        (&["--cache", "1M", "--freq-threshold", "3"], "freq-threshold without a rule"),
        (&["--cache", "1M", "--freq-threshold", "0"], "use a number above 0"),
        (&["--pdc", "perhaps"], "[possible values: on, off]"),
    ] {
        let output = place.run(&[&serve[..], args].concat());
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {errors}");
        assert!(errors.contains(expected), "{args:?}: {errors}");
    }
}

/// A memory cgroup with a limit, for processes that a test starts.
pub struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// Returns `None`, and says why, if cgroups cannot be made.
    pub fn new(limit: u64) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = format!("flowstone-test-{}-{number}", std::process::id());
        let mut why = String::new();
        for (parent, file) in
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]
        {
            let group = Self(Path::new(parent).join(&folder));
            let made = fs::create_dir(&group.0)
                .and_then(|()| fs::write(group.0.join(file), limit.to_string()));
            match made {
                Ok(()) => return Some(group),
                Err(error) => why += &format!("; {parent}: {error}"),
            }
        }
        skip(format_args!("memory cgroups cannot be made here{why}"));
        None
    }

    /// Bytes that count against the limit.
    fn used(&self) -> u64 {
        let read = |name| fs::read_to_string(self.0.join(name));
        let text = read("memory.usage_in_bytes").or_else(|_| read("memory.current")).unwrap();
        text.trim().parse().unwrap()
    }

    /// The file that lists its processes.
    pub fn processes(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }

    /// A shell command that runs `command` in the group.
    pub fn run(&self, command: &str) -> String {
        format!("echo $$ >{}; {command}", self.processes().display())
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Its processes have ended.
        let _ = fs::remove_dir(&self.0);
    }
}

/// Another process in the daemon's cgroup really uses memory.
#[test]
fn memory_is_given_back_when_the_daemons_cgroup_runs_short() {
    const LIMIT: u64 = 96 << 20;
    let Some(group) = MemoryGroup::new(LIMIT) else { return };
    let place = Place::new();
    let image = place.image("64M");
    fs::write(&image, pattern(64 << 20, 5)).unwrap();
    let (socket, control) = (place.text("disk.sock"), place.text("control.sock"));
    let serve = format!(
        "exec {} serve --cache 64M --socket {socket} --control {control} {}",
        env!("CARGO_BIN_EXE_flowstone"),
        image.display()
    );
    let daemon = DaemonCommand::new("sh").args(["-c", &group.run(&serve)]).spawn().unwrap();
    let mut client = place.client();
    let step = 256 << 10;
    for at in (0..56 << 20).step_by(step) {
        assert_eq!(read(&mut client, at as u64 / 512, step).len(), step);
    }
    let cache = place.stats()["cache"].clone();
    assert!(
        number(&cache, "bytes") > 50 << 20 && cache["decisions"] == serde_json::json!([]),
        "{cache}"
    );

    let hog = format!("/dev/shm/flowstone-test-{}", std::process::id());
    // All but 4 MiB, which is less than a sixteenth, however much the daemon uses meanwhile.
    let take = group.run(&format!("head -c 1M /dev/zero >>{hog}"));
    let cache = wait_for("the cache gives memory back", || {
        let cache = place.stats()["cache"].clone();
        let target = number(&cache, "target_bytes");
        let is_undecided = cache["decisions"] == serde_json::json!([]);
        // Blocks above the new size are dropped a moment later; the decision is listed then.
        if target < 56 << 20 && number(&cache, "bytes") <= target && !is_undecided {
            return Ok(cache);
        }
        if is_undecided && group.used() < LIMIT - (4 << 20) {
            assert!(Command::new("sh").args(["-c", &take]).status().unwrap().success());
        }
        Err(cache)
    });
    fs::remove_file(&hog).unwrap();
    let decision = &cache["decisions"][0];
    assert_eq!(number(decision, "from_bytes"), 64 << 20);
    assert!(decision["reason"].as_str().unwrap().contains("of 96 MiB of memory are available"));
    assert_eq!(read(&mut client, 0, 4096), &pattern(64 << 20, 5)[..4096]);
    drop(client);
    stop(daemon);
}
