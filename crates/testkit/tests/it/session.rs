//! Blocking calls, unusual framings, stop and start, crash and reconnect.

use flowstone_testkit::client::{MemoryMessage, Request, Shape};
use flowstone_testkit::virtio::{F_EVENT_IDX, F_INDIRECT_DESC, F_MQ, T_IN};
use flowstone_testkit::{Client, ClientOptions, Error, HANG, Status, wait_for};

use crate::peer::Peer;

const DISK: u64 = 16 << 20;

fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..bytes).map(|_| random.u8(..)).collect()
}

fn write_and_read_back(client: &mut Client, sector: u64, bytes: usize) {
    let data = pattern(bytes, sector);
    assert_eq!(client.write(sector, &data).unwrap(), Status::Ok);
    let mut back = vec![0; bytes];
    assert_eq!(client.read(sector, &mut back).unwrap(), Status::Ok);
    assert!(data == back, "what was written at sector {sector} is not what was read");
}

#[test]
fn what_is_written_is_read_back_with_every_negotiation() {
    let Some(peer) = Peer::start(DISK, 1) else {
        return;
    };
    for without in [0, F_EVENT_IDX, F_INDIRECT_DESC, F_EVENT_IDX | F_INDIRECT_DESC] {
        let mut client = Client::connect(peer.options().without(without)).unwrap();
        assert!(!client.negotiated().has(F_EVENT_IDX) || without & F_EVENT_IDX == 0);
        for (sector, bytes) in [(0, 512), (8, 4096), (100, 1 << 20)] {
            write_and_read_back(&mut client, sector, bytes);
        }
        assert_eq!(client.flush().unwrap(), Status::Ok);
    }
}

#[test]
fn config_space_tells_the_truth() {
    let Some(peer) = Peer::start(DISK, 2) else {
        return;
    };
    let mut client = Client::connect(peer.options()).unwrap();
    assert!(client.negotiated().has(F_MQ));
    assert_eq!(client.config().capacity_bytes(), DISK);
    assert_eq!(client.config().num_queues, 2);
    assert_eq!(client.config().seg_max, 126);
    let (status, id) = client.get_id().unwrap();
    assert_eq!(status, Status::Ok);
    assert!(!id.is_empty());
    let unknown = client.request(&Request::raw(99, 0, &[], 0)).unwrap();
    assert_eq!(unknown.status, Status::Unsupp);
    let beyond = client.request(&Request::raw(T_IN, DISK / 512, &[], 512)).unwrap();
    assert_eq!(beyond.status, Status::IoErr);
}

#[test]
fn framing_of_the_request_does_not_matter() {
    let Some(peer) = Peer::start(DISK, 1) else {
        return;
    };
    let mut client = Client::connect(peer.options()).unwrap();
    let shapes = [
        Shape { segment_bytes: 512, ..Shape::default() },
        Shape { offset_bytes: 123, ..Shape::default() },
        Shape { split_header_at: 8, ..Shape::default() },
        Shape { segment_bytes: 1000, offset_bytes: 77, split_header_at: 3, ..Shape::default() },
    ];
    for (index, shape) in shapes.into_iter().enumerate() {
        client.set_shape(shape);
        write_and_read_back(&mut client, 64 * index as u64, 32 << 10);
    }
}

#[test]
fn discarded_and_zeroed_ranges_read_as_zeroes() {
    let Some(peer) = Peer::start(DISK, 1) else {
        return;
    };
    let mut client = Client::connect(peer.options()).unwrap();
    let data = pattern(64 << 10, 1);
    assert_eq!(client.write(0, &data).unwrap(), Status::Ok);
    assert_eq!(client.discard(&[(0, 8)]).unwrap(), Status::Ok);
    assert_eq!(client.write_zeroes(&[(16, 8)], false).unwrap(), Status::Ok);
    assert_eq!(client.write_zeroes(&[(32, 8)], true).unwrap(), Status::Ok);
    let mut back = vec![1; 64 << 10];
    assert_eq!(client.read(0, &mut back).unwrap(), Status::Ok);
    for (page, bytes) in back.chunks(4096).enumerate() {
        let zero = matches!(page, 0 | 2 | 4);
        let same = bytes == &data[page * 4096..][..4096];
        assert_eq!(bytes.iter().all(|&b| b == 0), zero, "page {page}");
        assert_eq!(same, !zero, "page {page}");
    }
}

