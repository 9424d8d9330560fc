//! Several disks in one daemon, and that none of them can hurt another.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use flowstone_testkit::process::Ready;
use flowstone_testkit::{Client, ClientOptions, DaemonCommand, Request, Status};

use crate::fixture::{Place, stop};

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
    DaemonCommand::new(env!("CARGO_BIN_EXE_flowstone"))
        .args(["serve", "--config", config])
        .ready(Ready::Listening(ready))
        .spawn()
        .unwrap()
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
    let daemon = serve(&file, 3);
    let connect = |name: &str| {
        Client::connect(ClientOptions::new(place.path(&format!("{name}.sock")))).unwrap()
    };
    let (mut good, mut failing, mut cut) = (connect("good"), connect("failing"), connect("cut"));
    assert_eq!(failing.write(0, &[1; 512]).unwrap(), Status::IoErr);
    std::fs::File::options().write(true).open(place.path("cut.raw")).unwrap().set_len(0).unwrap();
    assert_eq!(cut.read(0, &mut [0; 512]).unwrap(), Status::IoErr);
    assert_eq!(good.write(0, &[1; 512]).unwrap(), Status::Ok);
    assert_eq!(good.flush().unwrap(), Status::Ok);
    assert!(daemon.stderr().contains("missing.raw: no such file"), "{}", daemon.stderr());
    let stats = place.stats();
    let names: Vec<_> =
        stats["disks"].as_array().unwrap().iter().map(|disk| disk["name"].clone()).collect();
    assert_eq!(names, ["good", "failing", "cut"]);
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
    assert!(place.refused(&["serve", "--config", &file]).contains("unknown field `nmae`"));
    assert!(place.refused(&["serve", "--config", "none.toml"]).contains("No such file"));
}

/// A monitor in the middle of a message kept the daemon from stopping, and the disks behind it
/// from finishing and flushing.
#[test]
fn a_disk_whose_monitor_is_stuck_does_not_keep_the_others_from_stopping() {
    let place = Place::new();
    let image = |name: &str| {
        place.succeed(&["create", "--size", "1M", &format!("{name}.raw")]);
        format!("image = {:?}", place.text(&format!("{name}.raw")))
    };
    let log = format!("layers = [\"delay=300ms\", \"log={}\"]", place.text("requests.log"));
    let file = config(
        &place,
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
    // In flight is what the daemon has taken.
    let requests = || std::fs::read_to_string(place.path("requests.log")).unwrap();
    for _ in 0..500 {
        if requests().contains(" write ") {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    stop(daemon);
    assert!(good.ring(0).queue.has_used(), "what was in flight is not finished");
    assert_eq!(std::fs::read(place.path("good.raw")).unwrap()[4096..8192], [7; 4096]);
    let log = requests();
    let flushed = log.find("submit 0 flush").expect("a flush at the end");
    assert!(flushed > log.find(" write ").unwrap(), "{log}");
    assert!(log.ends_with("finish 0 ok\n"), "{log}");
    drop(stuck);
}

/// A name that was also a file in the operator's folder was taken for that file, and not found.
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
