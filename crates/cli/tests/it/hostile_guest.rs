//! Rings and sockets controlled by an attacker: the daemon answers with an error or abandons that
//! queue, and continues to serve all others.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flowstone_testkit::driver::{RawDescriptor, Slice};
use flowstone_testkit::process::Daemon;
use flowstone_testkit::{Client, ClientOptions, HANG, Request, Status, wait_for, wait_until};

use crate::fixture::{Over, Place, stop};
use crate::many_disks;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

fn resident_bytes(daemon: &Daemon) -> u64 {
    status_bytes(daemon, "VmRSS")
}

/// Returns the peak resident memory.
fn peak_bytes(daemon: &Daemon) -> u64 {
    status_bytes(daemon, "VmHWM")
}

fn status_bytes(daemon: &Daemon, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Fails if a thread of the daemon spins. Such a thread is never seen asleep, however little CPU
/// time it gets; all of them have to be, at several looks in a row.
fn assert_rests(daemon: &Daemon, what: &str) {
    let tasks = || std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    // Threads may end meanwhile.
    let state = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).ok()?;
        stat.rsplit(") ").next()?.chars().next()
    };
    let mut looks = 0;
    wait_for(what, || {
        let states: String = tasks().filter_map(|task| state(task.unwrap())).collect();
        looks = if states.chars().all(|it| it == 'S') { looks + 1 } else { 0 };
        std::thread::sleep(Duration::from_millis(5));
        if looks == 5 { Ok(()) } else { Err(states) }
    });
}

/// Starts a daemon with the disks `disk`, for a hostile guest, and `good`, for a well-behaved one.
fn serve_two(place: &Place) -> Daemon {
    serve_two_with(place, "")
}

/// The same, with keys of the daemon.
fn serve_two_with(place: &Place, head: &str) -> Daemon {
    let disks = ["disk", "good"].map(|name| {
        place.succeed(&["create", "--size", "1M", &format!("{name}.raw")]);
        (name, format!("image = {:?}", place.text(&format!("{name}.raw"))))
    });
    let disks = disks.each_ref().map(|(name, image)| (*name, image.as_str()));
    let file = many_disks::config(place, &disks);
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, head.to_owned() + &text).unwrap();
    many_disks::serve(&file, 2)
}

/// Connects a driver to the disk `good`.
fn good_guest(place: &Place) -> Client {
    Client::connect(ClientOptions::new(place.path("good.sock"))).unwrap()
}

