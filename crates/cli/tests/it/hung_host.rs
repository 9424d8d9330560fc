//! Two disks, and a host that stops answering for one of them: on shared pollers in every form,
//! engine and format, and on threads of their own.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use flowstone_testkit::fuse::{Call, FuseHost};
use flowstone_testkit::process::Ready;
use flowstone_testkit::{
    Client, ClientOptions, Daemon, DaemonCommand, HANG, Request, Status, wait_for, wait_until,
};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::fixture::{Place, ask, has_redo_file, pattern};
use crate::hot_disks::{list, listed};
use crate::kept_disks::keeper;
use crate::many_disks::{config, serve, serve_command};

/// A folder on a host that can be stopped, beside one on a healthy host.
pub struct Hosts {
    // Before the folder: it is mounted there.
    pub fake: FuseHost,
    pub place: Place,
}

impl Hosts {
    pub fn new() -> Option<Self> {
        let place = Place::new();
        let [at, behind] = ["at", "behind"].map(|name| place.path(name));
        fs::create_dir(&at).unwrap();
        fs::create_dir(&behind).unwrap();
        Some(Self { fake: FuseHost::mount_or_skip(&at, &behind)?, place })
    }

    /// Serves one disk on either host with these keys, and a third one that is not used yet.
    pub fn serve(&self, format: &str, head: &str, of_disk: &str) -> Daemon {
        serve(&self.configure(format, head, of_disk), 3)
    }

    /// Makes the images and the configuration for that. Returns the configuration file.
    fn configure(&self, format: &str, head: &str, of_disk: &str) -> String {
        let images = [format!("at/hung.{format}"), "well.raw".into(), "third.raw".into()];
        for image in &images {
            let _ = fs::remove_file(self.place.path(image));
            self.place.succeed(&["create", "--size", "16M", image]);
        }
        let line = |image: &String| format!("image = {:?}\n{of_disk}", self.place.text(image));
        let lines = images.each_ref().map(line);
        let names = ["hung", "well", "third"];
        let disks: Vec<_> = names.into_iter().zip(lines.iter().map(String::as_str)).collect();
        let file = config(&self.place, &disks);
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, format!("{head}{text}")).unwrap();
        file
    }

    pub fn connect(&self, disk: &str) -> Client {
        let options = ClientOptions::new(self.place.path(&format!("{disk}.sock")));
        Client::connect(options).unwrap()
    }

    fn set(&self, disk: &str) -> bool {
        let control = self.place.text("control.sock");
        let set = ["disk", "set", "--control", &control, disk, "--weight", "200"];
        self.place.run(&set).status.success()
    }
}

pub fn disk<'a>(stats: &'a Value, name: &str) -> &'a Value {
    stats["disks"].as_array().unwrap().iter().find(|disk| disk["name"] == name).unwrap()
}

/// Returns the number of the daemon's threads with this name.
pub fn threads(daemon: &Daemon, name: &str) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|it| it.trim() == name).count()
}

/// Checks the experience of a guest of the other disk, an operator and a new guest.
fn nothing_else_notices(hosts: &Hosts, daemon: &Daemon, well: &mut Client) {
    let (data, mut back) = (pattern(8192, 9), vec![0; 8192]);
    assert_eq!(well.write(64, &data).unwrap(), Status::Ok);
    assert_eq!(well.flush().unwrap(), Status::Ok);
    assert_eq!(well.read(64, &mut back).unwrap(), Status::Ok);
    assert!(back == data);
    // A queue starts, works, and stops.
    let mut third = hosts.connect("third");
    assert_eq!(third.write(0, &data).unwrap(), Status::Ok);
    drop(third);
    // More often than the control socket has clients.
    for _ in 0..40 {
        let stats = hosts.place.stats();
        assert!(disk(&stats, "hung")["stale_s"].as_f64() > Some(0.0), "{stats}");
        assert!(disk(&stats, "hung")["allocated_bytes"].is_u64(), "what was known last");
    }
    // On a busy machine its answer may be late.
    wait_until("the other host answers", || {
        disk(&hosts.place.stats(), "well")["stale_s"].is_null()
    });
    // A thread that queries the other hosts ends a moment later, and gets its name a moment after
    // its start.
    wait_until("one thread asks the hung host", || threads(daemon, "stats") == 1);
    assert!(hosts.set("well") && hosts.set(&hosts.place.text("well.raw")) && hosts.set("hung"));
}

