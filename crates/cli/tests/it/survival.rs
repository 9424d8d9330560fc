//! A daemon that is killed, restarted, or stopped in the middle of requests.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use flowstone_testkit::client::{Completion, Ticket};
use flowstone_testkit::{Client, ClientOptions, HANG, Request, Status, virtio, wait_until};
use rustix::fs::{CWD, Mode, OFlags, fcntl_getfl, fcntl_setfl, mkfifoat};
use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{Place, pattern, stop};

const BLOCK_BYTES: usize = 4096;
const BLOCKS: u64 = 512;

fn block(number: u64, round: u8) -> Vec<u8> {
    pattern(BLOCK_BYTES, round ^ number as u8)
}

/// A driver that keeps its queue full of writes and remembers each of them.
struct Writer {
    client: Client,
    round: u8,
    in_flight: BTreeMap<Ticket, u64>,
    done: u64,
}

impl Writer {
    fn note(&mut self, completion: &Completion) {
        assert_eq!(completion.status, Status::Ok);
        assert!(self.in_flight.remove(&completion.ticket).is_some(), "completed twice");
        self.done += 1;
    }

    /// Writes blocks until `until` of them are done; leaves the queue full.
    fn write_until(&mut self, next: &mut u64, until: u64) {
        while self.done < until {
            while self.in_flight.len() < 16 && *next < BLOCKS {
                let data = block(*next, self.round);
                let ticket = self.client.submit(0, &Request::write(*next * 8, &data)).unwrap();
                self.in_flight.insert(ticket, *next);
                *next += 1;
            }
            self.client.notify(0).unwrap();
            let completion = self.client.wait(0).unwrap();
            self.note(&completion);
        }
    }
}

fn verify(client: &mut Client, round: u8) {
    let mut back = vec![0; BLOCK_BYTES];
    for number in 0..BLOCKS {
        assert_eq!(client.read(number * 8, &mut back).unwrap(), Status::Ok);
        assert!(back == block(number, round), "block {number} is wrong");
    }
}

#[test]
fn a_killed_daemon_finishes_what_was_in_flight_out_of_order() {
    for engine in ["uring", "sync"] {
        let place = Place::new();
        place.image("64M");
        let args = ["--engine", engine, "--layer", "delay=0-4ms", "disk.raw"];
        let mut daemon = place.serve(&args);
        let client = place.client();
        let mut writer = Writer { client, round: 1, in_flight: BTreeMap::new(), done: 0 };
        let mut next = 0;
        for kill_at in [60, 150, 300] {
            writer.write_until(&mut next, kill_at);
            daemon.kill().unwrap();
            daemon = place.serve(&args);
            writer.client.reconnect().unwrap();
        }
        writer.write_until(&mut next, BLOCKS);
        verify(&mut writer.client, 1);
        stop(daemon);
    }
}

/// A daemon is killed repeatedly from outside while a request is in flight: that is no reason to
/// fail the request.
#[test]
fn a_request_that_was_in_flight_at_several_kills_is_carried_out() {
    let place = Place::new();
    place.image("1M");
    let slow = ["--layer", "delay=60000ms", "disk.raw"];
    let mut client = None;
    for life in 1..=4 {
        let mut daemon = place.serve(&slow);
        let client = client.get_or_insert_with(|| {
            let mut client = place.client();
            client.submit(0, &Request::write(8, &[7; 512])).unwrap();
            client.notify(0).unwrap();
            client
        });
        if life > 1 {
            client.reconnect().unwrap();
        }
        let total = || place.stats()["disks"][0]["total"].clone();
        let taken = || total()["submit_us"]["count"].as_u64().is_some_and(|count| count > 0);
        wait_until("the disk has it", taken);
        daemon.kill().unwrap();
    }
    let mut client = client.unwrap();
    let daemon = place.serve(&["disk.raw"]);
    client.reconnect().unwrap();
    assert_eq!(client.wait(0).unwrap().status, Status::Ok);
    let mut back = [0; 512];
    assert_eq!(client.read(8, &mut back).unwrap(), Status::Ok);
    assert_eq!(back, [7; 512]);
    assert_eq!(client.inflight().unwrap().taken(0).unwrap(), [0u16; 0]);
    stop(daemon);
}

