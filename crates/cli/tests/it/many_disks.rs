//! Several disks in one daemon, isolated from each other.

use std::io::Write;
use std::os::unix::net::UnixStream;

use flowstone_testkit::fuse::Call;
use flowstone_testkit::process::Ready;
use flowstone_testkit::{
    Client, ClientOptions, DaemonCommand, HANG, Request, Status, wait_for, wait_until,
};

use crate::fixture::{Place, stop};
use crate::host_file_systems::Mounted;
use crate::host_trouble;
use crate::hung_host::Hosts;

pub fn config(place: &Place, disks: &[(&str, &str)]) -> String {
    let mut text = format!("control = {:?}\n", place.text("control.sock"));
    for (name, line) in disks {
        let socket = place.text(&format!("{name}.sock"));
        text += &format!("[[disk]]\nname = {name:?}\nsocket = {socket:?}\n{line}\n");
    }
    std::fs::write(place.path("flowstone.toml"), text).unwrap();
    place.text("flowstone.toml")
}

pub fn serve(config: &str, ready: usize) -> flowstone_testkit::Daemon {
    serve_command(config, ready).spawn().unwrap()
}

pub fn serve_command(config: &str, ready: usize) -> DaemonCommand {
    DaemonCommand::new(env!("CARGO_BIN_EXE_flowstone"))
        .args(["serve", "--config", config])
        .ready(Ready::Listening(ready))
}

#[test]
fn a_disk_that_fails_leaves_the_others_alone() {
    let place = Place::new();
    place.succeed(&["create", "--size", "1M", "good.raw"]);
    place.succeed(&["create", "--size", "1M", "cut.raw"]);
    let image = |name: &str| format!("image = {:?}", place.text(name));
    let file = config(
        &place,
        &[
            ("good", &image("good.raw")),
            ("missing", &image("missing.raw")),
            ("failing", "backend = \"mem:1M\"\nlayers = [\"error=write:eio\"]"),
            ("cut", &image("cut.raw")),
        ],
    );
    let mut daemon = serve(&file, 3);
    let connect = |name: &str| {
        Client::connect(ClientOptions::new(place.path(&format!("{name}.sock")))).unwrap()
    };
    let (mut good, mut failing, mut cut) = (connect("good"), connect("failing"), connect("cut"));
    assert_eq!(failing.write(0, &[1; 512]).unwrap(), Status::IoErr);
    std::fs::File::options().write(true).open(place.path("cut.raw")).unwrap().set_len(0).unwrap();
    assert_eq!(cut.read(0, &mut [0; 512]).unwrap(), Status::IoErr);
    assert_eq!(good.write(0, &[1; 512]).unwrap(), Status::Ok);
    assert_eq!(good.flush().unwrap(), Status::Ok);
    daemon.wait_stderr("missing.raw: no such file", HANG).unwrap();
    // The disks are opened in parallel.
    let stats = wait_for("the one that cannot be opened is listed", || {
        let stats = place.stats();
        if stats["failed"][0].is_object() { Ok(stats) } else { Err(stats) }
    });
    let names: Vec<_> =
        stats["disks"].as_array().unwrap().iter().map(|disk| disk["name"].clone()).collect();
    assert_eq!(names, ["good", "failing", "cut"]);
    let missing = &stats["failed"][0];
    assert_eq!(
        (&missing["name"], &missing["why"]),
        (&"missing".into(), &"no such file or directory".into())
    );
    let reason = &stats["disks"][1]["errors_by_errno"][0];
    assert_eq!((&reason["errno"], &reason["count"]), (&5.into(), &1.into()), "{reason}");
    let text = place.succeed(&["stats", "--control", &place.text("control.sock")]);
    assert!(
        text.contains("missing  not served: ") && text.contains("1 requests, Input/"),
        "{text}"
    );
    daemon.wait_stderr("disk=\"missing\"", HANG).unwrap();
    daemon.wait_stderr("a guest's write failed", HANG).unwrap();
    let said = daemon.stderr();
    assert!(!said.contains("unsaid=0"), "{said}");
    drop((good, failing, cut));
    stop(daemon);
}

