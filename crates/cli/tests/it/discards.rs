//! The effect of discards and zeroes on the host's file.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use flowstone_testkit::load::{LoadOptions, Mix, Order, Workload, run};
use flowstone_testkit::{Request, Status, virtio};

use crate::fixture::{Place, stop};

const MIB: u64 = 1 << 20;

fn allocated(path: &Path) -> u64 {
    path.metadata().unwrap().blocks() * 512
}

#[test]
fn detected_zeroes_take_no_room_and_read_as_zeroes() {
    // Bytes allocated after writing 4 MiB of zeroes over 8 MiB of data.
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
        // The guest's requests are counted by their original kind.
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
    assert!(String::from_utf8_lossy(&usage.stderr).contains("[possible values: off, on, unmap]"));
    // Without unmapping it is allowed.
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
        if !place.keeps_space() {
            return;
        }
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

/// On a host without a call for zeroes, each request wrote as much as it liked, whatever the limit.
#[test]
fn zeroes_where_the_host_has_no_call_for_them_are_short_and_held_to_the_limit() {
    let place = Place::new();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = memory.path().join("disk.raw");
    std::fs::File::create(&path).unwrap().set_len(1 << 34).unwrap();
    let image = path.to_str().unwrap();
    let daemon = place.serve(&["--name", "disk", "--limit", "bw=1", image]);
    let mut client = place.client();
    assert_eq!(client.config().max_write_zeroes_sectors, 8192);
    assert_eq!(client.write_zeroes(&[(0, 8193)], false).unwrap(), Status::Unsupp);
    assert_eq!(client.write_zeroes(&[(0, 8192)], false).unwrap(), Status::Ok);
    // It was charged its bytes: following requests wait for days, and a stop ends them at once.
    client.submit(0, &Request::write_zeroes(&[(0, 8192)], false)).unwrap();
    client.notify(0).unwrap();
    stop(daemon);
    assert!(allocated(&path) <= 5 * MIB);
}

#[test]
fn compact_gives_back_what_a_raw_image_holds_of_zeroes() {
    let place = Place::new();
    let path = place.image("9M");
    let mut content = vec![0; 9 << 20];
    content[1 << 20..2 << 20].fill(7);
    content[(8 << 20) - 512..8 << 20].fill(9);
    std::fs::write(&path, &content).unwrap();
    let allocated = || path.metadata().unwrap().blocks() * 512;
    assert!(allocated() >= 9 << 20);
    let said = place.succeed(&["compact", "disk.raw"]);
    assert!(said.contains("on the host         9 MiB       1 MiB"), "{said}");
    assert!(allocated() <= (1 << 20) + (64 << 10), "{} bytes", allocated());
    assert!(std::fs::read(&path).unwrap() == content);
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
    assert!(said.contains("[possible values: deallocate, keep, ignore]"), "{said}");
    // Unmapped space would not be kept.
    place.image("1M");
    let unmap = ["keep", "--detect-zeroes", "unmap", "disk.raw"];
    place.refused(&[&serve[..], &unmap].concat());
}

#[test]
fn what_is_a_hole_already_is_not_punched_again() {
    for engine in ["uring", "sync"] {
        let place = Place::new();
        let path = place.image("64M");
        let daemon = place.serve(&["--engine", engine, "disk.raw"]);
        let mut client = place.client();
        let counted = || place.stats()["disks"][0]["discards"].clone();
        let all = [(0, 64 * 2048)];
        assert_eq!(client.discard(&all).unwrap(), Status::Ok);
        assert_eq!(counted()["punches"], 0, "an empty file was punched");
        for n in 0..4 {
            assert_eq!(client.write(n * 4096, &vec![1; MIB as usize]).unwrap(), Status::Ok);
        }
        // Allocated space without data is returned, too.
        assert_eq!(client.write_zeroes(&[(40 * 2048, 2048)], false).unwrap(), Status::Ok);
        assert_eq!(client.flush().unwrap(), Status::Ok);
        assert!(allocated(&path) >= 5 * MIB);
        assert_eq!(client.discard(&all).unwrap(), Status::Ok);
        assert_eq!(allocated(&path), 0, "{engine}: space was not returned");
        let once = counted()["punches"].as_u64().unwrap();
        assert!(once > 0);
        let mut back = vec![1; MIB as usize];
        assert_eq!(client.read(4096, &mut back).unwrap(), Status::Ok);
        assert!(back.iter().all(|byte| *byte == 0));
        assert_eq!(client.discard(&all).unwrap(), Status::Ok);
        assert_eq!(counted()["punches"], once);
        assert_eq!(
            (counted()["ranges"].as_u64(), counted()["waiting"].as_u64()),
            (Some(3), Some(0))
        );
        assert!(
            place
                .succeed(&["stats", "--control", &place.text("control.sock")])
                .contains(" ranges 3, requests 3")
        );
        stop(daemon);
    }
}

#[test]
fn discards_that_come_together_become_one_and_each_is_answered() {
    let place = Place::new();
    let path = place.image("64M");
    let daemon = place.serve(&["disk.raw"]);
    let mut client = place.client();
    for n in 0..16 {
        assert_eq!(client.write(n * 2048, &vec![1; MIB as usize]).unwrap(), Status::Ok);
    }
    assert_eq!(client.flush().unwrap(), Status::Ok);
    // Every other 32 KiB first, then those between, and the second half of the file backwards.
    let order = (0..256).step_by(2).chain((1..256).step_by(2)).chain((256..512).rev());
    let places: Vec<u64> = order.map(|n| n * 64).collect();
    for some in places.chunks(32) {
        for sector in some {
            client.submit(0, &Request::discard(&[(*sector, 64)])).unwrap();
        }
        client.notify(0).unwrap();
        let answers = client.drain(0).unwrap();
        assert!(answers.iter().all(|answer| answer.status == Status::Ok), "{answers:?}");
    }
    assert_eq!(allocated(&path), 0);
    let counted = &place.stats()["disks"][0]["discards"];
    println!("{counted}");
    assert_eq!((counted["ranges"].as_u64(), counted["waiting"].as_u64()), (Some(512), Some(0)));
    assert_eq!(counted["bytes"].as_u64(), Some(16 * MIB));
    assert!(counted["merged"].as_u64() < Some(450), "nothing was merged: {counted}");
    assert!(counted["punches"].as_u64() <= counted["merged"].as_u64(), "{counted}");
    stop(daemon);
}

#[test]
fn a_storm_of_discards_from_several_queues_loses_nothing() {
    for args in [
        ["--discard", "deallocate", "--engine", "uring", "disk.raw"],
        ["--discard", "keep", "--engine", "uring", "disk.raw"],
        ["--discard", "deallocate", "--engine", "sync", "disk.raw"],
        ["--discard", "deallocate", "--engine", "uring", "disk.qcow2"],
        ["--discard", "deallocate", "--engine", "uring", "disk.flow"],
    ] {
        println!("{args:?}");
        let place = Place::new();
        if args[1] == "keep" && !place.keeps_space() {
            continue;
        }
        place.succeed(&["create", "--size", "64M", args[4]]);
        let daemon = place.serve(&[&["--pollers", "per-queue"], &args[..]].concat());
        let mut options = LoadOptions::new(place.path("disk.sock")).iodepth(32).ops(6000);
        options.client = options.client.queues(3);
        let mix = Mix { read: 25, write: 35, discard: 30, zeroes: 10 };
        options.workload = Workload { order: Order::Random, mix };
        options.span_bytes = 8 * MIB;
        options.flush_every = 40;
        (options.verify, options.verify_final, options.discard_zeroes) = (true, true, true);
        let report = run(&options).unwrap();
        assert_eq!(report.errors, 0, "{:?}", report.first_error);
        let counted = &place.stats()["disks"][0]["discards"];
        println!("{counted}");
        assert!(counted["ranges"].as_u64() > Some(2000), "{counted}");
        assert_eq!(counted["waiting"], 0);
        stop(daemon);
    }
}