/// Damages a ring, and checks that the queue reports an error, that the daemon neither spins nor
/// grows, that the next driver is served, and another disk all the time.
fn spoil(name: &str, deed: impl Fn(&mut Client)) {
    println!("{name}");
    let place = Place::new();
    let daemon = serve_two(&place);
    let mut good = good_guest(&place);
    let mut client = place.client();
    assert_eq!(client.write(0, &[1; 512]).unwrap(), Status::Ok);
    assert_eq!(good.write(0, &[1; 512]).unwrap(), Status::Ok);
    let before = resident_bytes(&daemon);
    deed(&mut client);
    client.ring(0).kick().unwrap();
    let mut errors = 0;
    wait_until("the monitor is told", || {
        errors += client.ring(0).take_errors();
        errors > 0
    });
    for _ in 0..20 {
        client.ring(0).kick().unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_rests(&daemon, "the queue rests");
    assert!(resident_bytes(&daemon) < before + (8 << 20), "{name}: the daemon grows");
    assert_eq!(good.write(8, &[2; 512]).unwrap(), Status::Ok, "{name}: another disk");
    drop((client, good));
    assert_eq!(place.client().write(0, &[2; 512]).unwrap(), Status::Ok, "{name}");
    stop(daemon);
}

/// Regression: a monitor that truncated its shared memory ended the daemon, and the disks of all
/// others, with SIGBUS; and again when the next daemon repeated the requests in flight.
#[test]
fn a_monitor_that_truncates_its_guests_memory_loses_its_own_disk_only() {
    let place = Place::new();
    let mut daemon = serve_two(&place);
    let (mut good, mut client) = (good_guest(&place), place.client());
    assert_eq!(client.write(0, &[1; 512]).unwrap(), Status::Ok);
    for region in client.memory().regions() {
        rustix::fs::ftruncate(&region.fd, 0).unwrap();
    }
    // From here on, nothing may touch the memory here either.
    client.ring(0).kick().unwrap();
    wait_until("the monitor is told", || client.ring(0).take_errors() > 0);
    assert_eq!(good.write(8, &[2; 512]).unwrap(), Status::Ok);
    daemon.wait_stderr("memory is lost", HANG).unwrap();
    drop((client, good));
    assert_eq!(place.client().write(0, &[2; 512]).unwrap(), Status::Ok);
    stop(daemon);
}

/// Writes descriptors into the table from 0 on and offers the first one.
fn offer(client: &mut Client, descriptors: &[(u64, u32, u16, u16)]) {
    let queue = &mut client.ring(0).queue;
    for (index, (address, bytes, flags, next)) in descriptors.iter().enumerate() {
        queue.raw_descriptor(index as u16, *address, *bytes, *flags, *next);
    }
    queue.raw_avail(0);
    queue.publish();
}

/// Returns an address in guest memory.
fn valid(client: &Client) -> u64 {
    client.memory().alloc(1 << 16, 4096).unwrap().address().0
}

#[test]
fn broken_chains_stop_their_queue_and_nothing_else() {
    spoil("a chain that is a loop", |client| {
        let at = valid(client);
        offer(client, &[(at, 16, NEXT, 1), (at, 512, NEXT, 0)]);
    });
    spoil("a next past the table", |client| {
        let at = valid(client);
        offer(client, &[(at, 16, NEXT, 9999)]);
    });
    spoil("a header outside memory", |client| {
        offer(client, &[(u64::MAX - 8, 16, NEXT, 1), (0, 1, WRITE, 0)]);
    });
    spoil("data that runs out of memory", |client| {
        let at = valid(client);
        offer(client, &[(at, 16, NEXT, 1), (at, u32::MAX, NEXT | WRITE, 2), (at, 1, WRITE, 0)]);
    });
    spoil("no status byte", |client| {
        let at = valid(client);
        offer(client, &[(at, 16, 0, 0)]);
    });
    spoil("half a header", |client| {
        let at = valid(client);
        offer(client, &[(at, 15, NEXT, 1), (at, 1, WRITE, 0)]);
    });
    spoil("an empty buffer", |client| {
        let at = valid(client);
        offer(client, &[(at, 16, NEXT, 1), (at, 0, NEXT, 2), (at, 1, WRITE, 0)]);
    });
    spoil("readable after writable", |client| {
        let at = valid(client);
        offer(client, &[(at, 16, NEXT, 1), (at, 512, WRITE | NEXT, 2), (at, 1, 0, 0)]);
    });
}

#[test]
fn broken_indirect_tables_stop_their_queue_and_nothing_else() {
    for (name, bytes, flags) in [
        ("an empty table", 0, INDIRECT),
        ("half a descriptor", 24, INDIRECT),
        ("a table of a thousand million", !15, INDIRECT),
        ("a table with a next", 32, INDIRECT | NEXT),
    ] {
        spoil(name, |client| {
            let at = valid(client);
            offer(client, &[(at, bytes, flags, 0)]);
        });
    }
    spoil("a table outside memory", |client| offer(client, &[(1 << 60, 32, INDIRECT, 0)]));
    spoil("a table in a table", |client| {
        let slice = client.memory().alloc(4096, 4096).unwrap();
        let nested = RawDescriptor { addr: slice.address(), len: 32, flags: INDIRECT, next: 0 };
        nested.store(&slice, 0);
        offer(client, &[(slice.address().0, 32, INDIRECT, 0)]);
    });
}

#[test]
fn a_broken_avail_ring_stops_its_queue_and_nothing_else() {
    spoil("an index that jumps", |client| {
        let now = client.ring(0).queue.avail_index();
        client.ring(0).queue.raw_avail_index(now.wrapping_add(129));
    });
    spoil("a head past the table", |client| {
        client.ring(0).queue.raw_avail(128);
        client.ring(0).queue.publish();
    });
}

#[test]
fn the_same_head_twice_stops_its_queue() {
    let place = Place::new();
    place.image("1M");
    let daemon = place.serve(&["--layer", "delay=50ms", "disk.raw"]);
    let mut client = place.client();
    let at = valid(&client);
    offer(
        &mut client,
        &[(at, 16, NEXT, 1), (at + 512, 512, WRITE | NEXT, 2), (at + 64, 1, WRITE, 0)],
    );
    client.ring(0).queue.raw_avail(0);
    client.ring(0).queue.publish();
    client.ring(0).kick().unwrap();
    let mut errors = 0;
    wait_until("an error, and the answer to the first one", || {
        errors += client.ring(0).take_errors();
        errors > 0 && client.ring(0).queue.used_index() == 1
    });
    assert_eq!(errors, 1);
    drop(client);
    stop(daemon);
}

#[test]
fn garbage_on_the_socket_is_dropped_and_the_next_driver_served() {
    let place = Place::new();
    place.image("1M");
    let daemon = place.serve(&["disk.raw"]);
    let mut seed = 7u64;
    for bytes in [1, 11, 12, 13, 100, 4096, 65536] {
        let mut stream = UnixStream::connect(place.path("disk.sock")).unwrap();
        let garbage: Vec<u8> = (0..bytes)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 56) as u8
            })
            .collect();
        // The daemon may disconnect while the test is still sending.
        let _ = stream.write_all(&garbage);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read(&mut [0; 16]);
    }
    assert_eq!(place.client().write(0, &[1; 512]).unwrap(), Status::Ok);
    for (request, expected) in [
        ("{\"command\":\"launch\"}\n\n", "HTTP/1.1 400 "),
        ("POST /launch HTTP/1.1\r\nhost: x\r\n\r\n", "\"POST /launch\""),
    ] {
        let mut control = UnixStream::connect(place.path("control.sock")).unwrap();
        control.write_all(request.as_bytes()).unwrap();
        control.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        control.read_to_string(&mut answer).unwrap();
        assert!(answer.contains(expected), "{answer}");
    }
    stop(daemon);
}

