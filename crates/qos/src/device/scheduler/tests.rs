use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::depth::DEPTH_LEAST;
use super::state::{ACTIVE_FOR_NS, STALLED_NS};
use super::*;

mod cost;
mod depth;
mod fast;
mod vms;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// A VM of unknown weight.
fn vm(id: u32) -> DeviceVm {
    DeviceVm { id, weight: DeviceVm::UNKNOWN }
}

/// A disk that keeps `depth` requests of `bytes` bytes at a device.
struct Driver {
    disk: DiskKey,
    queue: QueueKey,
    depth: usize,
    bytes: u64,
    /// Times at which the waiting requests were pushed.
    waiting: std::collections::VecDeque<u64>,
    on_their_way: usize,
    done: u64,
    longest_ns: u64,
}

/// A device that executes requests one by one, in order of arrival.
struct Bench {
    scheduler: Scheduler,
    drivers: Vec<Driver>,
    now: u64,
    free_at: u64,
    /// How often it is as fast as one that takes 10 us per request and 1 ns per byte.
    speed: u64,
    /// Completion time, driver, and time of the push.
    on_their_way: BinaryHeap<Reverse<(u64, usize, u64)>>,
    most: usize,
    /// How often it was idle, and was sent something.
    idles: usize,
}

impl Bench {
    fn new(drivers: &[(u32, usize, u64)]) -> Self {
        let mut scheduler = Scheduler::default();
        let make = |(weight, depth, bytes): &(u32, usize, u64)| {
            let disk = scheduler.add_disk(vm(0), Weight::new(*weight).unwrap());
            let (queue, waiting) = (scheduler.add_queue(disk, Rank::Usual), Default::default());
            let (depth, bytes) = (*depth, *bytes);
            let (on_their_way, done, longest_ns) = (0, 0, 0);
            Driver { disk, queue, depth, bytes, waiting, on_their_way, done, longest_ns }
        };
        let drivers = drivers.iter().map(make).collect();
        let (now, on_their_way) = (SECOND, BinaryHeap::new());
        Self { scheduler, drivers, now, free_at: 0, speed: 1, on_their_way, most: 0, idles: 0 }
    }

    /// Refills all drivers, and makes the possible grants.
    fn send(&mut self) {
        let Self { scheduler, drivers, now, .. } = self;
        for driver in drivers.iter_mut() {
            let mut has_new = false;
            while driver.waiting.len() + driver.on_their_way < driver.depth {
                scheduler.touch(driver.disk, *now);
                scheduler.push(driver.queue, Pending::of_bytes(driver.bytes));
                driver.waiting.push_back(*now);
                has_new = true;
            }
            if has_new {
                scheduler.pushed(driver.disk, *now);
            }
        }
        let was_idle = self.on_their_way.is_empty();
        scheduler.advance(*now, |_| {});
        for (at, driver) in drivers.iter_mut().enumerate() {
            for _ in 0..scheduler.take_granted(driver.queue) {
                let since = driver.waiting.pop_front().unwrap();
                driver.on_their_way += 1;
                self.free_at = self.free_at.max(*now) + (10_000 + driver.bytes) / self.speed;
                self.on_their_way.push(Reverse((self.free_at, at, since)));
            }
        }
        self.idles += usize::from(was_idle && !self.on_their_way.is_empty());
        self.most = self.most.max(self.on_their_way.len());
    }

    fn run(&mut self, time: u64) {
        let end = self.now + time;
        self.send();
        loop {
            let Some(Reverse((at, driver, since))) = self.on_their_way.pop() else {
                // Nothing will complete: the waiting requests have named a time.
                let mut waiting = self.drivers.iter().filter(|it| !it.waiting.is_empty());
                let Some(queue) = waiting.next().map(|it| it.queue) else { return };
                self.now = self.scheduler.next_look(queue, self.now).unwrap();
                if self.now > end {
                    return;
                }
                self.send();
                continue;
            };
            self.now = at;
            if at > end {
                return self.on_their_way.push(Reverse((at, driver, since)));
            }
            let driver = &mut self.drivers[driver];
            driver.on_their_way -= 1;
            driver.done += 1;
            driver.longest_ns = driver.longest_ns.max(at - since);
            self.scheduler.came_back(driver.disk, 1, at);
            self.send();
        }
    }
}

#[test]
fn a_disk_that_is_alone_is_not_held_back() {
    let mut bench = Bench::new(&[(100, 128, 4096), (100, 0, 4096)]);
    bench.run(SECOND);
    assert_eq!(bench.most, 128);
}

#[test]
fn a_hog_does_not_starve_a_neighbour_and_keeps_what_it_does_not_use() {
    let mut bench = Bench::new(&[(100, 128, 4096), (100, 1, 4096)]);
    bench.run(SECOND);
    let [hog, modest] = &bench.drivers[..] else { unreachable!() };
    // One in 17 requests at the device is the modest disk's, and the device is never idle.
    assert!(
        modest.longest_ns <= (DEPTH_LEAST as u64 + 2) * 14_096 + 128 * 14_096,
        "{}",
        modest.longest_ns
    );
    assert!(modest.done * 14_096 * (DEPTH_LEAST as u64 + 2) >= 9 * SECOND / 10, "{}", modest.done);
    assert!((hog.done + modest.done) * 14_096 >= 99 * SECOND / 100);
}

