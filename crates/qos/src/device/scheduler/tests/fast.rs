//! Devices that complete many requests between two censuses, and VMs that pause.

use super::*;

/// Bytes of all requests here.
const BYTES: u64 = 4096;

impl Bench {
    /// Two VMs of equal weight; depths of their disks.
    fn two_vms(depths: [usize; 2], speed: u64) -> Self {
        let [one, other] = depths;
        let mut bench = Self::in_vms(&[(vm(1), one, BYTES), (vm(2), other, BYTES)]);
        bench.speed = speed;
        bench
    }

    /// Returns the part of `time` for which the device has worked.
    fn utilization(&self, time: u64) -> f64 {
        let done: u64 = self.drivers.iter().map(|driver| driver.done).sum();
        (done * (10_000 + BYTES) / self.speed) as f64 / time as f64
    }
}

/// Regression: the parts of VMs were settled at a census only, so each sent 256 KiB in 200 us and
/// then waited for up to 4 ms: 62,000 requests a second of a device that takes a million.
#[test]
fn vms_keep_a_fast_device_busy() {
    for speed in [2, 14] {
        let mut bench = Bench::two_vms([32, 32], speed);
        bench.run(SECOND / 5);
        let [one, other] = [0, 1].map(|at: usize| bench.drivers[at].done as f64);
        assert!((one / other - 1.0).abs() < 0.01, "{speed}: {one} {other}");
        let utilization = bench.utilization(SECOND / 5);
        assert!(utilization > 0.99, "{speed}: {utilization}");
        assert_eq!(bench.idles, 1, "{speed}: its queue is never empty");
    }
}

/// Regression: the device was kept for the VM that had sent the burst: .07 to .8 of it was used.
#[test]
fn a_vm_that_sends_bursts_does_not_keep_the_device_idle_in_between() {
    for speed in [1, 4, 14] {
        for (burst, ms) in [(16, 3), (32, 3), (64, 3), (32, 10)] {
            let mut bench = Bench::two_vms([128, 0], speed);
            let bursts = 60 / ms;
            for _ in 0..bursts {
                bench.drivers[1].depth = burst;
                bench.send();
                bench.drivers[1].depth = 0;
                bench.run(ms * MS);
            }
            let utilization = bench.utilization(bursts * ms * MS);
            // A ninth of the time, and 4 ms at the start.
            assert!(utilization > 0.83, "{speed}: {burst} in {ms} ms: {utilization}");
        }
    }
}

/// A heavy VM that sends its next requests a moment after it has got all results has its part, and
/// the device is idle for no longer than that.
#[test]
fn a_vm_that_pauses_shortly_keeps_its_part() {
    let mut bench =
        Bench::in_vms(&[(DeviceVm { id: 7, weight: 400 }, 32, BYTES), (vm(8), 32, BYTES)]);
    let mut done = [0.0; 2];
    for _ in 0..400 {
        bench.send();
        // All complete, the heavy one's requests last.
        for (step, at) in [(200_000, 1), (200_000, 0)] {
            bench.now += step;
            let count = std::mem::take(&mut bench.drivers[at].on_their_way);
            bench.scheduler.came_back(bench.drivers[at].disk, count, bench.now);
            done[at] += count as f64;
            bench.on_their_way.clear();
        }
        // The guest of the light one is there first.
        bench.drivers[0].depth = 0;
        bench.send();
        bench.drivers[0].depth = 32;
        bench.now += 50_000;
    }
    assert!((done[0] / done[1] / 4.0 - 1.0).abs() < 0.1, "{done:?}");
}

