//! Depth of a contended device: as large as weights allow.

use super::*;

/// Returns the requests done by the second disk per request of the first.
fn share(bench: &Bench) -> f64 {
    bench.drivers[1].done as f64 / bench.drivers[0].done as f64
}

fn assert_share(disks: [(u32, usize, u64); 2], expected: f64) {
    let mut bench = Bench::new(&disks);
    bench.run(5 * SECOND);
    let share = share(&bench);
    assert!((share / expected - 1.0).abs() < 0.05, "{disks:?}: {share}, not {expected}");
}

/// Regression: sixteen guests with four requests each got a quarter of the device's depth, and half
/// of its rate.
#[test]
fn disks_that_want_alike_have_nearly_what_they_want() {
    for (disks, depth) in [(16, 4), (4, 32), (2, 128)] {
        let mut bench = Bench::new(&vec![(100, depth, 4096); disks]);
        bench.run(SECOND / 2);
        bench.most = 0;
        bench.run(SECOND);
        let all = disks * depth;
        assert!(bench.most >= all * 3 / 4, "{} of {all}", bench.most);
        let done: Vec<u64> = bench.drivers.iter().map(|it| it.done).collect();
        let (least, most) = (done.iter().min().unwrap(), done.iter().max().unwrap());
        assert!(most - least <= most / 50, "{done:?}");
    }
}

/// Regression: while equal disks had no limit, twice the weight had no effect.
#[test]
fn shares_follow_weights_however_much_disks_want() {
    for depths in [(64, 64), (128, 96), (96, 128), (50, 50)] {
        for (weights, expected) in [
            ((100, 100), 1.0),
            ((100, 140), 1.4),
            ((100, 180), 1.8),
            ((1, 2), 2.0),
            ((5000, 10_000), 2.0),
            ((100, 400), 4.0),
        ] {
            assert_share([(weights.0, depths.0, 4096), (weights.1, depths.1, 4096)], expected);
        }
    }
    // The heavier one wants less.
    assert_share([(100, 128, 4096), (140, 64, 4096)], 1.4);
    // Equal weights: one wants twice as much; and one has requests of four times the cost.
    assert_share([(100, 64, 4096), (100, 128, 4096)], 1.0);
    assert_share([(100, 64, 4096), (100, 64, 64 << 10)], 0.25);
}

/// The limit applies from the first request of a modest disk, and ends with it.
#[test]
fn disks_are_held_back_while_a_modest_one_is_among_them() {
    let mut bench = Bench::new(&[(100, 32, 4096), (100, 32, 4096), (100, 0, 4096)]);
    bench.run(SECOND);
    assert!(bench.most >= 56, "{}", bench.most);
    bench.drivers[2].depth = 1;
    bench.run(SECOND / 10);
    (bench.most, bench.drivers[2].longest_ns) = (0, 0);
    bench.run(SECOND);
    assert!(bench.most <= DEPTH_LEAST + 3, "{}", bench.most);
    assert!(bench.drivers[2].longest_ns <= (DEPTH_LEAST as u64 + 3) * 14_096);
    bench.drivers[2].depth = 0;
    bench.run(2 * ACTIVE_FOR_NS);
    bench.most = 0;
    bench.run(SECOND / 2);
    assert!(bench.most >= 54, "{}", bench.most);
}

#[test]
fn many_disks_have_the_device_although_one_hardly_asks() {
    let mut drivers = vec![(100, 8, 4096); 15];
    drivers.push((100, 1, 4096));
    let mut bench = Bench::new(&drivers);
    bench.run(SECOND / 2);
    bench.most = 0;
    bench.run(SECOND);
    assert!((60..=64 + drivers.len()).contains(&bench.most), "{}", bench.most);
}

