//! Every request type, in every ring mode, and the properties that the device reports.

use std::os::unix::fs::MetadataExt;

use flowstone_testkit::client::{MemoryMessage, ProtocolFeatures, Shape};
use flowstone_testkit::driver::RawDescriptor;
use flowstone_testkit::virtio;
use flowstone_testkit::{Client, ClientOptions, HANG, Request, Status, wait_until};

use crate::fixture::{Place, pattern, stop};

/// Writes, reads, discards and zeroes through one driver.
fn exercise(client: &mut Client) {
    let data = pattern(64 << 10, 1);
    let mut back = vec![0; 64 << 10];
    assert_eq!(client.write(8, &data).unwrap(), Status::Ok);
    assert_eq!(client.read(8, &mut back).unwrap(), Status::Ok);
    assert!(back == data);
    assert_eq!(client.write_zeroes(&[(16, 8), (40, 1)], false).unwrap(), Status::Ok);
    assert_eq!(client.discard(&[(64, 8), (72, 8)]).unwrap(), Status::Ok);
    assert_eq!(client.flush().unwrap(), Status::Ok);
    assert_eq!(client.read(8, &mut back).unwrap(), Status::Ok);
    for (sector, bytes) in back.chunks(512).enumerate().map(|(n, bytes)| (n + 8, bytes)) {
        let zero = (16..24).contains(&sector) || sector == 40 || (64..80).contains(&sector);
        let from = (sector - 8) * 512;
        let expected = if zero { &[0; 512][..] } else { &data[from..from + 512] };
        assert!(bytes == expected, "sector {sector} is wrong");
    }
}

#[test]
fn all_requests_work_in_all_ring_modes() {
    let place = Place::new();
    place.image("64M");
    let daemon = place.serve(&["disk.raw"]);
    let options = || place.options();
    let small = |bytes| Shape { segment_bytes: bytes, ..Shape::default() };
    let modes: [(&str, ClientOptions); 8] = [
        ("everything on", options()),
        ("no event index", options().without(virtio::F_EVENT_IDX)),
        ("no indirect", options().without(virtio::F_INDIRECT_DESC)),
        ("neither", options().without(virtio::F_EVENT_IDX | virtio::F_INDIRECT_DESC)),
        (
            "memory by region",
            ClientOptions {
                memory_message: MemoryMessage::AddRegion,
                memory_regions: 3,
                ..options()
            },
        ),
        ("no in-flight log", options().without_protocol(ProtocolFeatures::INFLIGHT_SHMFD)),
        ("small segments", ClientOptions { shape: small(512), queue_size: 256, ..options() }),
        (
            "odd framing",
            ClientOptions {
                shape: Shape {
                    segment_bytes: 4096,
                    offset_bytes: 1,
                    split_header_at: 5,
                    join_status: true,
                },
                ..options()
            },
        ),
    ];
    for (name, options) in modes {
        println!("{name}");
        exercise(&mut Client::connect(options).unwrap());
    }
    stop(daemon);
}

#[test]
fn all_requests_work_on_all_engines_and_backends() {
    for args in [
        &["--engine", "sync", "disk.raw"][..],
        &["--direct", "off", "disk.raw"],
        &["--poll", "never", "disk.raw"],
        &["--poll", "always", "disk.raw"],
        &["--layer", "verify", "--layer", "delay=0-2ms", "disk.raw"],
        &["--backend", "mem:64M"],
    ] {
        println!("{args:?}");
        let place = Place::new();
        place.image("64M");
        let daemon = place.serve(args);
        exercise(&mut place.client());
        stop(daemon);
    }
}

/// virtio 1.2, 2.7.5.3.2: a device must take descriptors followed by one indirect table.
#[test]
fn a_chain_may_end_in_an_indirect_table() {
    let place = Place::new();
    place.image("1M");
    let daemon = place.serve(&["disk.raw"]);
    let mut client = place.client();
    let data = pattern(512, 1);
    assert_eq!(client.write(3, &data).unwrap(), Status::Ok);
    let memory = client.memory().alloc(8192, 4096).unwrap();
    let at = memory.address();
    memory.write(0, &Request::read(3, 512).header());
    let entry = |addr, len, flags, next| RawDescriptor { addr, len, flags, next };
    let (table, target, status) = (memory.part(64, 32), at.plus(4096), at.plus(128));
    entry(target, 512, 2 | 1, 1).store(&table, 0);
    entry(status, 1, 2, 0).store(&table, 1);
    memory.write(128, &[0xee]);
    let queue = &mut client.ring(0).queue;
    queue.raw_descriptor(0, at.0, 16, 1, 1);
    queue.raw_descriptor(1, table.address().0, 32, 4, 0);
    queue.raw_avail(0);
    queue.publish();
    let used = queue.used_index();
    client.ring(0).kick().unwrap();
    wait_until("the answer", || client.ring(0).queue.used_index() != used);
    let mut answer = [0xee];
    memory.read(128, &mut answer);
    assert_eq!(answer, [0]);
    let mut back = vec![0; 512];
    memory.read(4096, &mut back);
    assert!(back == data);
    drop(client);
    stop(daemon);
}

