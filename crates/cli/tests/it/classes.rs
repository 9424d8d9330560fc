//! Requests are classified by the contents of the disk, in any format, and operators can see it.

use std::time::Duration;

use flowstone_testkit::truth::{Holds, Truth, run};
use flowstone_testkit::{Client, Request, Status};
use serde_json::Value;

use crate::fixture::{Place, stop};

const MIB: u64 = 1 << 20;
/// I/O priority of jbd2: best effort, level 3.
const JOURNAL_IOPRIO: u32 = 0x4003;
/// I/O priority with which the guest module marks metadata.
const METADATA_IOPRIO: u32 = 0x4304;

fn layout(place: &Place) -> Value {
    let control = place.text("control.sock");
    let text = place.succeed(&["stats", "--control", &control, "--layout", "disk", "--json"]);
    serde_json::from_str(&text).unwrap()
}

/// Waits until these kinds have been recognised.
fn wait_for(place: &Place, kinds: &[&str]) -> Value {
    flowstone_testkit::wait_for(&format!("{kinds:?}"), || {
        let layout = layout(place);
        let found = layout["found"].as_array().unwrap();
        let found = found.iter().map(|it| it["kind"].as_str().unwrap());
        let are_these = layout["readings"] != 0 && found.eq(kinds.iter().copied());
        if are_these { Ok(layout) } else { Err(layout) }
    })
}

fn classes(place: &Place) -> Value {
    place.stats()["disks"][0]["classes"].clone()
}

/// Returns the requests and bytes of a class: reads, then writes.
fn count(classes: &Value, class: &str) -> [u64; 4] {
    ["reads", "writes", "bytes_read", "bytes_written"]
        .map(|key| classes[class][key].as_u64().unwrap())
}

/// Makes a raw image with ext4. Returns a block of its journal, of metadata and of data.
fn ext4(place: &Place) -> [u64; 3] {
    let image = place.image("64M");
    let image = image.to_str().unwrap();
    run("mkfs.ext4", &["-q", "-F", "-b", "4096", "-J", "size=4", "-L", "root", image], "");
    let truth = Truth::of_ext4(image);
    let holding =
        |holds| (0..64 * MIB).step_by(4096).find(|at| truth.at(*at) == holds && *at > 8192);
    [Some(Holds::Journal), Some(Holds::FixedMetadata), None].map(|holds| holding(holds).unwrap())
}

fn write(client: &mut Client, at: u64, ioprio: u32) {
    let request = Request::write(at / 512, &[1; 4096]).with_ioprio(ioprio);
    assert_eq!(client.request(&request).unwrap().status, Status::Ok);
}

#[test]
fn requests_are_counted_by_class_on_every_format() {
    for image in ["disk.raw", "disk.qcow2", "disk.flow"] {
        println!("{image}");
        let place = Place::new();
        let blocks = ext4(&place);
        if image != "disk.raw" {
            place.succeed(&["convert", "disk.raw", image]);
        }
        let daemon = place.serve(&["--name", "disk", image]);
        let seen = wait_for(&place, &["ext4"]);
        assert_eq!(seen["found"][0]["label"], "root");
        assert_eq!(seen["found"][0]["journal_bytes"], 4 * MIB);
        let mut client = place.client();
        for (at, times) in blocks.into_iter().zip(1..) {
            (0..times).for_each(|_| write(&mut client, at, 0));
            let mut block = [0; 4096];
            assert_eq!(client.read(at / 512, &mut block).unwrap(), Status::Ok);
            assert_eq!(block, [1; 4096]);
        }
        assert_eq!(client.flush().unwrap(), Status::Ok);
        let seen = classes(&place);
        for (class, times) in ["journal", "metadata", "data"].into_iter().zip(1..) {
            assert_eq!(count(&seen, class), [1, times, 4096, times * 4096], "{class}: {seen}");
        }
        assert_eq!(seen["rules"]["layout"], 9);
        let control = place.text("control.sock");
        let said = place.succeed(&["stats", "--control", &control]);
        assert!(said.contains(", journal reads 1, journal writes 1, "), "{said}");
        let said = place.succeed(&["stats", "--control", &control, "--layout", image]);
        assert!(said.starts_with("ext4 at sector 0, 64 MiB, 4 MiB of journal, "), "{said}");
        assert!(said.trim_end().ends_with(" of fixed metadata, called \"root\""), "{said}");
        drop(client);
        stop(daemon);
    }
}