#[test]
fn a_file_without_a_disk_that_works_is_refused() {
    let place = Place::new();
    let image = format!("image = {:?}", place.text("missing.raw"));
    let file = config(&place, &[("a", &image), ("b", &image)]);
    assert!(place.refused(&["serve", "--config", &file]).contains("no such file"));
    std::fs::write(place.path("flowstone.toml"), "[[disk]]\nnmae = 'a'\n").unwrap();
    assert!(
        place
            .refused(&["serve", "--config", &file])
            .contains("unknown key `nmae`; did you mean `name`?")
    );
    assert!(place.refused(&["serve", "--config", "none.toml"]).contains("No such file"));
}

/// All errors are reported at once, and nothing is opened.
#[test]
fn a_configuration_is_checked_without_opening_anything() {
    let place = Place::new();
    let image = format!("image = {:?}", place.text("missing.raw"));
    let file = config(&place, &[("a", &image), ("b", "backend = 'mem:1M'")]);
    assert_eq!(
        place.succeed(&["serve", "--check", "--config", &file]),
        "2 disks can be, 0 cannot\n"
    );
    assert!(!place.path("a.sock").exists() && !place.path("control.sock").exists());
    let file = config(&place, &[("a", "pol = 1"), ("b", "backend = 'mem:1M'"), ("b", &image)]);
    let output = place.run(&["serve", "--check", "--config", &file]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    for why in ["disk 1 (line 2): unknown key `pol`", "disk 3 (line 10): two disks are called"] {
        assert!(errors.contains(why), "{errors}");
    }
}

#[test]
fn options_that_are_not_of_one_disk_win_over_the_keys_of_the_file() {
    let place = Place::new();
    let head = format!("control = {:?}\npollers = 3\n", place.text("elsewhere.sock"));
    let socket = place.text("a.sock");
    let disk = format!("[[disk]]\nbackend = 'mem:1M'\nsocket = {socket:?}\n");
    std::fs::write(place.path("flowstone.toml"), head + &disk).unwrap();
    let file = place.text("flowstone.toml");
    let control = place.text("control.sock");
    let daemon =
        serve_command(&file, 1).args(["--pollers", "1", "--control", &control]).spawn().unwrap();
    let mut guest = Client::connect(ClientOptions::new(&socket)).unwrap();
    assert_eq!(guest.write(0, &[1; 512]).unwrap(), Status::Ok);
    assert_eq!(place.stats()["pollers"].as_array().map(Vec::len), Some(1));
    assert_eq!(place.stats()["disks"][0]["name"], "disk", "a file needs to name none");
    drop(guest);
    stop(daemon);
    let refused = place.run(&["serve", "--config", &file, "--queues", "2"]);
    let errors = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{errors}");
    assert!(errors.contains("--queues <N>: of one disk; write that in "), "{errors}");
}

#[test]
fn a_mistake_in_the_configuration_of_one_disk_leaves_the_others_alone() {
    let place = Place::new();
    let wrong = format!("{}\npoll = \"often\"", small(&place, "wrong"));
    let file = config(&place, &[("wrong", &wrong), ("good", &small(&place, "good"))]);
    let mut daemon = serve(&file, 1);
    let mut good = Client::connect(ClientOptions::new(place.path("good.sock"))).unwrap();
    assert_eq!(good.write(0, &[1; 512]).unwrap(), Status::Ok);
    let why = "flowstone.toml: disk 1 (line 2): `often` is no choice for `poll`";
    daemon.wait_stderr(why, HANG).unwrap();
    drop(good);
    stop(daemon);
}

/// Regression: a monitor in the middle of a message kept the daemon from stopping, and the disks
/// after it from finishing and flushing.
#[test]
fn a_disk_whose_monitor_is_stuck_does_not_keep_the_others_from_stopping() {
    let Some(hosts) = Hosts::new() else { return };
    let place = &hosts.place;
    let image = |name: &str| {
        place.succeed(&["create", "--size", "1M", &format!("at/{name}.raw")]);
        format!("image = {:?}", place.text(&format!("at/{name}.raw")))
    };
    let log = format!("layers = [\"delay=300ms\", \"log={}\"]", place.text("requests.log"));
    let file = config(
        place,
        &[
            ("stuck1", &image("stuck1")),
            ("stuck2", &image("stuck2")),
            ("stuck3", &image("stuck3")),
            ("good", &format!("{}\n{log}", image("good"))),
        ],
    );
    let daemon = serve(&file, 4);
    let stuck: Vec<UnixStream> = ["stuck1.sock", "stuck2.sock", "stuck3.sock"]
        .into_iter()
        .map(|name| {
            let mut stream = UnixStream::connect(place.path(name)).unwrap();
            stream.write_all(&[1, 0, 0, 0, 1]).unwrap();
            stream
        })
        .collect();
    let mut good = Client::connect(ClientOptions::new(place.path("good.sock"))).unwrap();
    good.submit(0, &Request::write(8, &[7; 4096])).unwrap();
    good.notify(0).unwrap();
    // Requests taken by the daemon are in flight.
    let requests = || std::fs::read_to_string(place.path("requests.log")).unwrap();
    wait_until("the daemon has it", || requests().contains(" write "));
    let syncs = || hosts.fake.count(Call::Fsync).calls;
    let before = syncs();
    stop(daemon);
    assert!(good.ring(0).queue.has_used(), "what was in flight is not finished");
    assert_eq!(std::fs::read(place.path("behind/good.raw")).unwrap()[4096..8192], [7; 4096]);
    assert_eq!(syncs() - before, 4, "each image is flushed");
    drop(stuck);
}

/// Regression: a name that was also a file in the operator's folder was taken for that file, and
/// not found.
#[test]
fn a_disk_to_resize_is_found_by_its_name_or_by_its_image() {
    let place = Place::new();
    for name in ["one", "two", "three"] {
        place.succeed(&["create", "--size", "1M", "--format", "raw", name]);
    }
    std::fs::write(place.path("vm1"), b"a file of the operator").unwrap();
    let image = |name: &str| format!("format = \"raw\"\nimage = {:?}", place.text(name));
    let disks = [("vm1", &*image("one")), ("two", &image("three")), ("vm3", &image("two"))];
    let daemon = serve(&config(&place, &disks), 3);
    let control = place.text("control.sock");
    let resize = |disk: &str| ["resize", "--control", &control, disk, "2M"].map(str::to_owned);
    let run = |disk: &str| place.succeed(&resize(disk).each_ref().map(String::as_str));
    let refused = |disk: &str| place.refused(&resize(disk).each_ref().map(String::as_str));
    run("vm1");
    assert_eq!(place.path("one").metadata().unwrap().len(), 2 << 20);
    run("three");
    assert_eq!(place.path("three").metadata().unwrap().len(), 2 << 20);
    // The name of one disk and the image of another: growing the wrong one cannot be undone.
    let refusal = refused("two");
    assert!(refusal.contains("two disks are called that"), "{refusal}");
    assert_eq!(place.path("two").metadata().unwrap().len(), 1 << 20);
    run(&place.text("two"));
    assert_eq!(place.path("two").metadata().unwrap().len(), 2 << 20);
    stop(daemon);
}

/// Makes the image of a disk of 1 MiB. Returns its lines in the configuration.
fn small(place: &Place, name: &str) -> String {
    place.succeed(&["create", "--size", "1M", &format!("{name}.raw")]);
    format!("image = {:?}", place.text(&format!("{name}.raw")))
}

/// Waits until the daemon has closed an image.
fn wait_free(place: &Place, image: &str) {
    wait_for("the image is let go", || {
        let output = place.run(&["check", image]);
        if output.status.success() { Ok(()) } else { Err(String::from_utf8(output.stderr)) }
    });
}

/// Regression: they stopped one after the other: an idle disk was neither flushed nor unlocked
/// while the one before it waited for its host.
#[test]
fn disks_stop_side_by_side_each_as_soon_as_it_can() {
    let Some(hosts) = Hosts::new() else { return };
    let place = &hosts.place;
    let slow = "backend = \"null:1M\"\nlayers = [\"delay=60000ms\"]";
    let idle = small(place, "at/idle");
    let mut daemon = serve(&config(place, &[("slow", slow), ("idle", &idle)]), 2);
    let mut client = Client::connect(ClientOptions::new(place.path("slow.sock"))).unwrap();
    client.submit(0, &Request::read(0, 512)).unwrap();
    client.notify(0).unwrap();
    let taken = || place.stats()["disks"][0]["total"]["submit_us"]["count"].as_u64().unwrap();
    wait_until("it is taken", || taken() > 0);
    let before = hosts.fake.count(Call::Fsync).calls;
    daemon.signal(rustix::process::Signal::TERM).unwrap();
    wait_free(place, "at/idle.raw");
    assert!(!client.ring(0).queue.has_used(), "the idle disk has waited for the slow one");
    assert!(daemon.try_wait().unwrap().is_none());
    assert!(hosts.fake.count(Call::Fsync).calls > before, "it is not flushed");
    daemon.kill().unwrap();
}

/// Thaws a file system when dropped, also if the test fails.
struct Frozen<'path>(&'path str);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        host_trouble::run("fsfreeze", &["-u", self.0]).unwrap();
    }
}

