use std::collections::VecDeque;
use std::time::Duration;

use super::*;

const SECOND: u64 = 1_000_000_000;
const BLOCK: Cost = Cost { requests: 1, bytes: 4096 };

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

/// A driver that keeps `depth` requests of `cost` waiting in a queue and looks at the times it is
/// told.
struct Driver {
    queue: QueueKey,
    depth: usize,
    cost: Cost,
    look_at: u64,
    done: u64,
    looks: u64,
    /// Times at which the waiting ones began to wait.
    since: VecDeque<u64>,
    longest: u64,
}

/// Takes as many of a queue's chains as its lease allows.
fn take(line: &mut Line, queue: QueueKey, available: usize, each: Cost, now: u64) -> usize {
    let lease = line.look(queue, available, now);
    let (mut chains, mut spent) = (0, Cost::default());
    let may = |spent: Cost| !lease.counts_bytes || spent.bytes < lease.cost.bytes;
    while chains < lease.chains && spent.requests < lease.cost.requests && may(spent) {
        (chains, spent) = (chains + 1, spent.plus(each));
    }
    if (lease.chains, lease.cost) != (chains, spent) {
        line.settle(queue, lease, chains, spent, now);
    }
    chains
}

impl Driver {
    fn new(queue: QueueKey, depth: usize, cost: Cost) -> Self {
        let since = VecDeque::new();
        Self { queue, depth, cost, look_at: SECOND, done: 0, looks: 0, since, longest: 0 }
    }

    fn look(&mut self, line: &mut Line, now: u64) {
        self.looks += 1;
        // Taken requests complete at once, and new ones follow.
        loop {
            while self.since.len() < self.depth {
                self.since.push_back(now);
            }
            let taken = take(line, self.queue, self.since.len(), self.cost, now);
            self.done += taken as u64;
            for since in self.since.drain(..taken) {
                self.longest = self.longest.max(now - since);
            }
            if taken == 0 {
                break;
            }
        }
        self.look_at = line.next_look(self.queue, now).expect("something waits");
        assert!(self.look_at > now, "it would never sleep");
    }
}

/// Runs drivers for some seconds; each wakes up `late` nanoseconds too late.
fn run(line: &mut Line, drivers: &mut [Driver], seconds: u64, late: u64) {
    let end = SECOND + seconds * SECOND;
    loop {
        let next = drivers.iter_mut().min_by_key(|driver| driver.look_at).unwrap();
        let now = next.look_at + late;
        if now >= end {
            return;
        }
        next.look(line, now);
    }
}

/// Makes a line with disks, each with a weight and queues of these depths.
fn line(disks: &[(u32, &[usize])], cost: Cost) -> (Line, Vec<DiskKey>, Vec<Driver>) {
    let mut line = Line::default();
    let (mut keys, mut drivers) = (Vec::new(), Vec::new());
    for (weight, depths) in disks {
        let disk = line.add_disk(Weight::new(*weight).unwrap());
        keys.push(disk);
        drivers.extend(depths.iter().map(|depth| Driver::new(line.add_queue(disk), *depth, cost)));
    }
    (line, keys, drivers)
}

fn near(got: u64, wanted: f64) -> bool {
    (got as f64 / wanted - 1.0).abs() < 0.02
}

#[test]
fn a_disk_gets_what_its_limit_says_from_any_number_of_queues() {
    for depths in [&[1][..], &[128], &[1, 128], &[4; 64]] {
        for (text, rate) in [("iops=20000", 20_000.0), ("iops=100000,bw=40M", 10_240.0)] {
            for late in [0, 60_000, 900_000] {
                let (mut line, disks, mut drivers) = line(&[(100, depths)], BLOCK);
                line.set_limit(disks[0], limit(text), SECOND);
                run(&mut line, &mut drivers, 4, late);
                let done: u64 = drivers.iter().map(|driver| driver.done).sum();
                // A queue of one sends nothing while it sleeps too long.
                let least = if depths == [1] && late > 0 { 4.0 * rate * 0.9 } else { 3.92 * rate };
                assert!(done as f64 >= least, "{depths:?}, {text}, {late}: {done}");
                assert!(done as f64 <= 4.05 * rate + 1.0, "{depths:?}, {text}, {late}: {done}");
            }
        }
    }
}