/// Regression: a monitor that sent half a message and stayed kept the daemon from ending.
#[test]
fn half_a_message_does_not_keep_the_daemon_from_stopping() {
    let place = Place::new();
    place.image("1M");
    let daemon = place.serve(&["disk.raw"]);
    let mut stream = UnixStream::connect(place.path("disk.sock")).unwrap();
    stream.write_all(&[1, 0, 0, 0, 1]).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    stop(daemon);
    assert!(!place.path("disk.sock").exists());
}

/// A monitor that keeps sending requests and reads no answer fills the socket until the daemon
/// waits to write.
#[test]
fn a_monitor_that_reads_no_answers_does_not_keep_the_daemon_from_stopping() {
    const GET_FEATURES: [u8; 12] = [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    let place = Place::new();
    place.image("1M");
    let daemon = place.serve(&["disk.raw"]);
    let mut stream = UnixStream::connect(place.path("disk.sock")).unwrap();
    stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    while stream.write_all(&GET_FEATURES).is_ok() {}
    stop(daemon);
}

/// A daemon without free descriptors to accept with must wait, not spin.
#[test]
fn a_daemon_out_of_descriptors_does_not_spin() {
    let place = Place::new();
    place.image("1M");
    let daemon = place.serve(&["disk.raw"]);
    let pid = rustix::process::Pid::from_raw(daemon.pid().cast_signed());
    let allow = |current| {
        let resource = rustix::process::Resource::Nofile;
        let before = rustix::process::getrlimit(resource);
        let limit = rustix::process::Rlimit { current, ..before };
        rustix::process::prlimit(pid, resource, limit).unwrap()
    };
    let before = allow(Some(3));
    let clients = [(); 4].map(|()| UnixStream::connect(place.path("control.sock")).unwrap());
    std::thread::sleep(Duration::from_millis(200));
    assert_rests(&daemon, "accepting rests");
    drop(clients);
    allow(before.current);
    place.stats();
    stop(daemon);
}

/// Regression: each notification without a request was learnt as a short gap between requests.
#[test]
fn notifications_for_nothing_do_not_make_a_queue_look_for_work() {
    let place = Place::new();
    place.image("1M");
    // A thread of its own looks longer than the time between two of them.
    let daemon = place.serve(&["--pollers", "per-queue", "disk.raw"]);
    let mut client = place.client();
    let total = || place.stats()["disks"][0]["total"].clone();
    // Notifications that arrive while it is awake count as one.
    wait_until("enough are heard", || {
        for _ in 0..500 {
            client.ring(0).kick().unwrap();
            std::thread::sleep(Duration::from_micros(20));
        }
        total()["kicks"].as_u64().unwrap() > 200
    });
    assert_eq!(client.write(0, &[1; 512]).unwrap(), Status::Ok);
    let total = total();
    assert_eq!(total["spin_s"], 0.0, "{total}");
    drop(client);
    stop(daemon);
}

/// Regression: each client of the control socket had a thread for as long as it stayed, and their
/// number was unlimited.
#[test]
fn control_clients_that_stall_are_bounded_in_number() {
    let place = Place::new();
    place.image("1M");
    let daemon = place.serve(&["disk.raw"]);
    let threads = || std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().count();
    let before = threads();
    let stalled: Vec<UnixStream> = (0..200)
        .map(|_| {
            let mut stream = UnixStream::connect(place.path("control.sock")).unwrap();
            let _ = stream.write_all(b"GET /v1/st");
            stream
        })
        .collect();
    let mut answer = String::new();
    let _ = (&stalled[199]).read_to_string(&mut answer);
    assert!(answer.contains("clients are being served"), "{answer:?}");
    assert!(threads() <= before + 40, "{} threads, {before} before", threads());
    assert_eq!(place.client().write(0, &[1; 512]).unwrap(), Status::Ok);
    drop(stalled);
    // Their threads end when they notice.
    wait_until("there is room for an operator", || {
        place.run(&["stats", "--control", &place.text("control.sock")]).status.success()
    });
    stop(daemon);
}

/// Regression: each connection and each broken queue logged a line, as often as guest and monitor
/// liked.
#[test]
fn a_flood_of_connections_is_no_flood_in_the_log() {
    let place = Place::new();
    place.image("1M");
    let daemon = place.serve(&["disk.raw"]);
    for _ in 0..500 {
        let mut stream = UnixStream::connect(place.path("disk.sock")).unwrap();
        let _ = stream.write_all(&[0xff; 12]);
        let _ = stream.read(&mut [0; 16]);
    }
    assert_eq!(place.client().write(0, &[1; 512]).unwrap(), Status::Ok);
    let lines = daemon.stderr().lines().count();
    assert!((2..100).contains(&lines), "{lines} lines:\n{}", daemon.stderr());
    stop(daemon);
}

const TYPE_IN: u32 = 0;
const TYPE_UNKNOWN: u32 = 99;

/// Options for a guest with rings of 1,024 and more than a GiB of memory, little of it used.
fn large_guest(place: &Place, name: &str) -> ClientOptions {
    let mut options = ClientOptions::new(place.path(&format!("{name}.sock")));
    options.queue_size = 1024;
    options.slot_bytes = 34 << 20;
    options
}

/// A chain in an indirect table, with many pieces that all refer to the same memory, at an odd
/// address.
struct Chain {
    table: Slice,
    bytes: u32,
    status: Slice,
}

impl Chain {
    fn new(client: &Client, kind: u32, pieces: usize, piece_bytes: u32, address: u64) -> Self {
        let memory = client.memory();
        let header = memory.alloc(16, 16).unwrap();
        header.write(0, &kind.to_le_bytes());
        let status = memory.alloc(1, 1).unwrap();
        let table = memory.alloc(16 * (pieces + 2), 16).unwrap();
        let mut buffers = vec![(address, piece_bytes, WRITE); pieces];
        buffers.insert(0, (header.address().0, 16, 0));
        buffers.push((status.address().0, 1, WRITE));
        for (index, (address, len, write)) in buffers.iter().enumerate() {
            let more = if index + 1 < buffers.len() { NEXT } else { 0 };
            let addr = flowstone_testkit::driver::GuestAddress(*address);
            let next = index as u16 + 1;
            RawDescriptor { addr, len: *len, flags: write | more, next }
                .store(&table, index as u16);
        }
        Self { table, bytes: 16 * buffers.len() as u32, status }
    }

    /// Writes it into the ring under this head, to be published.
    fn offer(&self, client: &mut Client, queue: usize, head: u16) {
        let ring = &mut client.ring(queue).queue;
        ring.raw_descriptor(head, self.table.address().0, self.bytes, INDIRECT, 0);
        ring.raw_avail(head);
    }

    fn status(&self) -> u8 {
        let mut status = [0];
        self.status.read(0, &mut status);
        status[0]
    }
}

/// Publishes all chains written into a ring, at once.
fn publish_all(client: &mut Client, queue: usize) {
    client.ring(queue).queue.publish();
    client.ring(queue).kick().unwrap();
}

/// Waits until this many chains of a queue are answered; fails if the daemon has ended.
fn wait_used(client: &mut Client, queue: usize, count: u16) {
    wait_for(&format!("{count} answers"), || {
        let used = client.ring(queue).queue.used_index();
        assert!(!client.session().unwrap().is_closed(), "the daemon has hung up");
        if used >= count { Ok(()) } else { Err(used) }
    });
}

/// Starts a daemon with a large, empty disk of each format, and a good one.
fn serve_many(place: &Place) -> Daemon {
    let mut disks = Vec::new();
    for (name, size) in [("raw", "100G"), ("qcow2", "2T"), ("flow", "2T"), ("good.raw", "1M")] {
        let file = if name == "good.raw" { name.into() } else { format!("large.{name}") };
        place.succeed(&["create", "--size", size, &file]);
        let name = name.trim_end_matches(".raw");
        disks.push((name, format!("image = {:?}", place.text(&file))));
    }
    let disks: Vec<(&str, &str)> =
        disks.iter().map(|(name, image)| (*name, image.as_str())).collect();
    many_disks::serve(&many_disks::config(place, &disks), 4)
}

/// Regression: the pieces of a chain were limited and its bytes were not: 1,020 pieces of the same
/// 64 MiB made the daemon request a buffer of 64 GiB and end, with all its disks, at each restart;
/// 1,020 of the same 1 GiB kept it busy for minutes.
#[test]
fn a_request_larger_than_a_disk_offers_is_an_error_and_the_other_disks_are_served() {
    let place = Place::new();
    let daemon = serve_many(&place);
    let mut good = Client::connect(ClientOptions::new(place.path("good.sock"))).unwrap();
    for name in ["raw", "qcow2", "flow"] {
        for piece_bytes in [64 << 20, 1 << 30] {
            let mut client = Client::connect(large_guest(&place, name)).unwrap();
            let start = client.memory().regions()[0].guest.0;
            let before = resident_bytes(&daemon);
            let chain = Chain::new(&client, TYPE_IN, 1020, piece_bytes, start + 1);
            for head in 0..4 {
                chain.offer(&mut client, 0, head);
            }
            publish_all(&mut client, 0);
            wait_used(&mut client, 0, 4);
            assert_eq!(chain.status(), 1, "{name}: not an I/O error");
            assert_eq!(good.write(0, &[3; 512]).unwrap(), Status::Ok);
            let grown = resident_bytes(&daemon).saturating_sub(before);
            assert!(grown < 32 << 20, "{name}: the daemon grew by {grown} bytes");
        }
    }
    assert_eq!(good.flush().unwrap(), Status::Ok);
    drop(good);
    stop(daemon);
}

/// Reads of unwritten blocks complete at submission. Regression: a stop took effect only when the
/// whole batch was submitted, of any number of requests of any size.
#[test]
fn a_queue_that_fills_in_zeroes_stops_between_two_requests() {
    const SEEN: u16 = 4 + 8 + 16;
    const OFFERED: u16 = 512;
    for (name, by_signal) in [("qcow2", true), ("qcow2", false), ("flow", true)] {
        let place = Place::new();
        let daemon = serve_many(&place);
        let mut client = Client::connect(large_guest(&place, name)).unwrap();
        let start = client.memory().regions()[0].guest.0 + (8 << 20);
        let chain = Chain::new(&client, TYPE_IN, 126, 4 << 20, start);
        for head in 0..OFFERED {
            chain.offer(&mut client, 0, head);
        }
        publish_all(&mut client, 0);
        wait_used(&mut client, 0, SEEN);
        if !by_signal {
            assert_eq!(client.stop().unwrap(), [client.ring(0).queue.used_index()]);
        }
        stop(daemon);
        // All of them would take longer than `stop` waits.
        let done = client.ring(0).queue.used_index();
        assert!(done < OFFERED, "{name}: nothing was left to stop");
        assert_eq!(chain.status(), 0);
    }
}

/// Regression: memory for a list of a thousand pieces stayed with every head whose request was
/// answered at once.
#[test]
fn long_chains_that_are_answered_at_once_leave_nothing_behind() {
    const QUEUES: usize = 8;
    let place = Place::new();
    let daemon = serve_many(&place);
    let mut options = large_guest(&place, "raw");
    (options.queues, options.slot_bytes) = (QUEUES, 1 << 20);
    let mut client = Client::connect(options).unwrap();
    let at = valid(&client);
    let chain = Chain::new(&client, TYPE_UNKNOWN, 1020, 512, at);
    let before = resident_bytes(&daemon);
    for queue in 0..QUEUES {
        for head in 0..1024 {
            chain.offer(&mut client, queue, head);
        }
        publish_all(&mut client, queue);
    }
    for queue in 0..QUEUES {
        wait_used(&mut client, queue, 1024);
    }
    assert_eq!(chain.status(), 2, "unknown requests are unsupported");
    let grown = resident_bytes(&daemon).saturating_sub(before);
    assert!(grown < 48 << 20, "{grown} bytes are kept");
    stop(daemon);
}

/// Regression: queues were stopped one after the other, and those still running took new requests:
/// a guest that kept many queues busy on a slow disk delayed the end by the disk's delay for each.
#[test]
fn busy_queues_stop_side_by_side() {
    // One after the other they would take longer than the wait for the end.
    const QUEUES: usize = 48;
    let place = Place::new();
    place.image("1M");
    let queues = QUEUES.to_string();
    let mut daemon = place.serve(&["--queues", &queues, "--layer", "delay=3000ms", "disk.raw"]);
    let options = ClientOptions { slot_bytes: 4096, ..place.options().queues(QUEUES) };
    let mut client = Client::connect(options).unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // A guest continues when its monitor has been disconnected: the ring is its own memory.
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                for queue in 0..QUEUES {
                    while client.poll(queue).unwrap().is_some() {}
                    if client.in_flight(queue) < 30 {
                        client.submit(queue, &Request::read(0, 512)).unwrap();
                        client.notify(queue).unwrap();
                    }
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        std::thread::sleep(Duration::from_millis(500));
        let _over = Over(&ended);
        assert!(daemon.terminate(HANG).unwrap().success());
    });
}