/// Regression: a resize kept the list of disks locked for as long as the host took.
#[test]
fn a_resize_that_hangs_holds_up_neither_statistics_nor_the_other_disks() {
    let place = Place::new();
    let Some(host) = Mounted::make(&place, "ext4") else { return };
    let hung = host.0.join("hung.raw").display().to_string();
    place.succeed(&["create", "--size", "1M", &hung]);
    let disks = [("hung", format!("image = {hung:?}")), ("good", small(&place, "good"))];
    let disks = disks.each_ref().map(|(name, image)| (*name, image.as_str()));
    let mut daemon = serve(&config(&place, &disks), 2);
    let frozen = host.0.display().to_string();
    if let Err(why) = host_trouble::run("fsfreeze", &["-f", &frozen]) {
        flowstone_testkit::skip(format_args!("cannot freeze a file system: {why}"));
        return stop(daemon);
    }
    let thaw = Frozen(&frozen);
    let control = place.text("control.sock");
    let resize = |disk| ["resize", "--control", &control, disk, "2M"].map(str::to_owned);
    let run = |disk| place.run(&resize(disk).each_ref().map(String::as_str));
    std::thread::scope(|scope| {
        let two = [(); 2].map(|()| scope.spawn(|| run("hung")));
        // The second one is refused without waiting.
        wait_until("one is refused", || two.iter().any(|one| one.is_finished()));
        assert_eq!(place.stats()["disks"][1]["name"], "good");
        assert!(run("good").status.success());
        daemon.signal(rustix::process::Signal::TERM).unwrap();
        wait_free(&place, "good.raw");
        assert!(two.iter().any(|one| !one.is_finished()), "nothing was hanging");
        drop(thaw);
        let refusals = two.map(|one| String::from_utf8(one.join().unwrap().stderr).unwrap());
        let refused = refusals.iter().filter(|it| it.contains("it is being resized")).count();
        assert_eq!(refused, 1, "{refusals:?}");
    });
    assert!(daemon.wait(HANG).unwrap().success(), "{}", daemon.stderr());
}

