//! What discards and zeroes do to the host's file.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use flowstone_testkit::Status;
use flowstone_testkit::virtio;

use crate::fixture::{Place, stop};

const MIB: u64 = 1 << 20;

fn allocated(path: &Path) -> u64 {
    path.metadata().unwrap().blocks() * 512
}

#[test]
fn detected_zeroes_take_no_room_and_read_as_zeroes() {
    // What writing 4 MiB of zeroes over 8 MiB of data leaves allocated.
    for (mode, image, left) in [
        ("off", "disk.raw", 8 * MIB),
        ("on", "disk.raw", 8 * MIB),
        ("unmap", "disk.raw", 4 * MIB),
        ("unmap", "disk.flow", u64::MAX),
    ] {
        println!("{mode} {image}");
        let place = Place::new();
        place.succeed(&["create", "--size", "64M", image]);
        let daemon = place.serve(&["--detect-zeroes", mode, image]);
        let mut client = place.client();
        for n in 0..8 {
            assert_eq!(client.write(n * 2048, &vec![1; MIB as usize]).unwrap(), Status::Ok);
        }
        for n in 0..4 {
            assert_eq!(client.write(n * 2048, &vec![0; MIB as usize]).unwrap(), Status::Ok);
        }
        // Neither whole nor aligned: written as they are.
        assert_eq!(client.write(8 * 2048 + 1, &[0; 4096]).unwrap(), Status::Ok);
        assert_eq!(client.flush().unwrap(), Status::Ok);
        for n in 0..8 {
            let mut back = vec![0xff; MIB as usize];
            assert_eq!(client.read(n * 2048, &mut back).unwrap(), Status::Ok);
            assert!(back.iter().all(|byte| *byte == u8::from(n >= 4)), "MiB {n}");
        }
        let took = allocated(&place.path(image));
        if left != u64::MAX {
            assert!((left..left + MIB / 4).contains(&took), "{mode} left {took} bytes");
        }
        let disk = &place.stats()["disks"][0];
        // The guest's requests are counted as what they were.
        assert_eq!(disk["total"]["requests"]["write"], 13);
        assert_eq!(disk["total"]["requests"]["write_zeroes"], 0);
        match mode {
            "off" => assert!(disk["detected_zeroes"].is_null()),
            _ => {
                assert_eq!(disk["detected_zeroes"]["requests"], 4);
                assert_eq!(disk["detected_zeroes"]["bytes"], 4 * MIB);
            }
        }
        stop(daemon);
    }
}

#[test]
fn detected_zeroes_of_a_write_through_disk_are_durable() {
    let place = Place::new();
    place.image("1M");
    // What has not been flushed dies with this daemon.
    let mut daemon = place.serve(&["--engine", "volatile", "--detect-zeroes", "unmap", "disk.raw"]);
    let mut client = place.client();
    client.set_wce(false).unwrap();
    assert_eq!(client.write(0, &[1; 8192]).unwrap(), Status::Ok);
    assert_eq!(client.write(0, &[0; 4096]).unwrap(), Status::Ok);
    daemon.kill().unwrap();
    let bytes = std::fs::read(place.path("disk.raw")).unwrap();
    assert!(bytes[..4096].iter().all(|byte| *byte == 0), "a durable write was lost");
    assert!(bytes[4096..8192].iter().all(|byte| *byte == 1));
}

#[test]
fn zeroes_are_not_unmapped_where_discards_may_not_be() {
    let place = Place::new();
    place.image("1M");
    let serve = ["serve", "--socket", "s.sock", "--detect-zeroes", "unmap"];
    let with = |more: &[&str]| place.refused(&[&serve[..], more, &["disk.raw"]].concat());
    let refusal = with(&["--discard", "ignore"]);
    assert!(refusal.contains("use --discard deallocate or --detect-zeroes on"), "{refusal}");
    assert!(!place.path("s.sock").exists());
    let usage = place.run(&[&serve[..4], &["yes", "disk.raw"]].concat());
    assert_eq!(usage.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&usage.stderr).contains("use off, on or unmap"));
    // Without unmapping there is nothing against it.
    let daemon = place.serve(&["--discard", "ignore", "--detect-zeroes", "on", "disk.raw"]);
    let mut client = place.client();
    assert!(!client.negotiated().has(virtio::F_DISCARD));
    assert_eq!(client.write(0, &[0; 4096]).unwrap(), Status::Ok);
    assert_eq!(place.stats()["disks"][0]["detected_zeroes"]["requests"], 1);
    stop(daemon);
}

#[test]
fn kept_space_reads_as_zeroes_and_stays_allocated() {
    for engine in ["uring", "sync"] {
        let place = Place::new();
        let path = place.image("16M");
        let args = ["--discard", "keep", "--engine", engine, "disk.raw"];
        let daemon = place.serve(&args);
        let mut client = place.client();
        assert!(client.negotiated().has(virtio::F_DISCARD));
        for n in 0..8 {
            assert_eq!(client.write(n * 2048, &vec![1; MIB as usize]).unwrap(), Status::Ok);
        }
        assert_eq!(client.flush().unwrap(), Status::Ok);
        let before = allocated(&path);
        // Data and holes alike: the file neither shrinks nor grows.
        assert_eq!(client.discard(&[(2048, 15 * 2048)]).unwrap(), Status::Ok);
        assert_eq!(client.write_zeroes(&[(0, 1024)], true).unwrap(), Status::Ok);
        assert_eq!(client.flush().unwrap(), Status::Ok);
        let after = allocated(&path);
        assert!(before.abs_diff(after) <= MIB / 8, "{before} bytes became {after}");
        for n in 0..16 {
            let mut back = vec![0xff; MIB as usize];
            assert_eq!(client.read(n * 2048, &mut back).unwrap(), Status::Ok);
            let kept = if n == 0 { 512 << 10 } else { MIB as usize };
            assert!(back[..kept].iter().all(|byte| *byte == 0), "MiB {n}");
            assert!(back[kept..].iter().all(|byte| *byte == 1), "MiB {n}");
        }
        stop(daemon);
    }
}

#[test]
fn a_log_image_keeps_no_space_for_what_is_discarded() {
    let place = Place::new();
    place.succeed(&["create", "--size", "64M", "disk.flow"]);
    let serve = ["serve", "--socket", "s.sock", "--discard"];
    let refusal = place.refused(&[&serve[..], &["keep", "disk.flow"]].concat());
    assert!(refusal.contains("use --discard deallocate or ignore, or a raw image"), "{refusal}");
    let usage = place.run(&[&serve[..], &["maybe", "disk.flow"]].concat());
    assert_eq!(usage.status.code(), Some(2));
    let said = String::from_utf8_lossy(&usage.stderr).into_owned();
    assert!(said.contains("use deallocate, keep or ignore"), "{said}");
    // Space that is unmapped would not be kept.
    place.image("1M");
    let unmap = ["keep", "--detect-zeroes", "unmap", "disk.raw"];
    place.refused(&[&serve[..], &unmap].concat());
}