/// A monitor that asks for the state of a queue may discard the in-flight log: requests left undone
/// by the killed daemon are finished by then, also by a daemon that has hardly begun.
#[test]
fn a_stop_right_after_a_restart_finishes_what_the_killed_daemon_left_undone() {
    let place = Place::new();
    place.image("1M");
    let args = ["--layer", "delay=50ms", "disk.raw"];
    for by_signal in [true, false] {
        // Nothing completes before the kill.
        let mut daemon = place.serve(&["--layer", "delay=60000ms", "disk.raw"]);
        let mut client = place.client();
        for number in 0..16 {
            client.submit(0, &Request::write(number * 8, &block(number, 3))).unwrap();
        }
        client.notify(0).unwrap();
        let undone = |client: &Client| client.inflight().unwrap().taken(0).unwrap().len();
        wait_until("some are on their way", || undone(&client) > 0);
        daemon.kill().unwrap();
        assert!(undone(&client) > 0);
        let taken = client.ring(0).queue.used_index() + undone(&client) as u16;
        let daemon = place.serve(&args);
        client.reconnect().unwrap();
        if by_signal {
            stop(daemon);
        } else {
            client.stop().unwrap();
        }
        assert_eq!(undone(&client), 0);
        assert!(client.ring(0).queue.used_index() >= taken);
        while let Some(completion) = client.poll(0).unwrap() {
            assert_eq!(completion.status, Status::Ok);
        }
    }
}

/// Regression: a daemon that was stopped early waited for each request left undone by a killed
/// daemon, one after the other: a whole ring took the disk's delay as many times as it has entries.
#[test]
fn a_stop_right_after_a_restart_hands_all_that_is_left_undone_to_the_disk_at_once() {
    const REQUESTS: usize = 4000;
    let place = Place::new();
    place.image("1M");
    let mut daemon = place.serve(&["--layer", "delay=60000ms", "disk.raw"]);
    let mut options = place.options();
    (options.queue_size, options.slots, options.slot_bytes) = (8192, REQUESTS, 4096);
    let mut client = Client::connect(options).unwrap();
    for _ in 0..REQUESTS {
        client.submit(0, &Request::write(0, &[7; 512])).unwrap();
    }
    client.notify(0).unwrap();
    let undone = |client: &Client| client.inflight().unwrap().taken(0).unwrap().len();
    wait_until("all are on their way", || undone(&client) == REQUESTS);
    daemon.kill().unwrap();
    // The log of requests is a pipe that is not read until the stop is in progress, so the queue
    // blocks in the middle of the undone requests.
    let pipe = place.path("requests.pipe");
    mkfifoat(CWD, &pipe, Mode::RUSR | Mode::WUSR).unwrap();
    let mut lines = File::options().read(true).write(true).open(&pipe).unwrap();
    // Nearly full already.
    lines.write_all(&[b'\n'; 60 << 10]).unwrap();
    let log = format!("log={}", pipe.display());
    let mut daemon = place.serve(&["--layer", "delay=4000ms", "--layer", &log, "disk.raw"]);
    client.reconnect().unwrap();
    daemon.signal(Signal::TERM).unwrap();
    let said = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        let (mut said, mut piece) = (Vec::new(), [0; 1 << 16]);
        while !said.ends_with(b"the end\n") {
            let bytes = lines.read(&mut piece).unwrap();
            said.extend_from_slice(&piece[..bytes]);
        }
        String::from_utf8(said).unwrap()
    });
    let status = daemon.wait(HANG).unwrap();
    assert!(status.success(), "{status}: {}", daemon.stderr());
    assert_eq!(undone(&client), 0);
    File::options().write(true).open(&pipe).unwrap().write_all(b"the end\n").unwrap();
    let said = said.join().unwrap();
    // Before the first of them is done; it was a sixth of them each time.
    let words = said.lines().filter_map(|line| line.split(' ').nth(2));
    let at_once = words.take_while(|word| *word != "finish").filter(|it| *it == "submit").count();
    assert!(at_once > REQUESTS / 2, "{at_once} at once");
}