/// Regression: commands, the signal to stop and later disks of the file waited until all disks were
/// open.
#[test]
fn a_disk_that_takes_long_to_open_holds_up_neither_commands_nor_disks_nor_the_end() {
    wait_until("all of this happens before the wait for the lock is over", takes_long_to_open);
}

/// Returns whether it happened in time.
fn takes_long_to_open() -> bool {
    let place = Place::new();
    let (first, second) = (small(&place, "first"), small(&place, "second"));
    let holder = place.serve(&["second.raw"]);
    std::fs::remove_file(place.path("control.sock")).unwrap();
    // It waits for the lock for seconds.
    let file = config(&place, &[("second", &second), ("first", &first)]);
    let mut daemon = serve(&file, 1);
    let stats = place.stats();
    let names: Vec<_> =
        stats["disks"].as_array().unwrap().iter().map(|disk| disk["name"].clone()).collect();
    if stats["opening"] == serde_json::json!([]) {
        return false;
    }
    assert_eq!((names, &stats["opening"]), (vec!["first".into()], &serde_json::json!(["second"])));
    let resize = ["resize", "--control", &place.text("control.sock"), "second", "2M"];
    let was_opening = place.refused(&resize).contains("it is being opened");
    daemon.signal(rustix::process::Signal::TERM).unwrap();
    wait_free(&place, "first.raw");
    assert!(daemon.wait(HANG).unwrap().success());
    drop(holder);
    was_opening && !daemon.stderr().contains("another process is using")
}