/// Regression: memory unsuitable for direct I/O was copied through a buffer of the request's size.
#[test]
fn odd_buffers_of_any_size_are_copied_through_little_memory() {
    const CHAINS: u16 = 24;
    for engine in ["uring", "sync"] {
        let place = Place::new();
        place.image("100G");
        let daemon = place.serve(&["--engine", engine, "disk.raw"]);
        let mut client = Client::connect(large_guest(&place, "disk")).unwrap();
        let before = resident_bytes(&daemon);
        let at = client.memory().alloc((256 << 10) + 1, 4096).unwrap().address().0;
        let chain = Chain::new(&client, TYPE_IN, 126, 256 << 10, at + 1);
        (0..CHAINS).for_each(|head| chain.offer(&mut client, 0, head));
        publish_all(&mut client, 0);
        wait_used(&mut client, 0, CHAINS);
        assert_eq!(chain.status(), 0);
        let grown = peak_bytes(&daemon).saturating_sub(before);
        assert!(grown < 48 << 20, "{engine}: {grown} bytes for {CHAINS} requests of 31 MiB");
        stop(daemon);
    }
}

/// Hundreds of requests wait for memory of the daemon while others pass them, the file ends before
/// all of them, and the daemon is stopped: each is answered once.
#[test]
fn odd_buffers_among_others_are_all_answered() {
    for engine in ["uring", "sync"] {
        let place = Place::new();
        let image = place.image("64M");
        let daemon = place.serve(&["--engine", engine, "disk.raw"]);
        let mut client = Client::connect(large_guest(&place, "disk")).unwrap();
        let at = client.memory().alloc((1 << 20) + 1, 4096).unwrap().address().0;
        let odd = Chain::new(&client, TYPE_IN, 4, 128 << 10, at + 1);
        let even = Chain::new(&client, TYPE_IN, 4, 128 << 10, at);
        let offer = |client: &mut Client, heads: std::ops::Range<u16>| {
            for head in heads {
                if head % 3 == 0 { &even } else { &odd }.offer(client, 0, head);
            }
            publish_all(client, 0);
        };
        offer(&mut client, 0..600);
        wait_used(&mut client, 0, 600);
        assert_eq!((odd.status(), even.status()), (0, 0), "{engine}");
        std::fs::File::options().write(true).open(&image).unwrap().set_len(1 << 10).unwrap();
        offer(&mut client, 600..900);
        wait_used(&mut client, 0, 900);
        assert_eq!((odd.status(), even.status()), (1, 1), "{engine}");
        std::fs::File::options().write(true).open(&image).unwrap().set_len(64 << 20).unwrap();
        offer(&mut client, 900..1024);
        stop(daemon);
        let mut answered: Vec<u32> =
            std::iter::from_fn(|| client.ring(0).queue.pop_raw()).map(|(head, _)| head).collect();
        let count = answered.len();
        answered.sort_unstable();
        answered.dedup();
        assert_eq!(answered.len(), count, "{engine}: a request was answered twice");
        assert!(client.inflight().unwrap().taken(0).unwrap().is_empty(), "{engine}");
    }
}