#[test]
fn a_daemon_asked_to_leave_finishes_what_is_in_flight() {
    let place = Place::new();
    place.image("64M");
    let args = ["--layer", "delay=0-4ms", "disk.raw"];
    let daemon = place.serve(&args);
    let client = place.client();
    let mut writer = Writer { client, round: 2, in_flight: BTreeMap::new(), done: 0 };
    let mut next = 0;
    writer.write_until(&mut next, 100);
    stop(daemon);
    // Everything taken was completed: the surviving log is empty.
    assert_eq!(writer.client.inflight().unwrap().taken(0).unwrap(), [0u16; 0]);
    let daemon = place.serve(&args);
    writer.client.reconnect().unwrap();
    writer.write_until(&mut next, BLOCKS);
    verify(&mut writer.client, 2);
    stop(daemon);
}

/// Regression: a guest hung after SIGTERM under load: the last interrupt of the old daemon was lost
/// (its monitor had seen it leave), all requests were done, so the new one had nothing to publish
/// and no reason to interrupt.
#[test]
fn an_interrupt_lost_with_the_old_daemon_is_sent_by_the_new_one() {
    let place = Place::new();
    place.image("64M");
    let args = ["--layer", "delay=20ms", "disk.raw"];
    let daemon = place.serve(&args);
    let mut client = Client::connect(place.options().queues(2)).unwrap();
    for queue in 0..2 {
        let data = block(0, 1);
        client.submit(queue, &Request::write(queue as u64 * 8, &data)).unwrap();
        client.ring(queue).queue.arm_calls();
        client.notify(queue).unwrap();
    }
    let taken = || place.stats()["disks"][0]["total"]["submit_us"]["count"].as_u64().unwrap();
    wait_until("both are taken", || taken() == 2);
    stop(daemon);
    for queue in 0..2 {
        assert!(client.ring(queue).queue.has_used(), "the old daemon finished its work");
        client.ring(queue).take_calls();
    }
    let daemon = place.serve(&args);
    client.reconnect().unwrap();
    for queue in 0..2 {
        let mut calls = 0;
        wait_until("the guest gets an interrupt", || {
            calls += client.ring(queue).take_calls();
            calls > 0
        });
        assert_eq!(client.wait(queue).unwrap().status, Status::Ok);
    }
    stop(daemon);
}

#[test]
fn a_restarted_daemon_remembers_that_the_guest_wants_write_through() {
    let place = Place::new();
    place.image("1M");
    let mut daemon = place.serve(&["disk.raw"]);
    let mut client = place.client();
    client.set_wce(false).unwrap();
    daemon.kill().unwrap();
    let daemon = place.serve(&["disk.raw"]);
    client.reconnect().unwrap();
    // The monitor does not repeat the guest's choice, and the guest sends no flush any more.
    assert_eq!(place.stats()["disks"][0]["write_through"], true);
    assert_eq!(client.write(0, &[1; 512]).unwrap(), Status::Ok);
    // A reset does not change the choice either: the monitor remembers it, and sends nothing.
    client.stop().unwrap();
    client.start().unwrap();
    assert_eq!(place.stats()["disks"][0]["write_through"], true);
    drop(client);
    let client = place.client();
    assert_eq!(client.config().wce, 1, "a new guest starts afresh");
    assert_eq!(place.stats()["disks"][0]["write_through"], false);
    drop(client);
    stop(daemon);
}

/// Regression: firmware that cannot flush is served write-through. The next monitor read "no write
/// cache" from the configuration, so its guest sent no flushes, while the disk cached its writes.
#[test]
fn the_cache_mode_of_one_driver_is_not_told_to_the_next() {
    let place = Place::new();
    place.image("1M");
    let daemon = place.serve(&["disk.raw"]);
    let firmware = place.options().without(virtio::F_FLUSH | virtio::F_CONFIG_WCE);
    let client = Client::connect(firmware).unwrap();
    assert_eq!(place.stats()["disks"][0]["write_through"], true);
    drop(client);
    let client = Client::negotiate(place.options()).unwrap();
    assert_eq!(client.config().wce, 1);
    drop(client);
    stop(daemon);
}

