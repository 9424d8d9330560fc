//! Pollers shared by the queues of all disks.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use flowstone_testkit::load::{CpuSample, Limit, LoadOptions, run};
use flowstone_testkit::{
    Client, ClientOptions, Daemon, DaemonCommand, HANG, Status, skip, wait_for,
};
use serde_json::Value;

use crate::fixture::{Over, Place, stop};

const QUEUES: usize = 2;

/// Writes a configuration of these disks: name, and image or backend.
fn configure(place: &Place, head: &str, disks: &[(&str, &str)]) {
    configure_all(place, head, disks, "");
}

/// The same, with more keys for each disk.
fn configure_all(place: &Place, head: &str, disks: &[(&str, &str)], of_disk: &str) {
    let disk = |(name, source): &(&str, &str)| {
        let socket = place.text(&format!("{name}.sock"));
        let source = match source.contains(':') {
            true => format!("backend = '{source}'"),
            false => format!("image = '{}'", place.text(source)),
        };
        format!("[[disk]]\nname = '{name}'\nsocket = '{socket}'\n{source}\n{of_disk}")
    };
    let control = format!("control = '{}'\n", place.text("control.sock"));
    let disks: String = disks.iter().map(disk).collect();
    fs::write(place.path("disks.toml"), control + head + &disks).unwrap();
}

fn serve(place: &Place, disks: &[(&str, &str)]) -> Daemon {
    let command = DaemonCommand::new(env!("CARGO_BIN_EXE_flowstone"));
    let command = command.args(["serve", "--config", &place.text("disks.toml")]);
    // With `pipeline = 'auto'` queues change their form at every look.
    let command = command.env("FLOWSTONE_RESTLESS_FORMS", "1");
    let mut daemon = command.env("FLOWSTONE_LOG", "flowstone_runner=debug").spawn().unwrap();
    for (name, _) in disks {
        let socket = place.text(&format!("{name}.sock"));
        daemon.wait_stdout(&format!("listening on {socket}"), HANG).unwrap();
    }
    daemon
}

/// A mixed load with flushes, each block read back and verified.
fn checked(place: &Place, name: &str, ops: u64, seed: u64) -> LoadOptions {
    let mut options = LoadOptions::new(place.path(&format!("{name}.sock")));
    options = options.workload("mix").iodepth(8).ops(ops);
    options.client.queues = QUEUES;
    options.flush_every = 16;
    (options.verify, options.verify_final, options.discard_zeroes) = (true, true, true);
    options.seed = seed;
    options
}

fn pollers(place: &Place) -> Vec<Value> {
    place.stats()["pollers"].as_array().unwrap().clone()
}

fn sum(pollers: &[Value], key: &str) -> f64 {
    pollers.iter().map(|poller| poller[key].as_f64().unwrap()).sum()
}

/// Waits until `holds` is true for the pollers.
fn wait_until(place: &Place, what: &str, holds: impl Fn(&[Value]) -> bool) {
    wait_for(what, || {
        let now = pollers(place);
        if holds(&now) { Ok(()) } else { Err(now) }
    });
}

/// One disk may have a CPU for itself while the others share. Before, `cpus` meant nothing beside
/// shared pollers.
#[test]
fn a_disk_with_cpus_has_threads_of_its_own_beside_shared_pollers() {
    let place = Place::new();
    let disks = [("own", "null:16M"), ("other", "null:16M")];
    configure(&place, "pollers = 1\n", &disks);
    let text = fs::read_to_string(place.path("disks.toml")).unwrap();
    let its_name = "name = 'own'\n";
    assert!(text.contains(its_name));
    fs::write(place.path("disks.toml"), text.replace(its_name, "name = 'own'\ncpus = '0'\n"))
        .unwrap();
    let daemon = serve(&place, &disks);
    let client = |name: &str| {
        let options = ClientOptions::new(place.path(&format!("{name}.sock")));
        Client::connect(ClientOptions { queues: QUEUES, ..options }).unwrap()
    };
    let clients = disks.map(|(name, _)| client(name));
    let cpus_and_queues = || -> Vec<(Option<u64>, u64)> {
        let number = |poller: &Value, key: &str| poller[key].as_u64();
        let of = |poller: &Value| (number(poller, "cpu"), number(poller, "queues").unwrap());
        pollers(&place).iter().map(of).collect()
    };
    // The shared poller first.
    let wanted = [(None, 2), (Some(0), 1), (Some(0), 1)];
    wait_until(&place, "each queue runs in its place", |_| cpus_and_queues() == wanted);
    drop(clients);
    stop(daemon);
}