/// Returns the resources of a daemon: threads, descriptors, mappings of files, of guests' memory
/// and of rings. (The number of other mappings depends on how many threads called malloc at the
/// same time.)
fn holdings(daemon: &Daemon) -> [usize; 3] {
    let process = format!("/proc/{}", daemon.pid());
    let entries = |folder| std::fs::read_dir(format!("{process}/{folder}")).unwrap().count();
    let maps = std::fs::read_to_string(format!("{process}/maps")).unwrap();
    let named =
        |map: &&str| map.split_whitespace().nth(5).is_some_and(|name| !name.starts_with('['));
    [entries("task"), entries("fd"), maps.lines().filter(named).count()]
}

#[test]
fn a_guest_that_resets_for_ever_leaves_nothing_behind() {
    for head in ["pollers = 1\n", "pollers = 'per-queue'\n"] {
        leaves_nothing_after_resets(head);
    }
}

fn leaves_nothing_after_resets(head: &str) {
    let place = Place::new();
    let daemon = serve_two_with(&place, head);
    let mut good = good_guest(&place);
    assert_eq!(good.write(0, &[1; 512]).unwrap(), Status::Ok);
    let mut client = Client::connect(place.options().queues(4)).unwrap();
    let mut resets = |count| {
        for _ in 0..count {
            client.stop().unwrap();
            client.set_wce(false).unwrap();
            client.set_wce(true).unwrap();
            client.start().unwrap();
        }
        assert_eq!(client.write(0, &[1; 512]).unwrap(), Status::Ok);
    };
    resets(20);
    let (held, bytes) = (holdings(&daemon), resident_bytes(&daemon));
    resets(300);
    // The kernel's threads, and the resources ended by the last reset, go a moment later.
    wait_for(&format!("what is held becomes {held:?} and {bytes} bytes"), || {
        let now = (holdings(&daemon), resident_bytes(&daemon));
        let gone = now.0.iter().zip(held).all(|(now, held)| *now <= held + 8);
        if gone && now.1 < bytes + (8 << 20) { Ok(()) } else { Err(now) }
    });
    assert_eq!(good.write(8, &[2; 512]).unwrap(), Status::Ok);
    drop((client, good));
    stop(daemon);
}