#[test]
fn a_queue_is_woken_once_for_a_request_or_for_a_step_of_them() {
    for (depths, looks_max) in [(&[128][..], 4_100), (&[1], 4 * 20_000 + 10), (&[2; 64], 90_000)] {
        let (mut line, disks, mut drivers) = line(&[(100, depths)], BLOCK);
        line.set_limit(disks[0], limit("iops=20000"), SECOND);
        run(&mut line, &mut drivers, 4, 0);
        let looks: u64 = drivers.iter().map(|driver| driver.looks).sum();
        assert!(looks <= looks_max, "{depths:?}: {looks} looks for 80,000 requests");
    }
}

/// The deep queue is always first at the bucket.
#[test]
fn queues_of_a_disk_share_its_limit_evenly_however_deep_they_are() {
    let (mut line, disks, mut drivers) = line(&[(100, &[128, 1, 16])], BLOCK);
    line.set_limit(disks[0], limit("iops=3000"), SECOND);
    run(&mut line, &mut drivers, 10, 0);
    let done: Vec<u64> = drivers.iter().map(|driver| driver.done).collect();
    // A queue of one has nothing waiting from its turn to its next look, a step later at most.
    assert!(done[1] > 8_000 && done[2] > 9_500, "{done:?}");
    assert!(drivers[1].longest <= 3_000_000, "{}", drivers[1].longest);
}

#[test]
fn disks_of_a_group_share_its_limit_by_weight_and_keep_to_their_own() {
    let (mut line, disks, mut drivers) =
        line(&[(100, &[32]), (300, &[32]), (100, &[64, 64])], BLOCK);
    line.set_group_limit(limit("iops=10000"), SECOND);
    run(&mut line, &mut drivers, 5, 0);
    let done = [drivers[0].done, drivers[1].done, drivers[2].done + drivers[3].done];
    assert!(near(done[0], 10_000.0) && near(done[1], 30_000.0), "{done:?}");
    assert!(near(done[2], 10_000.0), "{done:?}");

    assert!(disks.iter().all(|disk| line.is_limited(*disk)));
}

#[test]
fn what_a_disk_of_a_group_may_not_use_the_others_have() {
    let (mut line, disks, mut drivers) =
        line(&[(100, &[32]), (300, &[32]), (100, &[64, 64])], BLOCK);
    line.set_group_limit(limit("iops=10000"), SECOND);
    line.set_limit(disks[1], limit("iops=1000"), SECOND);
    run(&mut line, &mut drivers, 5, 0);
    let done = [drivers[0].done, drivers[1].done, drivers[2].done + drivers[3].done];
    assert!(
        near(done[0], 22_500.0) && near(done[1], 5_000.0) && near(done[2], 22_500.0),
        "{done:?}"
    );
}

#[test]
fn a_request_larger_than_the_burst_passes_and_its_disk_pays_for_it() {
    let mib = Cost { requests: 1, bytes: 1 << 20 };
    let (mut line, disks, mut drivers) = line(&[(100, &[4])], mib);
    line.set_limit(disks[0], limit("bw=1M,burst=0s"), SECOND);
    run(&mut line, &mut drivers, 10, 0);
    assert!((10..=11).contains(&drivers[0].done), "{}", drivers[0].done);
}

#[test]
fn another_limit_is_that_of_what_waits_already() {
    let (mut line, disks, _) = line(&[(100, &[])], BLOCK);
    let queue = line.add_queue(disks[0]);
    line.set_limit(disks[0], limit("iops=1"), SECOND);
    assert_eq!(line.look(queue, 100, SECOND).chains, 1);
    line.set_limit(disks[0], limit("iops=1000"), SECOND);
    assert_eq!(line.look(queue, 99, SECOND + SECOND / 100).chains, 10);
    assert!(line.is_limited(disks[0]));
    line.set_limit(disks[0], Limit::NONE, SECOND);
    assert_eq!(line.look(queue, 89, SECOND + SECOND / 100).chains, 89);
    assert!(!line.is_limited(disks[0]) && line.next_look(queue, SECOND).is_none());
}

#[test]
fn credit_is_used_at_once() {
    let (mut line, disks, _) = line(&[(100, &[])], BLOCK);
    let queue = line.add_queue(disks[0]);
    line.set_limit(disks[0], limit("iops=1000,burst=2s"), SECOND);
    // The line knows 1024 chains at most; the next look follows at once.
    let mut waits = 5000;
    for granted in [1024, 977, 0] {
        assert_eq!(line.look(queue, waits, 11 * SECOND).chains, granted);
        waits -= granted;
    }
    assert_eq!(Limit::BURST_MIN, Duration::from_millis(10));
}

mod debts;