fn one_host_stops(format: &str, head: &str, of_disk: &str) {
    let Some(hosts) = Hosts::new() else { return };
    let mut daemon = hosts.serve(format, head, of_disk);
    let (mut hung, mut well) = (hosts.connect("hung"), hosts.connect("well"));
    let data = pattern(1 << 20, 3);
    assert_eq!(hung.write(0, &data).unwrap(), Status::Ok);
    assert_eq!(hung.flush().unwrap(), Status::Ok);
    // The report knows the image.
    wait_until("stats", || disk(&hosts.place.stats(), "hung")["stale_s"].is_null());
    hosts.fake.stop();
    let late = pattern(4096, 5);
    hung.submit(0, &Request::write(2048, &late)).unwrap();
    hung.submit(0, &Request::read(8, 4096)).unwrap();
    hung.submit(0, &Request::flush()).unwrap();
    hung.notify(0).unwrap();
    wait_until("the host is asked", || !hosts.fake.held().is_empty());
    nothing_else_notices(&hosts, &daemon, &mut well);
    daemon.signal(Signal::TERM).unwrap();
    wait_until("the other image is free", || {
        hosts.place.run(&["check", "well.raw"]).status.success()
    });
    assert!(daemon.try_wait().unwrap().is_none(), "nothing was hanging");
    assert!(!hosts.fake.held().is_empty(), "it has been answered");
    hosts.fake.release();
    assert!(daemon.wait(HANG).unwrap().success(), "{}", daemon.stderr());
    // Everything acknowledged to the guest is there, and requests in flight have been executed.
    let image = hosts.place.text(&format!("at/hung.{format}"));
    hosts.place.succeed(&["check", &image]);
    hosts.place.succeed(&["convert", &image, "back.raw"]);
    let back = fs::read(hosts.place.path("back.raw")).unwrap();
    assert!(
        back[..1 << 20] == data && back[1 << 20..][..4096] == late,
        "{format} {head} {of_disk}"
    );
}

/// However many requests wait for it, with either engine.
#[test]
fn a_host_that_stops_has_sixteen_threads_of_a_file() {
    for engine in ["uring", "sync"] {
        let Some(hosts) = Hosts::new() else { return };
        let daemon = hosts.serve("raw", "pollers = 1\n", &format!("engine = '{engine}'\n"));
        let options = ClientOptions::new(hosts.place.path("hung.sock"));
        let options = ClientOptions { slots: 64, slot_bytes: 4096, ..options };
        let mut hung = Client::connect(options).unwrap();
        hosts.fake.stop();
        for number in 0..64 {
            hung.submit(0, &Request::read(number * 8, 4096)).unwrap();
        }
        hung.notify(0).unwrap();
        let all = || threads(&daemon, "flowstone-sync");
        // Threads of other files end when idle; more of this file would appear at once.
        wait_until("sixteen threads wait, and no more come", || {
            let is_so = all() == 16;
            std::thread::sleep(Duration::from_millis(100));
            is_so && all() == 16
        });
        hosts.fake.release();
        assert!(hung.drain(0).unwrap().iter().all(|done| done.status == Status::Ok));
        drop(hung);
        crate::fixture::stop(daemon);
    }
}

/// A command with a path on the hanging host is refused after a second, and one thread waits for
/// the host.
#[test]
fn a_path_that_hangs_in_a_command_keeps_one_thread() {
    let Some(hosts) = Hosts::new() else { return };
    let daemon = hosts.serve("raw", "", "");
    hosts.fake.stop();
    let path = hosts.place.text("at/none.raw");
    let control = hosts.place.text("control.sock");
    for command in [
        &["disk", "set", "--weight", "9", "--control", &control, &path][..],
        &["stats", "--layout", &path, "--control", &control],
        &["resize", "--control", &control, &path, "32M"],
    ] {
        let said = hosts.place.refused(command);
        assert!(said.contains("a file system does not answer"), "{command:?}: {said}");
    }
    wait_until("one thread looks", || threads(&daemon, "path") == 1);
    assert!(hosts.set("well"));
    hosts.fake.release();
    crate::fixture::stop(daemon);
}