#[test]
fn regions_of_guest_memory_are_bounded_in_number_and_go_with_their_monitor() {
    use flowstone_testkit::client::MemoryMessage;
    let place = Place::new();
    let daemon = serve_two(&place);
    let mut good = good_guest(&place);
    assert_eq!(place.client().write(0, &[1; 512]).unwrap(), Status::Ok);
    let before = holdings(&daemon);
    let mut options = place.options();
    options.memory_message = MemoryMessage::AddRegion;
    options.memory_regions = 600;
    assert!(Client::connect(options).is_err(), "600 regions were taken");
    assert_eq!(good.write(0, &[1; 512]).unwrap(), Status::Ok);
    // It forgets a monitor a moment after its disconnection.
    assert_eq!(place.client().write(0, &[1; 512]).unwrap(), Status::Ok);
    wait_for(&format!("what is held becomes {before:?}"), || {
        let now = holdings(&daemon);
        let gone = now.iter().zip(before).all(|(now, before)| *now <= before + 8);
        if gone { Ok(()) } else { Err(now) }
    });
    drop(good);
    stop(daemon);
}

#[test]
fn a_second_monitor_of_a_disk_waits_until_the_first_one_has_gone() {
    const GET_FEATURES: [u8; 12] = [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    let place = Place::new();
    let daemon = serve_two(&place);
    let mut first = place.client();
    let mut second = UnixStream::connect(place.path("disk.sock")).unwrap();
    second.write_all(&GET_FEATURES).unwrap();
    for sector in 0..100 {
        assert_eq!(first.write(sector, &[1; 512]).unwrap(), Status::Ok);
    }
    second.set_nonblocking(true).unwrap();
    let mut answer = [0; 20];
    let early = second.read(&mut answer).map_err(|error| error.kind());
    assert_eq!(early, Err(std::io::ErrorKind::WouldBlock));
    drop(first);
    second.set_nonblocking(false).unwrap();
    second.set_read_timeout(Some(HANG)).unwrap();
    second.read_exact(&mut answer).unwrap();
    stop(daemon);
}