#[test]
fn disks_of_every_format_share_two_pollers_and_these_sleep_when_there_is_nothing_to_do() {
    let place = Place::new();
    let disks = [("a", "a.raw"), ("b", "b.qcow2"), ("c", "c.flow"), ("d", "mem:16M")];
    for (_, image) in disks.iter().filter(|(_, image)| !image.contains(':')) {
        place.succeed(&["create", "--size", "64M", image]);
    }
    configure(&place, "pollers = 2\npoller-cpus = '0-1'\n", &disks);
    let daemon = serve(&place, &disks);
    // One load may be over before another one begins, so they continue until all have been seen.
    let are_seen = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = Over(&are_seen);
        for (seed, (name, _)) in (1..).zip(&disks) {
            let options = checked(&place, name, 4000, seed);
            let are_seen = &are_seen;
            scope.spawn(move || {
                loop {
                    assert_eq!(run(&options).unwrap().errors, 0);
                    if are_seen.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        let all = (QUEUES * disks.len()) as f64;
        wait_until(&place, "all queues run", |it| it.len() == 2 && sum(it, "queues") == all);
        let cpus: Vec<Value> = pollers(&place).iter().map(|it| it["cpu"].clone()).collect();
        assert_eq!(cpus, [0, 1]);
        drop(over);
    });
    let now = pollers(&place);
    assert!(sum(&now, "busy_s") > 0.0 && sum(&now, "sleeps") > 0.0, "{now:?}");
    wait_until(&place, "no queue is left", |it| sum(it, "queues") == 0.0);
    let turns = || sum(&pollers(&place), "turns");
    flowstone_testkit::wait_until("pollers without queues sleep", || {
        let before = turns();
        thread::sleep(Duration::from_millis(300));
        turns() == before
    });
    stop(daemon);
}

/// One poller suffices for idle queues, and again when a load has gone. (Whether there are more
/// meanwhile depends on the machine's spare CPUs: see crates/runner/src/pollers/balance.rs.)
#[test]
fn guests_that_are_quiet_need_one_poller() {
    let place = Place::new();
    let disks = [("a", "null:1G"), ("b", "null:1G"), ("c", "null:1G"), ("d", "null:1G")];
    // Three, whatever the machine has.
    configure(&place, "pollers = 'auto'\npoller_cpus = '0,1,0'\n", &disks);
    let daemon = serve(&place, &disks);
    let in_use = |it: &[Value]| it.iter().filter(|poller| poller["queues"] != 0).count();
    let clients: Vec<_> = disks
        .iter()
        .map(|(name, _)| {
            let options = ClientOptions::new(place.path(&format!("{name}.sock")));
            Client::connect(options).unwrap()
        })
        .collect();
    wait_until(&place, "all run on one", |it| sum(it, "queues") == 4.0 && in_use(it) == 1);
    drop(clients);
    thread::scope(|scope| {
        for (name, _) in &disks {
            let options = LoadOptions::new(place.path(&format!("{name}.sock"))).iodepth(64);
            let options = options.ops(50_000);
            scope.spawn(move || assert_eq!(run(&options).unwrap().errors, 0));
        }
    });
    // Connected, idle guests need one.
    let options = |name: &str| {
        let options = ClientOptions::new(place.path(&format!("{name}.sock")));
        options.queues(8)
    };
    let clients = ["a", "b"].map(|it| Client::connect(options(it)).unwrap());
    wait_until(&place, "one is enough", |it| in_use(it) == 1 && sum(it, "queues") == 16.0);
    drop(clients);
    stop(daemon);
}

#[test]
fn a_killed_daemon_with_shared_pollers_loses_nothing() {
    kill_under_load("pollers = 2\n", "", 12_000, soon);
}

/// A head taken again while the marks of its last use are being cleared would be lost.
#[test]
fn a_killed_daemon_whose_queues_have_two_threads_loses_nothing() {
    kill_under_load("pollers = 'per-queue'\n", "pipeline = 'split'\n", 12_000, soon);
    kill_under_load("pollers = '2'\n", "pipeline = 'split'\n", 12_000, soon);
}

/// Each change stops and restarts a queue, and the kill comes at any time of it.
#[test]
fn a_killed_daemon_whose_queues_change_their_form_all_the_time_loses_nothing() {
    if !cfg!(debug_assertions) {
        skip("in this build nothing makes queues change their form");
        return;
    }
    kill_under_load("pollers = 'per-queue'\n", "pipeline = 'auto'\n", 6_000, among_changes);
    kill_under_load("pollers = '2'\n", "pipeline = 'auto'\n", 6_000, among_changes);
}

fn soon(_: &Place) -> bool {
    thread::sleep(Duration::from_millis(150));
    true
}

/// Returns whether all queues have become split and fused again since the daemon began.
fn among_changes(place: &Place) -> bool {
    let stats = place.stats();
    let disks = stats["disks"].as_array().unwrap();
    let queues = disks.iter().flat_map(|disk| disk["queues"].as_array().unwrap());
    let changed = queues.filter(|queue| queue["pipeline_changes"].as_u64() >= Some(2));
    thread::sleep(Duration::from_millis(fastrand::u64(..100)));
    changed.count() == QUEUES * disks.len()
}

/// Kills it three times when `is_time`, while loads run. They go on until it has happened.
fn kill_under_load(head: &str, of_disk: &str, ops: u64, is_time: impl Fn(&Place) -> bool) {
    let place = Place::new();
    let disks = [("a", "a.raw"), ("b", "b.qcow2"), ("c", "c.flow")];
    for (_, image) in disks {
        place.succeed(&["create", "--size", "64M", image]);
    }
    configure_all(&place, head, &disks, of_disk);
    let mut daemon = serve(&place, &disks);
    let killed = AtomicBool::new(false);
    thread::scope(|scope| {
        let loads: Vec<_> = (1..)
            .zip(&disks)
            .map(|(seed, (name, _))| {
                let mut options = checked(&place, name, ops, seed);
                options.reconnect = Some(HANG);
                let killed = &killed;
                scope.spawn(move || {
                    while !killed.load(Ordering::Relaxed) {
                        let report = run(&options).unwrap();
                        if report.errors > 0 {
                            return Some(format!("{name}: {:?}", report.first_error));
                        }
                        assert!(report.verified_blocks > 0);
                        options.seed += disks.len() as u64;
                    }
                    None
                })
            })
            .collect();
        let (mut kills, mut said) = (0, String::new());
        while kills < 3 && !loads.iter().any(|load| load.is_finished()) {
            if is_time(&place) {
                daemon.kill().unwrap();
                said += &daemon.stderr();
                daemon = serve(&place, &disks);
                kills += 1;
            }
        }
        killed.store(true, Ordering::Relaxed);
        for load in loads {
            let failed = load.join().unwrap();
            assert!(failed.is_none(), "{failed:?}; {said}{}", daemon.stderr());
        }
    });
    stop(daemon);
    for (_, image) in disks {
        place.assert_sound(&place.text(image));
    }
}

/// A disk has as many queues as guests have vCPUs: all of them work, on their own threads and on
/// shared ones.
#[test]
fn sixty_four_queues_of_one_disk_write_side_by_side() {
    const ALL: usize = 64;
    for (image, head, of_disk) in [
        ("a.raw", "pollers = 'per-queue'\n", ""),
        ("a.qcow2", "pollers = 2\n", ""),
        ("a.flow", "pollers = 'per-queue'\n", "pipeline = 'split'\n"),
        ("a.flow", "", ""),
    ] {
        let place = Place::new();
        place.succeed(&["create", "--size", "64M", image]);
        let disks = [("a", image)];
        configure_all(&place, head, &disks, &format!("queues = {ALL}\n{of_disk}"));
        let daemon = serve(&place, &disks);
        let mut options = checked(&place, "a", 6400, 7);
        options.client.queues = ALL;
        options.client.queue_size = 32;
        assert_eq!(run(&options).unwrap().errors, 0, "{image}, {head}{of_disk}");
        let stats = place.stats();
        let queues = stats["disks"][0]["queues"].as_array().unwrap();
        let writes = |queue: &&Value| queue["requests"]["write"].as_u64().unwrap() > 0;
        assert_eq!(queues.iter().filter(writes).count(), ALL, "{image}, {head}{of_disk}");
        stop(daemon);
        place.succeed(&["check", &place.text(image)]);
    }
}

/// Only a load that would use two CPUs proves the budget. Other processes may keep it from using
/// its budget; nothing may make it use more.
#[test]
fn a_cpu_budget_is_kept() {
    let of_all = "pollers = 'per-queue'\ncpu-budget = '30%'\n";
    for (head, disk) in [(of_all, ""), ("pollers = '1'\n", "cpu_budget = '30%'\n")] {
        let place = Place::new();
        let disks = [("a", "null:1G")];
        configure_all(&place, head, &disks, disk);
        let daemon = serve(&place, &disks);
        let mut options = LoadOptions::new(place.path("a.sock")).iodepth(32);
        options.client.queues = QUEUES;
        options.threads = 1;
        options.limit =
            Limit::Time { ramp: Duration::from_millis(200), runtime: Duration::from_secs(2) };
        let before = (Instant::now(), CpuSample::take(daemon.pid()).unwrap());
        assert_eq!(run(&options).unwrap().errors, 0);
        let used = CpuSample::take(daemon.pid()).unwrap().since(&before.1);
        let share = used.as_secs_f64() / before.0.elapsed().as_secs_f64();
        assert!(share > 0.0 && share < 0.36, "{head}{disk}uses {share}");
        stop(daemon);
    }
}

#[test]
fn choices_of_pollers_that_make_no_sense_are_refused() {
    let place = Place::new();
    place.image("8M");
    let cases: [(&[&str], &str); 7] = [
        (&["--pollers", "0"], "use a number from 1 to 256, auto or per-queue"),
        (&["--pollers", "many"], "use a number from 1 to 256, auto or per-queue"),
        (&["--pollers", "per-queue", "--poller-cpus", "0"], "choose other pollers"),
        (&["--poller-nice", "20"], "20 is not in -20..=19"),
        (&["--pipeline", "both"], "[possible values: fused, split, auto]"),
        (&["--cpu-budget", "1.5"], "write e.g. 50% or 150%"),
        (&["--cpu-budget", "0%"], "write e.g. 50% or 150%"),
    ];
    for (args, advice) in cases {
        let all = [&["serve", "--socket", "s.sock", "disk.raw"], args].concat();
        let output = place.run(&all);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {errors}");
        assert!(errors.contains(advice), "{args:?}: {errors}");
    }
}

/// The niceness that the threads of a process have, by their names.
fn niceness(pid: u32) -> BTreeMap<String, i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let stats = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("stat")).ok());
    let read = stats.map(|stat| {
        let (name, fields) = stat.split_once('(').unwrap().1.rsplit_once(") ").unwrap();
        // Field 19 of proc_pid_stat(5); the state is field 3.
        (name.to_owned(), fields.split(' ').nth(16).unwrap().parse().unwrap())
    });
    read.collect()
}