#[test]
fn several_queues_serve_the_same_disk() {
    let place = Place::new();
    place.image("64M");
    let daemon = place.serve(&["--queues", "4", "disk.raw"]);
    let mut client = Client::connect(place.options().queues(4)).unwrap();
    let data = pattern(4096, 9);
    for queue in 0..4 {
        let sector = queue as u64 * 8;
        let written = client.request_on(queue, &Request::write(sector, &data)).unwrap();
        assert_eq!(written.status, Status::Ok);
        let read = client.request_on((queue + 1) % 4, &Request::read(sector, 4096)).unwrap();
        assert!(read.data == data);
    }
    let stats = place.stats();
    assert_eq!(stats["disks"][0]["queues"].as_array().unwrap().len(), 4);
    assert_eq!(stats["disks"][0]["total"]["requests"]["write"], 4);
    // While it is connected, another one waits.
    drop(client);
    assert!(Client::connect(place.options().queues(5)).is_err());
    stop(daemon);
}

#[test]
fn the_configuration_space_is_complete() {
    let place = Place::new();
    place.image("64M");
    let daemon = place.serve(&["--queues", "2", "--name", "my disk", "disk.raw"]);
    let mut client = place.client();
    let config = *client.config();
    assert_eq!(config.capacity_bytes(), 64 << 20);
    assert_eq!((config.blk_size, config.num_queues, config.wce), (512, 2, 1));
    assert_eq!((config.max_discard_seg, config.max_write_zeroes_seg), (64, 64));
    assert_eq!((config.discard_sector_alignment, config.write_zeroes_may_unmap), (8, 1));
    assert!(config.seg_max > 0 && config.size_max > 0);
    assert!(config.max_discard_sectors > 1 << 20 && config.max_write_zeroes_sectors > 1 << 20);
    for bytes in [1, 8, 36, 60, 64, 256] {
        assert_eq!(client.session().unwrap().config_bytes(bytes).unwrap().len(), bytes as usize);
    }
    assert_eq!(client.get_id().unwrap(), (Status::Ok, "my disk".into()));
    stop(daemon);
}

#[test]
fn what_is_not_understood_or_not_valid_is_answered_and_changes_nothing() {
    let place = Place::new();
    place.image("1M");
    let daemon = place.serve(&["disk.raw"]);
    let mut client = place.client();
    let last = 2047;
    let data = pattern(1024, 2);
    let ranges = |count| vec![(0u64, 8u32); count];
    for (name, request, expected) in [
        ("unknown type", Request::raw(99, 0, &[], 0), Status::Unsupp),
        ("secure erase", Request::ranges(14, &[(0, 8)], 0), Status::Unsupp),
        ("read past the end", Request::read(last, 1024), Status::IoErr),
        ("write past the end", Request::write(last, &data), Status::IoErr),
        ("write far past the end", Request::write(u64::MAX - 1, &data), Status::IoErr),
        ("part of a sector", Request::write(0, &data[..700]), Status::IoErr),
        ("empty read", Request::read(0, 0), Status::IoErr),
        ("discard past the end", Request::discard(&[(0, 8), (last, 2)]), Status::IoErr),
        ("discard nothing", Request::discard(&[(0, 0)]), Status::IoErr),
        ("discard with flags", Request::ranges(virtio::T_DISCARD, &[(0, 8)], 1), Status::Unsupp),
        (
            "zero with odd flags",
            Request::ranges(virtio::T_WRITE_ZEROES, &[(0, 8)], 2),
            Status::Unsupp,
        ),
        ("too many ranges", Request::discard(&ranges(65)), Status::IoErr),
        ("half a range", Request::raw(virtio::T_DISCARD, 0, &data[..24], 0), Status::IoErr),
        ("no room for the identity", Request::raw(virtio::T_GET_ID, 0, &[], 19), Status::IoErr),
    ] {
        assert_eq!(client.write(0, &data).unwrap(), Status::Ok);
        let answer = client.request(&request).unwrap();
        assert_eq!(answer.status, expected, "{name}");
        let mut back = vec![0; 1024];
        assert_eq!(client.read(0, &mut back).unwrap(), Status::Ok, "{name}");
        assert!(back == data, "{name} changed the disk");
    }
    assert_eq!(client.discard(&ranges(64)).unwrap(), Status::Ok);
    stop(daemon);
}