/// Regression: systemd waited for the one disk, and then ended the daemon with all others.
#[test]
fn a_host_that_hangs_in_open_keeps_the_daemon_from_being_ready_for_a_while_only() {
    let Some(hosts) = Hosts::new() else { return };
    let notify = UnixDatagram::bind(hosts.place.path("notify.sock")).unwrap();
    notify.set_read_timeout(Some(HANG)).unwrap();
    let file = hosts.configure("raw", "", "");
    hosts.fake.stop();
    let mut daemon = serve_command(&file, 2)
        .env("NOTIFY_SOCKET", hosts.place.path("notify.sock"))
        .spawn()
        .unwrap();
    let mut said = [0; 64];
    // A signal to this process interrupts it.
    let bytes = wait_for("the daemon says that it is ready", || notify.recv(&mut said));
    assert_eq!(&said[..bytes], b"READY=1\n");
    assert!(!hosts.fake.held().is_empty(), "nothing was hanging");
    daemon.wait_stderr("still being opened; the others are served disks=\"hung\"", HANG).unwrap();
    assert_eq!(hosts.place.stats()["opening"], json!(["hung"]));
    assert_eq!(hosts.connect("well").write(0, &pattern(4096, 1)).unwrap(), Status::Ok);
    // It is served when its host answers.
    hosts.fake.release();
    daemon.wait_stdout("hung.sock", HANG).unwrap();
    assert_eq!(hosts.connect("hung").write(0, &pattern(4096, 1)).unwrap(), Status::Ok);
    crate::fixture::stop(daemon);
}

/// Regression: each client that added and removed a disk left a thread that waited for the host.
#[test]
fn disks_that_are_removed_while_their_host_hangs_in_open_are_bounded() {
    let Some(hosts) = Hosts::new() else { return };
    let place = &hosts.place;
    place.succeed(&["create", "--size", "1M", "at/hung.raw"]);
    let daemon = keeper(place, &[], 1);
    hosts.fake.stop();
    let put = |name: &str| {
        let socket = place.text(&format!("{name}.sock"));
        let keys = json!({ "image": place.text("at/hung.raw"), "socket": socket });
        ask(place, "PUT", &format!("/v1/disks/{name}"), &keys.to_string()).0
    };
    let delete = |name: &str| ask(place, "DELETE", &format!("/v1/disks/{name}"), "");
    for index in 0..32 {
        let name = format!("d{index}");
        assert_eq!((put(&name), delete(&name).0), (202, 200));
    }
    assert_eq!(put("more"), 202);
    let (status, said) = delete("more");
    let why = "32 removed disks are still being opened";
    assert!(status == 409 && said.contains(why), "{status} {said}");
    assert_eq!(listed(place, "more")["state"], "opening");
    assert_eq!(list(place).len(), 1);
    hosts.fake.release();
    // The removed ones release the image.
    wait_until("it may be removed", || delete("more").0 == 200);
    // It fails if they are slow to do so, and is tried again.
    wait_until("it is served", || {
        put("more") == 200 && listed(place, "more")["state"] == "serving"
    });
    crate::fixture::stop(daemon);
}

/// Regression: the only visible state of a recovery was that it was not over.
#[test]
fn a_log_image_that_is_recovered_is_listed_with_its_progress() {
    let Some(hosts) = Hosts::new() else { return };
    let place = &hosts.place;
    place.succeed(&["create", "--size", "64M", "at/hung.flow"]);
    let mut daemon = keeper(place, &[], 1);
    let (image, socket) = (place.text("at/hung.flow"), place.text("hung.sock"));
    let keys = json!({ "image": image, "socket": socket }).to_string();
    assert_eq!(ask(place, "PUT", "/v1/disks/hung", &keys).0, 202);
    let is_served = |disk: Value| if disk["state"] == "serving" { Ok(disk) } else { Err(disk) };
    let served = wait_for("it is served", || is_served(listed(place, "hung")));
    assert_eq!(served["progress"], Value::Null);
    let (mut guest, data) = (hosts.connect("hung"), pattern(1 << 20, 3));
    for lba in (0..16).map(|number| number * 2048) {
        assert_eq!(guest.write(lba, &data).unwrap(), Status::Ok);
    }
    assert_eq!(guest.flush().unwrap(), Status::Ok);
    daemon.kill().unwrap();
    hosts.fake.keep(Call::Read);
    let daemon = keeper(place, &[], 1);
    // One read after the other, until the recovery begins; and some more.
    let mut seen: Vec<[u64; 2]> = Vec::new();
    while seen.len() < 4 {
        hosts.fake.wait_until_kept();
        let disk = listed(place, "hung");
        assert_eq!(disk["state"], "opening");
        let figure = |key: &str| disk["progress"][key].as_u64();
        seen.extend(figure("segments_read").zip(figure("segments")).map(|(a, b)| [a, b]));
        if seen.len() < 4 {
            hosts.fake.keep(Call::Read);
        }
    }
    assert!(seen.is_sorted() && seen[0][0] == 0 && seen[3][0] <= seen[3][1], "{seen:?}");
    assert!(seen.iter().all(|it| it[1] == seen[0][1]), "{seen:?}");
    let control = place.text("control.sock");
    let said = format!("{} of {} segments read", seen[3][0], seen[3][1]);
    let listed_text = place.succeed(&["disk", "list", "--control", &control]);
    assert!(listed_text.starts_with(&format!("hung  opening: {said} (api), no guest,")));
    let mut add = DaemonCommand::new(env!("CARGO_BIN_EXE_flowstone"))
        .args(["disk", "add", "--control", &control, "--name", "hung", "--socket", &socket])
        .args([&image])
        .ready(Ready::Now)
        .spawn()
        .unwrap();
    add.wait_stderr(&format!("hung is being opened: {said}"), HANG).unwrap();
    hosts.fake.recover();
    assert!(add.wait(HANG).unwrap().success());
    assert_eq!(listed(place, "hung")["progress"], Value::Null);
    let mut back = vec![0; data.len()];
    assert_eq!(hosts.connect("hung").read(15 * 2048, &mut back).unwrap(), Status::Ok);
    assert!(back == data);
    crate::fixture::stop(daemon);
}

