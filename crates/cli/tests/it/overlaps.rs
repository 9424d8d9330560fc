//! Several queues write, discard, zero, flush and read the same few blocks at once.
//!
//! Requests in flight together are unordered. But a request submitted after another one had
//! completed comes after it: a write wins over a completed discard, and after a discard with
//! nothing else in flight, the range reads as zeroes.

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use flowstone_testkit::{Client, Request, Status};

use crate::fixture::{Place, stop};

const QUEUES: usize = 4;
/// Queue depth.
const DEPTH: usize = 4;
const REQUESTS: u64 = 4000;
/// Time until the next look for answers.
const PAUSE: Duration = Duration::from_micros(50);
/// A few clusters and blocks, so that requests collide.
const SECTORS: u64 = 512;
const SECTORS_MAX: u64 = 72;
const SECTOR: usize = 512;

/// A possible content of a sector: the stamp of a request that changed it; 0 is zeroes.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    stamp: u64,
    submitted: u64,
    completed: u64,
    /// Time at which a request submitted after this one's completion completed itself.
    superseded: u64,
}

/// Not yet.
const NEVER: u64 = u64::MAX;

/// A request in flight.
struct Flight {
    what: What,
    first: u64,
    count: u64,
    submitted: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Change(u64),
    Read,
    Flush,
}

/// All sectors, and a clock that ticks with every event.
struct Oracle {
    sectors: Vec<Vec<Candidate>>,
    now: u64,
}

impl Oracle {
    fn new() -> Self {
        let zero = Candidate { stamp: 0, submitted: 0, completed: 0, superseded: NEVER };
        Self { sectors: vec![vec![zero]; SECTORS as usize], now: 0 }
    }

    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    fn of(&mut self, flight: &Flight) -> &mut [Vec<Candidate>] {
        &mut self.sectors[flight.first as usize..(flight.first + flight.count) as usize]
    }

    fn submit(&mut self, flight: &Flight) {
        let (What::Change(stamp), submitted) = (flight.what, flight.submitted) else { return };
        for sector in self.of(flight) {
            let (completed, superseded) = (NEVER, NEVER);
            sector.push(Candidate { stamp, submitted, completed, superseded });
        }
    }

    /// Records a completed change; replaced candidates are dropped when no read can have seen them.
    fn complete(&mut self, flight: &Flight, oldest_in_flight: u64) {
        let now = self.tick();
        for sector in self.of(flight) {
            for candidate in sector.iter_mut() {
                if candidate.submitted == flight.submitted {
                    candidate.completed = now;
                } else if candidate.completed < flight.submitted {
                    candidate.superseded = candidate.superseded.min(now);
                }
            }
            sector.retain(|candidate| candidate.superseded > oldest_in_flight);
        }
    }

    fn check(&mut self, flight: &Flight, data: &[u8]) {
        let (first, submitted) = (flight.first, flight.submitted);
        for ((number, allowed), found) in
            (first..).zip(self.of(flight)).zip(data.chunks_exact(SECTOR))
        {
            for word in found.as_chunks::<8>().0 {
                let word = u64::from_le_bytes(*word);
                let fits = |it: &Candidate| it.stamp == word && it.superseded > submitted;
                assert!(
                    allowed.iter().any(fits),
                    "sector {number}: {word:#x}, read at {submitted}, may hold {allowed:x?}"
                );
            }
        }
    }
}

/// Returns data of a write: each word is its stamp.
fn stamped(stamp: u64, sectors: u64) -> Vec<u8> {
    stamp.to_le_bytes().repeat(sectors as usize * SECTOR / 8)
}

struct Storm {
    client: Client,
    oracle: Oracle,
    random: Rng,
    /// By queue and ticket.
    flights: HashMap<(usize, u64), Flight>,
}

impl Storm {
    fn submit(&mut self, queue: usize) {
        let count = self.random.u64(1..=SECTORS_MAX);
        let (mut first, mut count) = (self.random.u64(..SECTORS - count), count);
        if self.random.bool() {
            (first, count) = (first / 8 * 8, count.next_multiple_of(8).min(SECTORS - first));
        }
        let submitted = self.oracle.tick();
        let bytes = count as usize * SECTOR;
        let data = stamped(submitted, count);
        let ranges = [(first, count as u32)];
        let unmap = self.random.bool();
        let (what, request) = match self.random.u8(..100) {
            0..35 => (What::Change(submitted), Request::write(first, &data)),
            35..60 => (What::Change(0), Request::discard(&ranges)),
            60..70 => (What::Change(0), Request::write_zeroes(&ranges, unmap)),
            70..95 => (What::Read, Request::read(first, bytes)),
            _ => (What::Flush, Request::flush()),
        };
        let flight = Flight { what, first, count, submitted };
        self.oracle.submit(&flight);
        let ticket = self.client.submit(queue, &request).unwrap();
        self.flights.insert((queue, ticket.0), flight);
    }