#[test]
fn requests_on_all_queues_come_back_once() {
    let Some(peer) = Peer::start(DISK, 2) else {
        return;
    };
    let mut client = Client::connect(peer.options()).unwrap();
    let mut tickets = Vec::new();
    for round in 0..20 {
        for queue in 0..2 {
            tickets.push(client.submit(queue, &Request::read(round * 8, 4096)).unwrap());
            client.notify(queue).unwrap();
        }
    }
    let mut done: Vec<_> = client.drain(0).unwrap();
    done.extend(client.drain(1).unwrap());
    assert!(done.iter().all(|c| c.status == Status::Ok && c.written_bytes == 4097));
    let mut answered: Vec<_> = done.iter().map(|c| c.ticket).collect();
    answered.sort();
    assert_eq!(answered, tickets);
}

#[test]
fn memory_can_be_added_region_by_region() {
    let Some(peer) = Peer::start(DISK, 1) else {
        return;
    };
    for (regions, gap) in [(1, 0), (3, 1 << 30), (3, 0)] {
        let options = ClientOptions {
            memory_message: MemoryMessage::AddRegion,
            memory_regions: regions,
            memory_gap_bytes: gap,
            slots: 64,
            ..peer.options()
        };
        let mut client = Client::connect(options).unwrap();
        for round in 0..64 {
            client.submit(0, &Request::write(round * 128, &pattern(65536, round))).unwrap();
        }
        client.notify(0).unwrap();
        assert!(client.drain(0).unwrap().iter().all(|c| c.status == Status::Ok));
    }
}

#[test]
fn rings_stop_and_go_on_where_they_were() {
    let Some(peer) = Peer::start(DISK, 2) else {
        return;
    };
    let mut client = Client::connect(peer.options()).unwrap();
    for _ in 0..3 {
        write_and_read_back(&mut client, 8, 4096);
        let bases = client.stop().unwrap();
        assert_eq!(bases[0], client.ring(0).queue.avail_index());
        client.start().unwrap();
    }
    write_and_read_back(&mut client, 8, 4096);
}

#[test]
fn a_crashed_backend_is_noticed_and_the_next_one_finishes_the_work() {
    let Some(mut peer) = Peer::start(DISK, 2) else {
        return;
    };
    let mut client = Client::connect(peer.options()).unwrap();
    write_and_read_back(&mut client, 0, 4096);
    peer.daemon.kill().unwrap();
    // Submitted while there is no listener.
    let tickets: Vec<_> =
        (0..5).map(|i| client.submit(0, &Request::write(i * 8, &[7; 4096])).unwrap()).collect();
    client.notify(0).unwrap();
    assert!(matches!(client.wait(0), Err(Error::Disconnected(_))));
    peer.restart();
    client.reconnect().unwrap();
    // Unlike QEMU this client may kick a peer that waits for it.
    client.ring(0).kick().unwrap();
    let mut done: Vec<_> = client.drain(0).unwrap().iter().map(|c| c.ticket).collect();
    done.sort();
    assert_eq!(done, tickets);
    let mut back = [0; 4096];
    client.read(8, &mut back).unwrap();
    assert_eq!(back, [7; 4096]);
}

#[test]
fn write_cache_can_be_switched_and_read_back() {
    let Some(peer) = Peer::start(DISK, 1) else {
        return;
    };
    let mut client = Client::connect(peer.options()).unwrap();
    for on in [false, true] {
        client.set_wce(on).unwrap();
        assert_eq!(client.refresh_config().unwrap().wce, u8::from(on));
    }
}

#[test]
fn a_backend_that_is_stopped_runs_into_the_timeout() {
    let Some(mut peer) = Peer::start(DISK, 1) else {
        return;
    };
    let options = ClientOptions { timeout_ms: 300, ..peer.options() };
    // Connecting may take longer.
    let mut client = wait_for("a connection", || Client::connect(options.clone()));
    peer.daemon.signal(rustix::process::Signal::STOP).unwrap();
    client.submit(0, &Request::flush()).unwrap();
    client.notify(0).unwrap();
    assert!(matches!(client.wait(0), Err(Error::Timeout { .. })));
    let session = client.session().unwrap();
    assert!(matches!(session.set_wce(true), Err(Error::Timeout { .. })));
    peer.daemon.signal(rustix::process::Signal::CONT).unwrap();
    peer.daemon.terminate(HANG).unwrap();
}