/// Starts `serve` under limits of open files.
fn serve_limited(config: &str, limits: &str, ready: usize) -> flowstone_testkit::Daemon {
    let script = format!("{limits} && exec \"$0\" \"$@\"");
    DaemonCommand::new("sh")
        .args(["-c", &script, env!("CARGO_BIN_EXE_flowstone"), "serve", "--config", config])
        // A thread for each queue, which has descriptors.
        .args(["--pollers", "per-queue"])
        .ready(Ready::Listening(ready))
        .spawn()
        .unwrap()
}

fn options_with(place: &Place, name: &str, queues: usize) -> ClientOptions {
    let options = ClientOptions::new(place.path(&format!("{name}.sock"))).queues(queues);
    ClientOptions { slots: 2, slot_bytes: 4096, ..options }
}

fn with_queues(place: &Place, name: &str, queues: usize) -> Client {
    Client::connect(options_with(place, name, queues)).unwrap()
}

/// Regression: with the usual soft limit, the second disk of 64 queues and all after it were
/// dropped.
#[test]
fn the_soft_limit_of_open_files_is_raised() {
    let place = Place::new();
    let disks = ["a", "b"].map(|name| (name, small(&place, name)));
    let disks = disks.each_ref().map(|(name, image)| (*name, image.as_str()));
    let daemon = serve_limited(&config(&place, &disks), "ulimit -Sn 128", 2);
    let mut clients = ["a", "b"].map(|name| with_queues(&place, name, 64));
    for client in &mut clients {
        assert_eq!(client.write(0, &[1; 512]).unwrap(), Status::Ok);
    }
    let fds = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count();
    assert!(fds < 2 * 64 * 9, "{fds} descriptors for 128 queues");
    drop(clients);
    stop(daemon);
}

#[test]
fn too_few_open_files_are_one_line_that_names_the_limit_and_other_disks_go_on() {
    let place = Place::new();
    let disks = ["many", "few"].map(|name| (name, small(&place, name)));
    let disks = disks.each_ref().map(|(name, image)| (*name, image.as_str()));
    let mut daemon = serve_limited(&config(&place, &disks), "ulimit -n 90", 2);
    daemon.wait_stderr("all queues of all disks may need", HANG).unwrap();
    let mut few = with_queues(&place, "few", 1);
    let options = ClientOptions { timeout_ms: 2000, ..options_with(&place, "many", 64) };
    assert!(Client::connect(options).is_err(), "the limit is high enough");
    let line = "too many open files: the limit (RLIMIT_NOFILE) is 90; raise it";
    daemon.wait_stderr(line, HANG).unwrap();
    assert_eq!(few.write(0, &[1; 512]).unwrap(), Status::Ok);
    let mut many = with_queues(&place, "many", 2);
    assert_eq!(many.write(0, &[1; 512]).unwrap(), Status::Ok);
    drop((few, many));
    stop(daemon);
}

/// Whatever the limit: a daemon that cannot start names it.
#[test]
fn a_daemon_that_has_too_few_open_files_to_start_names_the_limit() {
    let place = Place::new();
    let file = config(&place, &[("disk", &small(&place, "disk"))]);
    let mut refusals = 0;
    for limit in 5..64 {
        let script = format!("ulimit -n {limit} && exec \"$0\" \"$@\"");
        let started = DaemonCommand::new("sh")
            .args(["-c", &script, env!("CARGO_BIN_EXE_flowstone"), "serve", "--config", &file])
            .spawn();
        let Err(why) = started else { break };
        let why = why.to_string();
        assert!(why.contains("the limit of open files (RLIMIT_NOFILE) is"), "{limit}: {why}");
        refusals += 1;
    }
    assert!((1..59).contains(&refusals), "{refusals} refusals");
}