    /// Checks the answers of a queue. Returns how many there were.
    fn reap(&mut self, queue: usize) -> usize {
        let mut answers = 0;
        while let Some(answer) = self.client.poll(queue).unwrap() {
            let flight = self.flights.remove(&(queue, answer.ticket.0)).unwrap();
            assert_eq!(answer.status, Status::Ok, "{:?}", flight.what);
            let in_flight = self.flights.values().map(|flight| flight.submitted);
            let oldest = in_flight.min().unwrap_or(NEVER - 1);
            match flight.what {
                What::Read => self.oracle.check(&flight, &answer.data),
                What::Change(_) => self.oracle.complete(&flight, oldest),
                What::Flush => {}
            }
            answers += 1;
        }
        answers
    }

    fn run(&mut self) {
        let mut left = REQUESTS;
        while left > 0 || !self.flights.is_empty() {
            let mut done = 0;
            for queue in 0..QUEUES {
                let room = DEPTH - self.client.in_flight(queue);
                let some = self.random.usize(..=room).min(left as usize);
                (0..some).for_each(|_| self.submit(queue));
                left -= some as u64;
                if some > 0 {
                    self.client.notify(queue).unwrap();
                }
                done += some + self.reap(queue);
            }
            if done == 0 {
                thread::sleep(PAUSE);
            }
        }
    }
}

/// Reads everything, while no other request is in flight.
fn read_all(client: &mut Client, oracle: &mut Oracle) {
    let mut data = vec![0xee; SECTORS as usize * SECTOR];
    assert_eq!(client.read(0, &mut data).unwrap(), Status::Ok);
    let submitted = oracle.tick();
    oracle.check(&Flight { what: What::Read, first: 0, count: SECTORS, submitted }, &data);
}

fn storm(image: &str, args: &[&str], seed: u64) {
    println!("{image} {args:?}, seed {seed}");
    let place = Place::new();
    if args.contains(&"keep") && !place.keeps_space() {
        return;
    }
    place.succeed(&["create", "--size", "16M", image]);
    let args = [args, &[image]].concat();
    let daemon = place.serve(&args);
    let client = Client::connect(place.options().queues(QUEUES)).unwrap();
    let (oracle, random) = (Oracle::new(), Rng::with_seed(seed));
    let mut storm = Storm { client, oracle, random, flights: HashMap::new() };
    storm.run();
    let Storm { mut client, mut oracle, .. } = storm;
    read_all(&mut client, &mut oracle);
    let counted = place.stats()["disks"][0]["discards"].clone();
    println!("{counted}");
    assert!(counted["ranges"].as_u64() > Some(REQUESTS / 5), "{counted}");
    assert_eq!(counted["waiting"], 0);
    drop(client);
    stop(daemon);
    let daemon = place.serve(&args);
    read_all(&mut place.client(), &mut oracle);
    stop(daemon);
    place.succeed(&["check", "--data", image]);
}

fn storms(image: &str, args: &[&str]) {
    for pollers in ["auto", "per-queue"] {
        storm(image, &[args, &["--pollers", pollers]].concat(), fastrand::u64(..));
    }
}

#[test]
fn overlapping_discards_and_writes_of_a_raw_image_keep_their_order() {
    storms("disk.raw", &["--engine", "uring"]);
    storms("disk.raw", &["--engine", "sync"]);
    storms("disk.raw", &["--discard", "keep"]);
}

#[test]
fn overlapping_discards_and_writes_of_a_qcow2_image_keep_their_order() {
    storms("disk.qcow2", &["--engine", "uring"]);
    storms("disk.qcow2", &["--engine", "sync"]);
}

#[test]
fn overlapping_discards_and_writes_of_a_log_image_keep_their_order() {
    storms("disk.flow", &["--engine", "uring"]);
    storms("disk.flow", &["--engine", "sync"]);
}