#[test]
fn a_layout_follows_what_the_guest_does_to_its_disk() {
    let place = Place::new();
    let [journal, ..] = ext4(&place);
    let begin = std::fs::read(place.path("disk.raw")).unwrap()[..MIB as usize].to_vec();
    let daemon = place.serve(&["--name", "disk", "disk.raw"]);
    wait_for(&place, &["ext4"]);
    let mut client = place.client();
    let erase = |client: &mut Client, how: u8| match how {
        0 => client.write(2, &[0; 1024]).unwrap(),
        1 => client.discard(&[(0, 2048)]).unwrap(),
        _ => client.write_zeroes(&[(0, 8)], false).unwrap(),
    };
    for how in 0..3 {
        assert_eq!(erase(&mut client, how), Status::Ok);
        wait_for(&place, &[]);
        write(&mut client, journal, 0);
        assert_eq!(count(&classes(&place), "journal")[1], u64::from(how));
        assert_eq!(client.write(0, &begin).unwrap(), Status::Ok);
        wait_for(&place, &["ext4"]);
        write(&mut client, journal, 0);
        assert_eq!(count(&classes(&place), "journal")[1], u64::from(how) + 1);
    }
    // Writes outside the definers do not cause the layout to be read. (It is read once more after
    // its definers changed.)
    let readings = || layout(&place)["readings"].clone();
    flowstone_testkit::wait_until("it is not read", || {
        let before = readings();
        write(&mut client, journal, 0);
        std::thread::sleep(Duration::from_millis(1500));
        readings() == before
    });
    drop(client);
    stop(daemon);
}

#[test]
fn where_nothing_is_known_the_guests_priorities_count() {
    let place = Place::new();
    place.image("16M");
    for (options, level) in [(&[][..], 3), (&["--journal-ioprio", "1"], 1)] {
        let daemon = place.serve(&[&["--name", "disk"], options, &["disk.raw"]].concat());
        let mut client = place.client();
        for other in 0..8 {
            write(&mut client, MIB, 0x4000 + other);
        }
        write(&mut client, MIB, METADATA_IOPRIO);
        let seen = classes(&place);
        assert_eq!(count(&seen, "journal")[1], 1, "level {level}: {seen}");
        assert_eq!(count(&seen, "metadata")[1], 1, "{seen}");
        assert_eq!(
            (&seen["rules"]["hint"], &seen["rules"]["none"]),
            (&Value::from(2), &Value::from(7))
        );
        drop(client);
        stop(daemon);
    }
    let usage = place.run(&["serve", "--socket", "s.sock", "--journal-ioprio", "8", "disk.raw"]);
    let said = String::from_utf8_lossy(&usage.stderr).into_owned();
    assert_eq!(usage.status.code(), Some(2), "{said}");
    assert!(said.contains("8 is not in 0..=7"), "{said}");
}

#[test]
fn in_a_known_file_system_the_journals_priority_is_no_journal() {
    let place = Place::new();
    let [_, _, data] = ext4(&place);
    let daemon = place.serve(&["--name", "disk", "disk.raw"]);
    wait_for(&place, &["ext4"]);
    let mut client = place.client();
    write(&mut client, data, JOURNAL_IOPRIO);
    write(&mut client, data, METADATA_IOPRIO);
    let seen = classes(&place);
    assert_eq!((count(&seen, "data")[1], count(&seen, "metadata")[1]), (1, 1), "{seen}");
    drop(client);
    stop(daemon);
}

#[test]
fn the_layout_of_no_disk_is_an_error() {
    let place = Place::new();
    place.image("16M");
    let daemon = place.serve(&["disk.raw"]);
    let control = place.text("control.sock");
    let refusal = place.refused(&["stats", "--control", &control, "--layout", "other"]);
    assert!(
        refusal.contains("layout of other: no disk is called that; see `flowstone stats`"),
        "{refusal}"
    );
    let said = place.succeed(&["stats", "--control", &control, "--layout", "disk.raw"]);
    assert_eq!(said, "nothing recognised\n");
    stop(daemon);
}
