//! Several disks in one daemon, and that none of them can hurt another.

use flowstone_testkit::process::Ready;
use flowstone_testkit::{Client, ClientOptions, DaemonCommand, Status};

use crate::fixture::{Place, stop};

fn config(place: &Place, disks: &[(&str, &str)]) -> String {
    let mut text = format!("control = {:?}\n", place.text("control.sock"));
    for (name, line) in disks {
        let socket = place.text(&format!("{name}.sock"));
        text += &format!("[[disk]]\nname = {name:?}\nsocket = {socket:?}\n{line}\n");
    }
    std::fs::write(place.path("flowstone.toml"), text).unwrap();
    place.text("flowstone.toml")
}

fn serve(config: &str, ready: usize) -> flowstone_testkit::Daemon {
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