/// Disks with hardly any demand add no depth for a hog.
#[test]
fn disks_that_ask_seldom_leave_a_neighbour_its_protection() {
    let mut drivers = vec![(100, 128, 4096), (100, 1, 4096)];
    drivers.extend([(100, 0, 4096); 14]);
    let mut bench = Bench::new(&drivers);
    let mut longest = 0;
    for round in 0..20 {
        // One request of each in 150 ms.
        (2..16).for_each(|at| bench.drivers[at].depth = 1);
        bench.run(MS / 100);
        (2..16).for_each(|at| bench.drivers[at].depth = 0);
        bench.run(20 * MS);
        bench.drivers[1].longest_ns = 0;
        bench.run(130 * MS);
        if round > 5 {
            longest = longest.max(bench.drivers[1].longest_ns);
        }
    }
    assert!(longest <= 24 * 14_096, "{} us", longest / 1000);
}

/// The neighbour was greedy an hour ago.
#[test]
fn a_neighbour_that_comes_back_is_protected() {
    let mut bench = Bench::new(&[(100, 128, 4096), (100, 128, 4096)]);
    bench.run(SECOND);
    bench.drivers.iter_mut().for_each(|it| it.depth = 0);
    bench.run(SECOND);
    bench.now += 3600 * SECOND;
    (bench.drivers[0].depth, bench.drivers[1].depth) = (128, 1);
    // Requests in flight at its first request have to complete.
    bench.run(5 * MS);
    bench.drivers[1].longest_ns = 0;
    bench.run(50 * MS);
    let longest = bench.drivers[1].longest_ns;
    assert!(longest <= 20 * 14_096, "{} us", longest / 1000);
}

/// Sends one request per interval. Returns the time of each.
fn ask_now_and_then(bench: &mut Bench, interval: u64) -> Vec<u64> {
    let ask = |_| {
        bench.drivers[1].longest_ns = 0;
        bench.drivers[1].depth = 1;
        bench.run(MS / 100);
        bench.drivers[1].depth = 0;
        bench.run(interval - MS / 100);
        bench.drivers[1].longest_ns
    };
    (0..5).map(ask).collect()
}

/// Regression: it had been idle for longer than a disk stays active: 3.7 ms for 0.8 ms, each time.
#[test]
fn a_neighbour_that_asks_at_intervals_is_protected() {
    for interval in [250 * MS, 500 * MS, 900 * MS] {
        let mut bench = Bench::new(&[(100, 128, 65_536), (100, 0, 4096)]);
        bench.run(100 * MS);
        let took = ask_now_and_then(&mut bench, interval);
        assert!(took[0] > 100 * 75_536, "nothing is held back for one that has not asked");
        assert!(took[2..].iter().all(|it| *it <= 20 * 75_536), "{interval}: {took:?}");
    }
}

#[test]
fn a_disk_that_asks_seldom_does_not_hold_another_back_for_long() {
    let mut bench = Bench::new(&[(100, 128, 65_536), (100, 0, 4096)]);
    ask_now_and_then(&mut bench, 3 * SECOND);
    let hog = bench.drivers[0].disk;
    assert!(!bench.scheduler.touch(hog, bench.now));
    // Intervals that end are soon forgotten, too.
    ask_now_and_then(&mut bench, 900 * MS);
    assert!(bench.scheduler.touch(hog, bench.now));
    bench.run(2 * SECOND);
    assert!(!bench.scheduler.touch(hog, bench.now));
}

/// A neighbour reads one at a time, and its guest writes back 64 pages every 90 ms.
#[test]
fn a_neighbour_with_bursts_is_protected_between_them() {
    let mut bench = Bench::new(&[(100, 128, 4096), (100, 1, 4096)]);
    let mut longest = 0;
    for _ in 0..20 {
        bench.drivers[1].depth = 64;
        bench.run(MS / 100);
        bench.drivers[1].depth = 1;
        bench.run(20 * MS);
        bench.drivers[1].longest_ns = 0;
        bench.run(70 * MS);
        longest = longest.max(bench.drivers[1].longest_ns);
    }
    assert!(longest <= 20 * 14_096, "{} us", longest / 1000);
}

