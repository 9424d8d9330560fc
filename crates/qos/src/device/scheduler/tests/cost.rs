//! Benchmark of a grant with many contending disks: `cargo test --release -p flowstone-qos --lib
//! cost -- --ignored --nocapture`. It prints CPU time, so other work on the machine hardly counts.

use flowstone_testkit::patience::cpu_time;

use super::*;

const GRANTS: usize = 200_000;
const ROUNDS: usize = 9;
/// Requests of each disk, waiting or in flight.
const WANTED: usize = 8;
/// Those of a disk that wants much.
const HOG: usize = 128;

/// What the disks of a device send.
#[derive(Clone, Copy)]
struct Load {
    bytes: u64,
    /// Whether the first disk wants more than the others.
    has_hog: bool,
}

/// Returns the nanoseconds per completion, new request and grant.
fn cost(disks: usize, load: Load) -> f64 {
    let mut scheduler = Scheduler::default();
    let add = |id| {
        let disk = scheduler.add_disk(vm(id as u32), Weight::default());
        (disk, scheduler.add_queue(disk, Rank::Usual))
    };
    let keys: Vec<(DiskKey, QueueKey)> = (0..disks).map(add).collect();
    let mut now = SECOND;
    for (at, (disk, queue)) in keys.iter().enumerate() {
        let wanted = if at == 0 && load.has_hog { HOG } else { WANTED };
        scheduler.touch(*disk, now);
        (0..wanted).for_each(|_| scheduler.push(*queue, Pending::of_bytes(load.bytes)));
        scheduler.pushed(*disk, now);
    }
    let mut on_their_way = std::collections::VecDeque::new();
    scheduler.advance(now, |queue| on_their_way.push_back(queue));
    let begin = cpu_time();
    for _ in 0..GRANTS {
        // A device of a million requests a second.
        now += 1000;
        let queue = on_their_way.pop_front().unwrap();
        let disk = scheduler.fair.disk_of(queue);
        scheduler.came_back(disk, 1, now);
        scheduler.touch(disk, now);
        scheduler.push(queue, Pending::of_bytes(load.bytes));
        scheduler.pushed(disk, now);
        scheduler.advance(now, |queue| on_their_way.push_back(queue));
        scheduler.take_granted(queue);
    }
    (cpu_time() - begin).as_nanos() as f64 / GRANTS as f64
}

#[test]
#[ignore = "a figure, not a test"]
fn cost_of_a_grant_by_disks() {
    let loads = [
        ("4 KiB", Load { bytes: 4 << 10, has_hog: false }),
        ("64 KiB", Load { bytes: 64 << 10, has_hog: false }),
        ("4 KiB, one disk wants 128", Load { bytes: 4 << 10, has_hog: true }),
    ];
    let counts = [2, 16, 200];
    for (name, load) in loads {
        let mut least = [f64::MAX; 3];
        // One after the other in each round: the clock of a processor changes.
        for _ in 0..ROUNDS {
            for (disks, least) in counts.iter().zip(&mut least) {
                *least = least.min(cost(*disks, load));
            }
        }
        let costs = counts.iter().zip(least).map(|(disks, ns)| format!("{disks} disks {ns:.0} ns"));
        let costs = costs.collect::<Vec<_>>().join(", ");
        println!("{name}: {costs}, x {:.2}", least[2] / least[0]);
    }
}