#[test]
fn deep_disks_share_by_weight_and_by_what_their_requests_cost() {
    // Equal weights with small and with large requests; and a heavier disk.
    let mut bench = Bench::new(&[(100, 64, 4096), (100, 64, 1 << 20), (200, 64, 4096)]);
    bench.run(20 * SECOND);
    let cost = |driver: &Driver| (driver.done * (driver.bytes + REQUEST_BYTES)) as f64;
    let costs: Vec<f64> = bench.drivers.iter().map(cost).collect();
    assert!((costs[1] / costs[0] - 1.0).abs() < 0.03, "{costs:?}");
    assert!((costs[2] / costs[0] - 2.0).abs() < 0.03, "{costs:?}");
    // The demand of the last one, and half as much at half of its weight: 64 and 32 small ones or
    // their cost.
    assert!(bench.most <= 7 * (64 + 32) / 8 + 3, "{}", bench.most);
}

#[test]
fn a_disk_that_has_asked_for_nothing_for_a_while_holds_nobody_back() {
    let mut bench = Bench::new(&[(100, 128, 4096), (100, 1, 4096)]);
    bench.run(SECOND / 10);
    bench.drivers[1].depth = 0;
    bench.most = 0;
    bench.run(ACTIVE_FOR_NS / 2);
    assert!(bench.most <= DEPTH_LEAST + 1, "{}", bench.most);
    bench.run(ACTIVE_FOR_NS);
    assert_eq!(bench.most, 128);
}

/// Regression: a hang in a stopped FUSE server, or below a dead path, blocked all disks of the
/// device.
#[test]
fn a_disk_whose_requests_hang_does_not_keep_others_from_sending() {
    let mut scheduler = Scheduler::default();
    let [(dead, dead_queue), (live, live_queue)] = [(); 2].map(|()| {
        let disk = scheduler.add_disk(vm(0), Weight::default());
        (disk, scheduler.add_queue(disk, Rank::Usual))
    });
    assert!(!scheduler.touch(dead, SECOND));
    assert!(scheduler.touch(live, SECOND));
    (0..100).for_each(|_| scheduler.push(dead_queue, Pending::of_bytes(4096)));
    scheduler.pushed(dead, SECOND);
    scheduler.advance(SECOND, |_| {});
    assert_eq!(scheduler.take_granted(dead_queue), DEPTH_LEAST);
    // It continues without a slot, one at a time, until it is ahead of its part.
    let now = SECOND + MS;
    // Usually it has one there.
    scheduler.push(live_queue, Pending::of_bytes(4096));
    scheduler.pushed(live, now);
    (1..30).for_each(|_| scheduler.push(live_queue, Pending::of_bytes(4096)));
    let mut sent = 0;
    loop {
        scheduler.advance(now, |queue| assert_eq!(queue, live_queue));
        let granted = scheduler.take_granted(live_queue);
        if granted == 0 {
            break;
        }
        assert_eq!(granted, 1);
        scheduler.came_back(live, 1, now);
        sent += 1;
    }
    assert!((DEPTH_LEAST - 4..=DEPTH_LEAST).contains(&sent), "{sent}");
    let look = scheduler.next_look(live_queue, now).unwrap();
    assert_eq!(look, SECOND + STALLED_NS);
    scheduler.touch(live, look);
    scheduler.touch(dead, look);
    scheduler.advance(look, |_| {});
    let rest = scheduler.take_granted(live_queue);
    assert_eq!(rest, DEPTH_LEAST.min(30 - sent));
    assert_eq!(scheduler.take_granted(dead_queue), 0, "it sends nothing more");
    assert!(scheduler.next_look(dead_queue, look).is_some());
    scheduler.came_back(live, rest, look);
    let look = look + CENSUS_NS;
    assert!(scheduler.next_look(dead_queue, look).is_none(), "what it waits for is its own");
    // With the first completion it has its slots again.
    scheduler.came_back(dead, 1, look + MS);
    scheduler.advance(look + MS, |_| {});
    assert_eq!(scheduler.take_granted(dead_queue), 1);
}

/// More seldom with many disks, but in time for a VM that is no longer expected.
#[test]
fn a_census_has_an_age_by_the_number_of_disks() {
    for (count, age) in [(2, 200_000), (50, 200_000), (100, 400_000), (2000, MS)] {
        let mut scheduler = Scheduler::default();
        let disks: Vec<_> =
            (0..count).map(|id| scheduler.add_disk(vm(id), Weight::default())).collect();
        scheduler.touch(disks[0], SECOND);
        scheduler.touch(disks[1], SECOND);
        for (now, at) in [(age - 1, 0), (age, age), (2 * age - 1, age)] {
            scheduler.count(SECOND + now);
            assert_eq!(scheduler.census.at - SECOND, at, "{count} disks, {now} ns");
        }
    }
}
