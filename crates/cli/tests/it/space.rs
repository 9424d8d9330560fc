//! Space of an image in `stats` and `info`, compared with the host's.

use std::os::unix::fs::MetadataExt;

use flowstone_testkit::{Status, wait_until};
use serde_json::Value;

use crate::fixture::{Place, stop};

const MIB: u64 = 1 << 20;
const WRITTEN_MIB: u64 = 24;
/// Map, tables, the ends of segments, and segments kept ready.
const OVERHEAD: u64 = 16 * MIB;
/// Bytes left when the guest has discarded the rest.
const LIVE: u64 = 7 * MIB;

fn bytes(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap()
}

fn on_host(place: &Place, image: &str) -> u64 {
    place.path(image).metadata().unwrap().blocks() * 512
}

#[test]
fn every_format_reports_what_it_takes_and_gives_back() {
    for image in ["disk.raw", "disk.qcow2", "disk.flow"] {
        println!("{image}");
        reports_what_it_takes_and_gives_back(image);
    }
}

fn reports_what_it_takes_and_gives_back(image: &str) {
    let place = Place::new();
    place.succeed(&["create", "--size", "64M", image]);
    let daemon = place.serve(&[image]);
    let mut client = place.client();
    let disk = || place.stats()["disks"][0].clone();
    let data = vec![1; MIB as usize];
    for n in 0..WRITTEN_MIB {
        assert_eq!(client.write(n * 2048, &data).unwrap(), Status::Ok);
    }
    assert_eq!(client.flush().unwrap(), Status::Ok);
    // A log image frees space allocated ahead of a fast guest after two seconds.
    wait_until("what it takes is what was written, and little more", || {
        let took = bytes(&disk()["space"], "allocated_bytes");
        (WRITTEN_MIB * MIB..WRITTEN_MIB * MIB + OVERHEAD).contains(&took)
    });
    let full = disk()["space"].clone();
    assert_eq!(full["virtual_bytes"], 64 * MIB);
    assert_eq!(bytes(&full, "live_bytes") / MIB, WRITTEN_MIB);

    // Eight requests of two ranges: all but the first eight MiB, from both ends.
    for n in 0..8 {
        let ranges = [((8 + n) * 2048, 2048), ((23 - n) * 2048, 2048)];
        assert_eq!(client.discard(&ranges).unwrap(), Status::Ok);
    }
    assert_eq!(client.write_zeroes(&[(0, 2048)], true).unwrap(), Status::Ok);
    assert_eq!(client.flush().unwrap(), Status::Ok);
    wait_until("the host has its space back", || {
        bytes(&disk()["space"], "reclaimed_bytes") >= WRITTEN_MIB * MIB - LIVE - MIB
    });
    let space = disk()["space"].clone();
    // Parts of the last cluster and the last segment may stay.
    let known = bytes(&space, "live_bytes");
    assert!((LIVE..LIVE + MIB / 4).contains(&known), "{space}");
    // Maintenance may free more between the two looks.
    wait_until("what is reported is so", || {
        let now = disk();
        bytes(&now["discards"], "waiting") == 0
            && bytes(&now["space"], "allocated_bytes") == on_host(&place, image)
    });
    assert_eq!(space.get("dead_bytes").is_some(), image != "disk.raw");
    let discards = disk()["discards"].clone();
    let counted = ["requests", "ranges", "bytes", "waiting"].map(|key| bytes(&discards, key));
    // The ranges of the last request are adjacent, and merged.
    assert_eq!(counted, [8, 15 + 1, 17 * MIB, 0]);
    for key in ["merged", "punches"] {
        assert!(bytes(&discards, key) > 0, "{key}");
    }
    assert!(bytes(&discards, "punched_bytes") >= bytes(&space, "reclaimed_bytes"));
    let said = place.succeed(&["stats", "--control", &place.text("control.sock")]);
    assert!(said.contains(" reclaimed ") && said.contains(", virtual 64 MiB"), "{said}");
    assert!(said.contains("discards: bytes 17 MiB, ") && said.contains(", ranges 16, "), "{said}");
    drop(client);
    stop(daemon);
    info_says_the_same(&place, image);
}

fn info_says_the_same(place: &Place, image: &str) {
    let info: Value = serde_json::from_str(&place.succeed(&["info", "--json", image])).unwrap();
    println!("{info}");
    assert_eq!(info["virtual_bytes"], 64 * MIB);
    assert!((LIVE..LIVE + MIB / 4).contains(&bytes(&info, "live_bytes")), "{info}");
    assert_eq!(bytes(&info, "allocated_bytes"), on_host(place, image));
    assert!(place.succeed(&["info", image]).contains("\nlive        7"), "{info}");
}