#[test]
fn threads_that_run_queues_have_the_niceness_that_is_wanted_and_no_others() {
    let place = Place::new();
    for (pollers, name) in [("1", "poller0"), ("per-queue", "disk/q0")] {
        // Every user may be nicer.
        let options = ["--pollers", pollers, "--poller-nice", "7", "--name", "disk"];
        let daemon = place.serve(&[&options[..], &["--backend", "mem:16M"]].concat());
        let mut client = place.client();
        assert_eq!(client.write(0, &[1; 512]).unwrap(), Status::Ok);
        let seen = niceness(daemon.pid());
        let own = [name, "flowstone"].map(|name| seen.get(name).copied());
        assert_eq!(own, [Some(7), Some(0)], "{seen:?}");
        drop(client);
        stop(daemon);
    }
}

#[test]
fn a_niceness_that_this_user_may_not_have_is_refused() {
    const NOBODY: u32 = 65534;
    let place = Place::new();
    fs::set_permissions(place.dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_flowstone"));
    command.args(["serve", "--socket", "s.sock", "--backend", "null:1M", "--poller-nice", "-5"]);
    command.current_dir(place.dir.path());
    if rustix::process::getuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(why) => {
            return skip(format_args!("no other user can run it: {why}"));
        }
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let line = said.lines().last().unwrap_or_default();
    assert!(line.starts_with("flowstone: poller-nice -5: Permission denied"), "{said}");
    assert!(line.contains("LimitNICE="), "{said}");
}

/// On a host with one node, as here, everything is on it; the rest is tested with simulated nodes.
#[test]
fn guests_memory_is_found_on_its_node() {
    let place = Place::new();
    place.image("8M");
    let daemon = place.serve(&["--cpus", "1", "--name", "disk", "disk.raw"]);
    let mut client = place.client();
    client.write(0, &[1; 4096]).unwrap();
    let control = place.text("control.sock");
    let text = place.succeed(&["stats", "--control", &control, "--numa", "--json"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    let (nodes, disk) = (report["nodes"].as_array().unwrap(), &report["disks"][0]);
    let pages: u64 =
        disk["pages"].as_array().unwrap().iter().map(|it| it["pages"].as_u64().unwrap()).sum();
    assert!(!nodes.is_empty() && pages > 0, "{report}");
    assert_eq!((&disk["name"], &report["pollers"][0]["cpu"]), (&"disk".into(), &1.into()));
    if nodes.len() == 1 {
        assert_eq!(
            (&disk["home"], &report["pollers"][0]["node"]),
            (&nodes[0]["node"], &nodes[0]["node"])
        );
    }
    let said = place.succeed(&["stats", "--control", &control, "--numa"]);
    assert!(said.contains("disk disk  its guest's memory") && said.contains("vCPUs"), "{said}");
    drop(client);
    stop(daemon);
}

/// Regression: `kicks` was counted only before and after a sleep: 3903 notifications of a guest
/// were none.
#[test]
fn notifications_are_counted_of_a_queue_that_never_sleeps() {
    let forms = [("per-queue", "fused"), ("per-queue", "split"), ("auto", "fused")];
    for (pollers, pipeline) in forms {
        let place = Place::new();
        place.image("8M");
        let form = ["--poll", "always", "--pollers", pollers, "--pipeline", pipeline];
        let daemon = place.serve(&[&form[..], &["--name", "disk", "disk.raw"]].concat());
        let mut client = place.client();
        client.write(0, &[1; 4096]).unwrap();
        let kicks = || place.disk_stats("disk")["total"]["kicks"].as_u64().unwrap();
        let before = kicks();
        (0..5).for_each(|_| client.kick(0).unwrap());
        wait_for(pipeline, || {
            let kicks = kicks();
            if kicks >= before + 5 { Ok(()) } else { Err((kicks, before)) }
        });
        drop(client);
        stop(daemon);
    }
}

/// Both threads of a queue work, and the operator's numbers add up, on their own threads and on
/// shared ones.
#[test]
fn a_queue_on_two_threads_counts_like_one_on_one() {
    for (pollers, pipeline) in
        [("per-queue", "split"), ("1", "split"), ("2", "split"), ("2", "auto")]
    {
        let place = Place::new();
        place.image("16M");
        let args = ["--pipeline", pipeline, "--pollers", pollers, "--name", "disk", "disk.raw"];
        let daemon = place.serve(&args);
        let mut options = checked(&place, "disk", 2000, 5);
        options.client.queues = 1;
        assert_eq!(run(&options).unwrap().errors, 0);
        let stats = place.stats();
        let total = &stats["disks"][0]["total"];
        let requests: u64 = ["read", "write", "discard", "write_zeroes"]
            .map(|kind| total["requests"][kind].as_u64().unwrap())
            .iter()
            .sum();
        assert!(requests >= 2000, "{total}");
        let queue = &stats["disks"][0]["queues"][0];
        let on_two = total["front_us"]["count"].as_u64() > Some(0);
        if pipeline == "split" {
            assert_eq!((on_two, &queue["pipeline"]), (true, &"split".into()), "{queue}");
        } else {
            // It begins on one.
            assert_eq!(on_two, total["pipeline_changes"].as_u64() > Some(0), "{queue}");
        }
        assert!(total["kicks"].as_u64() > Some(0) && total["calls"].as_u64() > Some(0), "{total}");
        stop(daemon);
    }
}

/// Returns the number of sleeps of the daemon's thread of this name.
fn sleeps_of(daemon: &Daemon, name: &str) -> Option<u64> {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    let is_it = |task: &std::path::PathBuf| {
        fs::read_to_string(task.join("comm")).is_ok_and(|it| it.trim_end() == name)
    };
    let task = tasks.map(|task| task.unwrap().path()).find(is_it)?;
    let status = fs::read_to_string(task.join("status")).unwrap();
    let count = status.lines().find_map(|it| it.strip_prefix("voluntary_ctxt_switches:"));
    count.map(|it| it.trim().parse().unwrap())
}

/// It looks ten times a second, but only while there is load.
#[test]
fn the_thread_that_changes_forms_is_there_with_auto_only_and_sleeps_while_disks_idle() {
    for pipeline in ["fused", "split", "auto"] {
        let place = Place::new();
        place.image("8M");
        let daemon = place.serve(&["--pipeline", pipeline, "disk.raw"]);
        let mut client = place.client();
        client.write(0, &[1; 4096]).unwrap();
        let sleeps = || sleeps_of(&daemon, "forms");
        if pipeline == "auto" {
            // A thread sets its name after it has begun.
            flowstone_testkit::wait_until("it is there", || sleeps().is_some());
        }
        let rests = || {
            let before = sleeps();
            thread::sleep(Duration::from_secs(1));
            sleeps() == before
        };
        flowstone_testkit::wait_until("it sleeps", rests);
        assert_eq!(sleeps().is_some(), pipeline == "auto");
        drop(client);
        stop(daemon);
    }
}