#[test]
fn a_readonly_disk_refuses_every_change() {
    let place = Place::new();
    let path = place.image("1M");
    std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    let daemon = place.serve(&["--readonly", "disk.raw"]);
    let mut client = place.client();
    assert!(client.negotiated().has(virtio::F_RO));
    assert!(!client.negotiated().has(virtio::F_DISCARD));
    assert_eq!(client.write(0, &[1; 512]).unwrap(), Status::IoErr);
    assert_ne!(client.discard(&[(0, 8)]).unwrap(), Status::Ok);
    assert_ne!(client.write_zeroes(&[(0, 8)], true).unwrap(), Status::Ok);
    let mut back = [0; 512];
    assert_eq!(client.read(0, &mut back).unwrap(), Status::Ok);
    assert_eq!(client.flush().unwrap(), Status::Ok);
    assert_eq!(back, [7; 512]);
    stop(daemon);
    assert!(std::fs::read(path).unwrap().iter().all(|byte| *byte == 7));
}

#[test]
fn discarding_gives_the_host_its_space_back() {
    let place = Place::new();
    let path = place.image("16M");
    let daemon = place.serve(&["disk.raw"]);
    let mut client = place.client();
    for sector in (0..16 << 11).step_by(2048) {
        assert_eq!(client.write(sector, &vec![1; 1 << 20]).unwrap(), Status::Ok);
    }
    let before = path.metadata().unwrap().blocks();
    assert_eq!(client.discard(&[(0, 12 << 11)]).unwrap(), Status::Ok);
    let after = path.metadata().unwrap().blocks();
    assert!(after * 512 <= 5 << 20, "{before} blocks became {after}");
    stop(daemon);
}

#[test]
fn ignored_discards_are_not_offered() {
    let place = Place::new();
    place.image("1M");
    let daemon = place.serve(&["--discard", "ignore", "disk.raw"]);
    let mut client = place.client();
    assert!(!client.negotiated().has(virtio::F_DISCARD));
    assert_eq!(client.config().write_zeroes_may_unmap, 0);
    assert_eq!(client.write_zeroes(&[(0, 8)], true).unwrap(), Status::Ok);
    stop(daemon);
}

#[test]
fn a_running_guest_sees_its_disk_grow() {
    let place = Place::new();
    place.image("1M");
    let daemon = place.serve(&["disk.raw"]);
    let mut client = place.client();
    assert_eq!(client.write(2048, &[1; 512]).unwrap(), Status::IoErr);
    let control = place.text("control.sock");
    let said = place.succeed(&["resize", "--control", &control, "disk.raw", "4M"]);
    assert!(said.contains("the guest has been told"), "{said}");
    assert!(client.wait_config_change(HANG).unwrap());
    assert_eq!(client.refresh_config().unwrap().capacity_bytes(), 4 << 20);
    assert_eq!(client.write(2048, &[1; 512]).unwrap(), Status::Ok);
    let refusal = place.refused(&["resize", "--control", &control, "disk", "1M"]);
    assert!(refusal.contains("a guest would lose"), "{refusal}");
    place.refused(&["resize", "--control", &control, "other", "8M"]);
    drop(client);
    stop(daemon);
}

#[test]
fn with_the_write_cache_off_every_write_is_durable_by_itself() {
    for engine in ["uring", "sync"] {
        let place = Place::new();
        place.image("1M");
        let daemon = place.serve(&["--engine", engine, "disk.raw"]);
        let mut client = place.client();
        assert_eq!(client.write(0, &[1; 4096]).unwrap(), Status::Ok);
        client.set_wce(false).unwrap();
        assert_eq!(client.refresh_config().unwrap().wce, 0);
        assert_eq!(place.stats()["disks"][0]["write_through"], true);
        exercise_small(&mut client);
        client.set_wce(true).unwrap();
        assert_eq!(place.stats()["disks"][0]["write_through"], false);
        exercise_small(&mut client);
        drop(client);
        // A driver without config-wce and flush gets write-through (virtio 1.2, 5.2.6.2).
        let old = place.options().without(virtio::F_CONFIG_WCE | virtio::F_FLUSH);
        exercise_small(&mut Client::connect(old).unwrap());
        stop(daemon);
    }
}

fn exercise_small(client: &mut Client) {
    let data = pattern(8192, 6);
    let mut back = vec![0; 8192];
    assert_eq!(client.write(16, &data).unwrap(), Status::Ok);
    assert_eq!(client.write_zeroes(&[(40, 4)], true).unwrap(), Status::Ok);
    assert_eq!(client.discard(&[(48, 4)]).unwrap(), Status::Ok);
    assert_eq!(client.read(16, &mut back).unwrap(), Status::Ok);
    assert!(back == data);
}