/// A request takes 20 ms: the neighbour's own takes longer than an idle disk stays active.
#[test]
fn a_disk_whose_request_is_at_a_slow_device_is_active() {
    let slow = 20_000_000 - 10_000;
    let mut bench = Bench::new(&[(100, 128, slow), (100, 1, slow)]);
    bench.run(20 * SECOND);
    bench.drivers[1].longest_ns = 0;
    bench.run(40 * SECOND);
    let longest = bench.drivers[1].longest_ns;
    assert!(longest <= 20 * 20_000_000, "{} ms; at most {}", longest / MS, bench.most);
}

/// The waiting requests of a removed queue are no demand.
#[test]
fn a_queue_that_goes_takes_what_waits_with_it() {
    let mut scheduler = Scheduler::default();
    let disk = scheduler.add_disk(vm(0), Weight::default());
    let queues = [(); 2].map(|()| scheduler.add_queue(disk, Rank::Usual));
    queues.iter().for_each(|queue| scheduler.push(*queue, Pending::of_bytes(4096)));
    scheduler.remove_queue(queues[0]);
    assert_eq!(scheduler.disks[disk.0].waiting, 1);
    scheduler.advance(SECOND, |_| {});
    assert_eq!((scheduler.disks[disk.0].waiting, scheduler.take_granted(queues[1])), (0, 1));
}

/// Requests in flight count as demand like waiting ones.
#[test]
fn demand_is_what_waits_and_what_is_with_the_device() {
    let mut scheduler = Scheduler::default();
    let disk = scheduler.add_disk(vm(0), Weight::default());
    let queue = scheduler.add_queue(disk, Rank::Usual);
    scheduler.sent(disk, 7, SECOND);
    scheduler.push(queue, Pending::of_bytes(4096));
    scheduler.pushed(disk, SECOND);
    let demand = &scheduler.disks[disk.0].demand;
    assert_eq!((demand.requests(), demand.cost()), (8.0, (REQUEST_BYTES + 4096) as f64));
}

/// A neighbour with one request at a time beside a hog, with various weights and sizes.
#[test]
fn a_neighbour_of_one_request_beside_a_hog_waits_for_the_depth_only() {
    for weights in [(100, 100), (1, 10_000), (10_000, 10_000), (1, 1), (200, 100), (1, 2)] {
        for bytes in [(4096, 4096), (4096, 65_536), (65_536, 4096)] {
            for depth in [40, 64, 128, 1000] {
                let mut bench = Bench::new(&[(weights.0, depth, bytes.0), (weights.1, 1, bytes.1)]);
                bench.run(SECOND);
                bench.drivers[1].longest_ns = 0;
                bench.run(SECOND);
                let longest = bench.drivers[1].longest_ns;
                let bound = 18 * (10_000 + bytes.0) + 10_000 + bytes.1;
                assert!(longest <= bound, "{weights:?} {bytes:?} {depth}: {longest} of {bound} ns");
            }
        }
    }
}

/// The cost of a disk's requests follows its recent ones.
#[test]
fn a_disk_whose_requests_become_large_is_a_hog() {
    let mut bench = Bench::new(&[(100, 32, 4096), (100, 32, 4096)]);
    bench.run(SECOND);
    bench.drivers[0].bytes = 1 << 20;
    bench.run(SECOND / 2);
    bench.most = 0;
    bench.run(SECOND);
    // The demand of the other one, and one large request.
    assert!(bench.most <= 7 * 33 / 8 + 2, "{}", bench.most);
}

/// It may have been a hog: once it is modest, it is protected again.
#[test]
fn a_neighbour_that_was_greedy_is_protected_soon() {
    let mut bench = Bench::new(&[(100, 128, 4096), (100, 128, 4096)]);
    bench.run(SECOND);
    bench.drivers[1].depth = 1;
    bench.run(SECOND / 10);
    bench.drivers[1].longest_ns = 0;
    bench.run(SECOND / 2);
    assert!(bench.drivers[1].longest_ns <= 20 * 14_096, "{}", bench.drivers[1].longest_ns);
}