/// A write in flight when the driver switches to write-through is not covered by any later flush of
/// the driver.
#[test]
fn the_switch_to_write_through_waits_for_what_is_on_its_way_and_flushes_it() {
    let place = Place::new();
    place.image("1M");
    let log = format!("log={}", place.text("requests.log"));
    let daemon = place.serve(&["--layer", "delay=300ms", "--layer", &log, "disk.raw"]);
    let mut client = place.client();
    client.submit(0, &Request::write(8, &[7; 4096])).unwrap();
    client.notify(0).unwrap();
    let taken = || place.stats()["disks"][0]["total"]["submit_us"]["count"].as_u64().unwrap();
    wait_until("it is taken", || taken() > 0);
    client.set_wce(false).unwrap();
    assert_eq!(client.wait(0).unwrap().status, Status::Ok);
    drop(client);
    stop(daemon);
    let log = std::fs::read_to_string(place.path("requests.log")).unwrap();
    let words: Vec<Vec<&str>> = log.lines().map(|line| line.split(' ').skip(1).collect()).collect();
    let of_the_queue = |word: &str| words.iter().position(|it| it[0] == "q0" && it[1] == word);
    let written = of_the_queue("finish").unwrap();
    let flush = words.iter().position(|it| it[1] == "submit" && it[3] == "flush").unwrap();
    assert!(written < flush && words[flush][0] == "own", "{log}");
}

/// Regression: the driver switched to write-through, the flush before it failed, and the connection
/// was dropped: the guest lost its disk. Now the switch is refused, the driver finds the old mode,
/// and everything else continues.
#[test]
fn a_failed_flush_refuses_the_switch_to_write_through_and_keeps_the_connection() {
    let place = Place::new();
    place.image("1M");
    let mut daemon = place.serve(&["--layer", "error=flush:eio", "disk.raw"]);
    let mut client = place.client();
    assert_eq!(client.write(0, &[1; 512]).unwrap(), Status::Ok);
    let refusal = client.set_wce(false).unwrap_err();
    assert!(!matches!(refusal, flowstone_testkit::Error::Disconnected(_)), "{refusal}");
    assert_eq!(client.write(8, &[2; 512]).unwrap(), Status::Ok, "the queue runs on");
    assert_eq!(client.refresh_config().unwrap().wce, 1, "the driver would stop flushing");
    assert_eq!(place.stats()["disks"][0]["write_through"], false);
    assert_eq!(client.flush().unwrap(), Status::IoErr);
    assert!(!client.session().unwrap().is_closed());
    drop(client);
    assert!(daemon.terminate(HANG).unwrap().success(), "its image can be flushed");
}

#[test]
fn a_driver_that_hangs_up_in_the_middle_leaves_a_working_disk() {
    let place = Place::new();
    place.image("64M");
    let daemon = place.serve(&["--layer", "delay=0-4ms", "disk.raw"]);
    for round in 0..5u8 {
        let mut client = place.client();
        let data = block(0, round);
        for number in 0..16 {
            client.submit(0, &Request::write(number * 8, &data)).unwrap();
        }
        client.notify(0).unwrap();
        client.disconnect();
    }
    let mut client = place.client();
    assert_eq!(client.write(0, &block(0, 9)).unwrap(), Status::Ok);
    stop(daemon);
}

/// Regression: the thread that had opened the image kept it while it was blocked in printing that,
/// for ever.
#[test]
fn an_image_is_closed_in_order_though_nobody_reads_what_is_printed() {
    let place = Place::new();
    place.succeed(&["create", "--size", "64M", "--format", "log", "disk.flow"]);
    let (_reader, mut full) = std::io::pipe().unwrap();
    let flags = fcntl_getfl(&full).unwrap();
    fcntl_setfl(&full, flags | OFlags::NONBLOCK).unwrap();
    while full.write(&[0; 4096]).is_ok() {}
    while full.write(&[0]).is_ok() {}
    fcntl_setfl(&full, flags).unwrap();
    let mut daemon = Command::new(env!("CARGO_BIN_EXE_flowstone"))
        .args(["serve", "--socket", &place.text("disk.sock"), &place.text("disk.flow")])
        .stdout(full)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut guest = Client::connect(ClientOptions::new(place.path("disk.sock"))).unwrap();
    assert_eq!(guest.write(0, &[1; 4096]).unwrap(), Status::Ok);
    drop(guest);
    kill_process(Pid::from_child(&daemon), Signal::TERM).unwrap();
    assert!(daemon.wait().unwrap().success());
    let info = place.succeed(&["info", "disk.flow"]);
    assert!(info.contains("closed in order") && !info.contains("not closed in order"), "{info}");
}