/// From the time when they have stalled. Their own requests ask for no look before that of a
/// completion.
#[test]
fn vms_that_hang_do_not_keep_a_device() {
    let mut scheduler = Scheduler::default();
    let [live, hung, other] = [1, 2, 3].map(|id| {
        let disk = scheduler.add_disk(vm(id), Weight::default());
        (disk, scheduler.add_queue(disk, Rank::Usual))
    });
    let mut now = SECOND;
    for (disk, queue) in [live, hung, other] {
        scheduler.touch(disk, now);
        (0..20).for_each(|_| scheduler.push(queue, Pending::of_bytes(BYTES)));
        scheduler.pushed(disk, now);
    }
    let (mut done, mut looks) = (0, 0);
    while now < SECOND + 2 * STALLED_NS {
        scheduler.advance(now, |_| {});
        for (_, queue) in [hung, other] {
            scheduler.take_granted(queue);
        }
        let has_stalled = now > SECOND + STALLED_NS + CENSUS_NS;
        let count = scheduler.take_granted(live.1);
        if count == 0 {
            let look = scheduler.next_look(live.1, now).unwrap();
            assert!(look > now, "it is granted nothing, and is to look at once");
            looks += usize::from(has_stalled);
            now = look;
            continue;
        }
        now += 10_000;
        scheduler.came_back(live.0, count, now);
        (0..count).for_each(|_| scheduler.push(live.1, Pending::of_bytes(BYTES)));
        scheduler.pushed(live.0, now);
        done += if has_stalled { count } else { 0 };
    }
    assert!(looks == 0 && done > 10_000, "{looks} {done}");
    scheduler.remove_queue(live.1);
    scheduler.advance(now, |_| {});
    for (_, queue) in [hung, other] {
        assert!(scheduler.next_look(queue, now).is_none_or(|look| look > now));
    }
}

/// The queue that makes the device idle is to look when that ends: those that wait have looked when
/// it was not.
#[test]
fn the_last_queue_with_requests_in_flight_looks_for_those_that_wait() {
    let mut scheduler = Scheduler::default();
    let [light, heavy] = [vm(1), DeviceVm { id: 2, weight: 400 }].map(|vm| {
        let disk = scheduler.add_disk(vm, Weight::default());
        (disk, scheduler.add_queue(disk, Rank::Usual))
    });
    for (disk, queue) in [light, heavy] {
        scheduler.touch(disk, SECOND);
        (0..32).for_each(|_| scheduler.push(queue, Pending::of_bytes(BYTES)));
        scheduler.pushed(disk, SECOND);
    }
    let mut now = SECOND + CENSUS_NS;
    scheduler.advance(now, |_| {});
    let mut sent = 0;
    // The light one goes on until it is too far ahead.
    loop {
        let count = scheduler.take_granted(light.1);
        sent += scheduler.take_granted(heavy.1);
        if count == 0 {
            break;
        }
        now += 1000;
        scheduler.came_back(light.0, count, now);
        (0..count).for_each(|_| scheduler.push(light.1, Pending::of_bytes(BYTES)));
        scheduler.pushed(light.0, now);
        scheduler.advance(now, |_| {});
    }
    scheduler.came_back(heavy.0, sent, now + 1000);
    while scheduler.fair.first(heavy.1).is_some() {
        scheduler.advance(now + 1000, |_| {});
        let count = scheduler.take_granted(heavy.1);
        scheduler.came_back(heavy.0, count, now + 1000);
    }
    scheduler.advance(now + 1000, |_| {});
    assert_eq!(scheduler.take_granted(light.1), 0, "the heavy one is expected");
    let look = scheduler.next_look(heavy.1, now + 1000).expect("a look");
    assert!(look > now + 1000 && look <= now + 1000 + EXPECTED_NS, "{look}");
    scheduler.advance(look, |_| {});
    assert!(scheduler.take_granted(light.1) > 0);
    assert_eq!(scheduler.next_look(heavy.1, look), None, "the device works");
}

/// Many VMs, and requests that cost more than a quarter of the lead: settling is not due for each.
#[test]
fn many_vms_keep_a_fast_device_busy_with_large_requests() {
    let drivers: Vec<_> = (1..=40).map(|id| (vm(id), 8, 64 << 10)).collect();
    let mut bench = Bench::in_vms(&drivers);
    bench.speed = 50;
    bench.run(SECOND / 5);
    assert_eq!(bench.idles, 1, "its queue is never empty");
    let done: Vec<u64> = bench.drivers.iter().map(|driver| driver.done).collect();
    let (least, most) = (done.iter().min().unwrap(), done.iter().max().unwrap());
    assert!(most - least <= 8, "{done:?}");
}