#[test]
fn rings_stop_and_start_again_without_losing_their_place() {
    let place = Place::new();
    place.image("64M");
    let daemon = place.serve(&["disk.raw"]);
    let mut client = place.client();
    for round in 0..5u8 {
        let data = pattern(4096, round);
        assert_eq!(client.write(u64::from(round) * 8, &data).unwrap(), Status::Ok);
        client.stop().unwrap();
        client.start().unwrap();
        let mut back = vec![0; 4096];
        assert_eq!(client.read(u64::from(round) * 8, &mut back).unwrap(), Status::Ok);
        assert!(back == data);
    }
    stop(daemon);
}

#[test]
fn statistics_count_what_was_done() {
    let place = Place::new();
    place.image("1M");
    let daemon = place.serve(&["--layer", "stats", "disk.raw"]);
    let mut client = place.client();
    for _ in 0..10 {
        assert_eq!(client.write(0, &[1; 4096]).unwrap(), Status::Ok);
    }
    assert_eq!(client.flush().unwrap(), Status::Ok);
    client.get_id().unwrap();
    let stats = place.stats();
    let disk = &stats["disks"][0];
    let total = &disk["total"];
    assert_eq!(total["requests"]["write"], 10);
    assert_eq!(total["bytes"]["write"], 40960);
    assert_eq!(total["requests"]["flush"], 1);
    assert_eq!(total["answered"], 1);
    assert_eq!(total["device_us"]["write"]["count"], 10);
    assert!(total["device_us"]["write"]["p99"].as_f64().unwrap() > 0.0);
    assert_eq!(disk["layers"][0]["write"]["requests"], 10);
    assert!(place.succeed(&["stats", "--control", &place.text("control.sock")]).contains("write"));
    stop(daemon);
}

/// Regression: a request with several ranges was counted once for each of them.
#[test]
fn a_request_with_several_ranges_is_counted_once() {
    let place = Place::new();
    place.image("1M");
    let daemon = place.serve(&["--layer", "error=discard:eio:5", "disk.raw"]);
    let mut client = place.client();
    let ranges = [(0, 8), (16, 8), (32, 8)];
    assert_eq!(client.discard(&ranges).unwrap(), Status::Ok);
    // The fifth range fails; the sixth is in flight by then.
    assert_eq!(client.discard(&ranges).unwrap(), Status::IoErr);
    let stats = place.stats();
    let total = &stats["disks"][0]["total"];
    assert_eq!(total["requests"]["discard"], 2);
    assert_eq!(total["bytes"]["discard"], 6 * 4096);
    assert_eq!(total["errors"]["discard"], 1);
    stop(daemon);
}

/// Regression: a look that found work counted that work as polling.
#[test]
fn a_queue_does_not_count_its_work_as_looking_for_work() {
    let place = Place::new();
    // The layer makes the queue's own work long.
    let daemon = place.serve(&["--poll", "always", "--layer", "verify", "--backend", "mem:64M"]);
    let mut client = place.client();
    for number in 0..200 {
        assert_eq!(client.write(number % 32 * 2048, &vec![1; 1 << 20]).unwrap(), Status::Ok);
    }
    let stats = place.stats();
    let total = &stats["disks"][0]["total"];
    let working = total["submit_us"]["mean"].as_f64().unwrap()
        * total["submit_us"]["count"].as_f64().unwrap();
    let looking = total["spin_s"].as_f64().unwrap();
    let uptime = stats["uptime_s"].as_f64().unwrap();
    println!("worked {working} us, looked {looking} s, up {uptime} s");
    assert!(working / 1e6 + looking <= uptime, "more time was counted than passed");
    drop(client);
    stop(daemon);
}

/// Regression: the name was also the serial number, so it was limited to 20 bytes.
#[test]
fn a_name_may_be_a_uuid_and_the_serial_is_another_thing() {
    const NAME: &str = "6a0a2b3c-8d1e-4f5a-9b6c-7d8e9f0a1b2c";
    let place = Place::new();
    for (args, serial) in [
        (&["--name", NAME, "--serial", "WD-WX12A34"][..], "WD-WX12A34"),
        (&["--name", NAME], &NAME[..20]),
        (&["--name", "short"], "short"),
    ] {
        let daemon = place.serve(&[args, &["--backend", "null:1M"]].concat());
        let (status, id) = place.client().get_id().unwrap();
        assert_eq!((status, id.as_str()), (Status::Ok, serial));
        let stats = place.stats();
        assert_eq!(stats["disks"][0]["name"], args[1]);
        assert_eq!(stats["disks"][0]["serial"], serial);
        stop(daemon);
    }
}