/// Regression: the process exited while a report, or the resource monitor, was the last to use a
/// disk. Its image stayed as after a kill: a qcow2 image had leaks, and could not be moved.
#[test]
fn an_image_that_a_report_uses_is_closed_before_the_daemon_exits() {
    for format in ["qcow2", "flow"] {
        let Some(hosts) = Hosts::new() else { return };
        let mut daemon = hosts.serve(format, "", "");
        assert_eq!(hosts.connect("hung").write(0, &pattern(1 << 20, 3)).unwrap(), Status::Ok);
        hosts.fake.keep(Call::GetAttr);
        let control = hosts.place.text("control.sock");
        std::thread::scope(|scope| {
            // The daemon may exit before it answers.
            scope.spawn(|| hosts.place.run(&["stats", "--control", &control]));
            hosts.fake.wait_until_kept();
            daemon.signal(Signal::TERM).unwrap();
            wait_until("the disk stops", || !hosts.place.path("hung.sock").exists());
            hosts.fake.recover();
        });
        assert!(daemon.wait(HANG).unwrap().success(), "{}", daemon.stderr());
        let image = hosts.place.text(&format!("at/hung.{format}"));
        let info = hosts.place.succeed(&["info", "--json", &image]);
        let info: Value = serde_json::from_str(&info).unwrap();
        assert_ne!(info["log"]["clean"], false, "{info}");
        assert!(!has_redo_file(&hosts.place.path("behind")), "it is left");
    }
}

fn with_every_format(head: &str, form: &str) {
    for format in ["raw", "qcow2", "flow"] {
        for engine in ["uring", "sync"] {
            one_host_stops(format, head, &format!("pipeline = '{form}'\nengine = '{engine}'\n"));
        }
    }
}

#[test]
fn a_host_that_stops_holds_up_its_own_disk_only_on_a_shared_poller() {
    with_every_format("pollers = 1\n", "fused");
}

#[test]
fn a_host_that_stops_holds_up_its_own_disk_only_where_queues_have_two_threads() {
    with_every_format("pollers = 1\n", "split");
}

#[test]
fn a_host_that_stops_holds_up_its_own_disk_only_beside_a_cache() {
    with_every_format("pollers = 1\ncache = '32M'\n", "fused");
}

#[test]
fn a_host_that_stops_holds_up_its_own_disk_only_where_forms_are_chosen() {
    with_every_format("pollers = 'auto'\n", "auto");
}

#[test]
fn a_host_that_stops_holds_up_its_own_disk_only_where_queues_have_threads_of_their_own() {
    with_every_format("pollers = 'per-queue'\n", "auto");
}

/// No waiting request is lost, and a slow host is only slow.
#[test]
fn a_slow_host_serves_every_form_engine_and_format() {
    for form in ["fused", "split"] {
        for engine in ["uring", "sync"] {
            for format in ["raw", "qcow2", "flow"] {
                let Some(hosts) = Hosts::new() else { return };
                let keys = format!("pipeline = '{form}'\nengine = '{engine}'\n");
                let daemon = hosts.serve(format, "pollers = 1\n", &keys);
                let (mut slow, data) = (hosts.connect("hung"), pattern(256 << 10, 7));
                hosts.fake.slow(Duration::from_millis(2));
                assert_eq!(slow.write(0, &data).unwrap(), Status::Ok);
                assert_eq!(slow.flush().unwrap(), Status::Ok);
                let mut back = vec![0; data.len()];
                assert_eq!(slow.read(0, &mut back).unwrap(), Status::Ok);
                assert!(back == data);
                drop(slow);
                crate::fixture::stop(daemon);
            }
        }
    }
}
