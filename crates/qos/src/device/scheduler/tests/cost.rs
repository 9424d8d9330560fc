//! Benchmark of a grant with many contending disks: `cargo test --release -p flowstone-qos --lib
//! cost -- --ignored --nocapture`.

use std::time::Instant;

use super::*;

const GRANTS: usize = 200_000;
/// Requests of each disk, waiting or in flight.
const WANTED: usize = 8;

/// Returns the nanoseconds per completion, new request and grant.
fn cost(disks: usize) -> f64 {
    let mut scheduler = Scheduler::default();
    let add = |id| {
        let disk = scheduler.add_disk(vm(id as u32), Weight::default());
        (disk, scheduler.add_queue(disk, Rank::Usual))
    };
    let keys: Vec<(DiskKey, QueueKey)> = (0..disks).map(add).collect();
    let mut now = SECOND;
    for (disk, queue) in &keys {
        scheduler.touch(*disk, now);
        (0..WANTED).for_each(|_| scheduler.push(*queue, Pending::of_bytes(4096)));
        scheduler.pushed(*disk, now);
    }
    let mut on_their_way = std::collections::VecDeque::new();
    scheduler.advance(now, |queue| on_their_way.push_back(queue));
    let begin = Instant::now();
    for _ in 0..GRANTS {
        // A device of a million requests a second.
        now += 1000;
        let queue = on_their_way.pop_front().unwrap();
        let disk = scheduler.fair.disk_of(queue);
        scheduler.came_back(disk, 1, now);
        scheduler.touch(disk, now);
        scheduler.push(queue, Pending::of_bytes(4096));
        scheduler.pushed(disk, now);
        scheduler.advance(now, |queue| on_their_way.push_back(queue));
        scheduler.take_granted(queue);
    }
    begin.elapsed().as_nanos() as f64 / GRANTS as f64
}

#[test]
#[ignore = "a figure, not a test"]
fn cost_of_a_grant_by_disks() {
    for round in 1..=5 {
        let costs = [2, 16, 200].map(|disks| format!("{disks} disks {:.0} ns", cost(disks)));
        println!("round {round}: {}", costs.join(", "));
    }
}
