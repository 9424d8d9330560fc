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
            assert!(utilization > 0.9, "{speed}: {burst} in {ms} ms: {utilization}");
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
