//! VMs at a device: their weights, and requests of rank `First`.

use super::*;

impl Bench {
    /// Makes disks in VMs: number and weight of the VM, then depth and bytes.
    pub(super) fn in_vms(drivers: &[(DeviceVm, usize, u64)]) -> Self {
        let make = |(_, depth, bytes): &(DeviceVm, usize, u64)| (100, *depth, *bytes);
        let mut bench = Self::new(&drivers.iter().map(make).collect::<Vec<_>>());
        for (driver, (vm, ..)) in bench.drivers.iter().zip(drivers) {
            bench.scheduler.set_vm(driver.disk, *vm);
        }
        bench
    }

    fn done_of(&self, drivers: std::ops::Range<usize>) -> f64 {
        self.drivers[drivers].iter().map(|driver| driver.done as f64).sum()
    }
}

fn heavy(id: u32) -> DeviceVm {
    DeviceVm { id, weight: 400 }
}

/// Regression: the one with four disks had four times its part.
#[test]
fn vms_have_their_weights_parts_however_many_disks_they_have() {
    let mut bench = Bench::in_vms(&[(heavy(7), 32, 4096), (vm(8), 32, 4096)]);
    bench.run(5 * SECOND);
    let ratio = bench.done_of(0..1) / bench.done_of(1..2);
    assert!((ratio / 4.0 - 1.0).abs() < 0.03, "{ratio}");

    let mut drivers = vec![(heavy(7), 32, 4096)];
    drivers.extend([(vm(8), 32, 4096); 4]);
    let mut bench = Bench::in_vms(&drivers);
    bench.run(5 * SECOND);
    let ratio = bench.done_of(0..1) / bench.done_of(1..5);
    assert!((ratio / 4.0 - 1.0).abs() < 0.03, "{ratio}");
    let done: Vec<u64> = bench.drivers[1..].iter().map(|it| it.done).collect();
    let (least, most) = (done.iter().min().unwrap(), done.iter().max().unwrap());
    assert!(most - least <= most / 20, "{done:?}");
}

/// Regression: completions of a VM come together, and its guest sees them a little later: the light
/// VM took the freed slots, and 4 : 1 was 1.6 : 1.
#[test]
fn vms_have_their_parts_though_completions_come_in_batches() {
    let mut bench = Bench::in_vms(&[(heavy(7), 32, 4096), (vm(8), 32, 4096)]);
    bench.send();
    let mut done = [0.0; 2];
    for round in 0..400 {
        let at = round % 2;
        bench.now += 300_000;
        let (disk, count) = (bench.drivers[at].disk, bench.drivers[at].on_their_way);
        bench.scheduler.came_back(disk, count, bench.now);
        bench.drivers[at].on_their_way = 0;
        done[at] += count as f64;
        // Before its guest has seen it.
        let depths = [0, 1].map(|driver: usize| bench.drivers[driver].depth);
        bench.drivers[at].depth = 0;
        bench.send();
        bench.drivers[at].depth = depths[at];
        bench.send();
        bench.on_their_way.clear();
    }
    assert!((done[0] / done[1] / 4.0 - 1.0).abs() < 0.1, "{done:?}");
}

/// The light one's completions come one by one, so it always has all of its slots; with four disks,
/// each of them is often without I/O in flight, and needs no slot then.
#[test]
fn a_vm_does_not_get_ahead_while_another_ones_batch_is_on_its_way_back() {
    for disks in [1, 4] {
        let mut drivers = vec![(heavy(7), 32, 4096)];
        drivers.extend(vec![(vm(8), 32, 4096); disks]);
        let mut bench = Bench::in_vms(&drivers);
        bench.send();
        let mut done = [0.0; 2];
        for round in 0..8000 {
            bench.now += 20_000;
            let at = if round % 20 == 0 { 0 } else { 1 + round % disks };
            let there = bench.drivers[at].on_their_way;
            let count = if at == 0 { there } else { there.min(1) };
            bench.scheduler.came_back(bench.drivers[at].disk, count, bench.now);
            bench.drivers[at].on_their_way -= count;
            done[at.min(1)] += count as f64;
            bench.send();
            bench.on_their_way.clear();
        }
        assert!((done[0] / done[1] / 4.0 - 1.0).abs() < 0.1, "{disks}: {done:?}");
    }
}

/// The light VM soon gets the slots of a heavy VM that stops.
#[test]
fn a_light_vm_has_all_of_the_depth_when_the_heavy_one_asks_for_nothing() {
    let mut bench = Bench::in_vms(&[(heavy(7), 32, 4096), (vm(8), 32, 4096)]);
    bench.run(SECOND);
    bench.drivers[0].depth = 0;
    bench.run(2 * EXPECTED_NS);
    bench.most = 0;
    bench.run(5 * MS);
    assert!(bench.most >= 30, "{}", bench.most);
}

/// Regression: it queued behind sixteen of the light one.
#[test]
fn a_request_of_a_heavy_vm_stands_behind_its_weights_part_of_the_depth() {
    let mut bench = Bench::in_vms(&[(heavy(1), 1, 4096), (vm(2), 128, 4096)]);
    bench.run(SECOND);
    bench.drivers[0].longest_ns = 0;
    bench.run(SECOND);
    let longest = bench.drivers[0].longest_ns;
    assert!(longest <= 6 * 14_096, "{longest}");
    // The device is never idle.
    let done = bench.done_of(0..2);
    assert!(done * 14_096.0 >= 1.99 * SECOND as f64, "{done}");
}

/// Disks leave a VM and join others; a removed VM holds nothing.
#[test]
fn vms_are_kept_while_they_have_disks() {
    let mut scheduler = Scheduler::default();
    let disks = [1, 2, 3].map(|id| scheduler.add_disk(vm(id), Weight::default()));
    for disk in disks {
        scheduler.set_vm(disk, heavy(2));
    }
    assert_eq!(scheduler.vms.keys().collect::<Vec<_>>(), [&2]);
    assert_eq!(scheduler.fair.vm_weight(scheduler.fair.vm_of(disks[0])), 400);
    scheduler.set_vm(disks[2], vm(3));
    scheduler.remove_disk(disks[0]);
    scheduler.remove_disk(disks[1]);
    assert_eq!(scheduler.vms.keys().collect::<Vec<_>>(), [&3]);
}

/// Disks come, go and change their VMs with requests in flight.
#[test]
fn requests_in_flight_are_counted_with_the_vm_of_their_disk() {
    let mut scheduler = Scheduler::default();
    let mut random = fastrand::Rng::with_seed(5);
    let mut disks: Vec<(DiskKey, usize)> = Vec::new();
    for _ in 0..20_000 {
        let id = random.u32(..5);
        if disks.is_empty() || random.u8(..8) == 0 {
            disks.push((scheduler.add_disk(vm(id), Weight::default()), 0));
        }
        let at = random.usize(..disks.len());
        let (disk, on_their_way) = &mut disks[at];
        let requests = random.usize(..4);
        match random.u8(..8) {
            0 => scheduler.set_vm(*disk, vm(id)),
            1..4 => {
                scheduler.sent(*disk, requests, SECOND);
                *on_their_way += requests;
            }
            4..7 => {
                let requests = requests.min(*on_their_way);
                scheduler.came_back(*disk, requests, SECOND);
                *on_their_way -= requests;
            }
            _ => scheduler.remove_disk(disks.swap_remove(at).0),
        }
        let mut slots = vec![0_usize; scheduler.vm_slots.len()];
        for (disk, on_their_way) in &disks {
            slots[scheduler.fair.vm_of(*disk).place()] += on_their_way;
        }
        assert_eq!(scheduler.vm_slots, slots);
        assert_eq!(scheduler.slots, slots.iter().sum::<usize>());
    }
}

/// Makes a disk with one queue of each rank.
fn two_ranks(scheduler: &mut Scheduler, of: DeviceVm) -> (DiskKey, QueueKey, QueueKey) {
    let disk = scheduler.add_disk(of, Weight::default());
    let queue = |scheduler: &mut Scheduler, rank| scheduler.add_queue(disk, rank);
    (disk, queue(scheduler, Rank::First), queue(scheduler, Rank::Usual))
}

/// A device that completes requests one by one.
#[derive(Default)]
struct Device {
    /// The queues granted, in order.
    order: Vec<QueueKey>,
    back: usize,
}

impl Device {
    /// Returns the grants made during `rounds` more completions.
    fn go(&mut self, scheduler: &mut Scheduler, rounds: usize) -> Vec<QueueKey> {
        let before = self.order.len();
        for _ in 0..rounds {
            if let Some(queue) = self.order.get(self.back) {
                scheduler.came_back(scheduler.fair.disk_of(*queue), 1, SECOND);
                self.back += 1;
            }
            scheduler.advance(SECOND, |queue| self.order.push(queue));
        }
        self.order[before..].to_vec()
    }
}

/// Of another disk of its VM, and of another VM whose turn it is.
#[test]
fn a_commit_goes_ahead_of_its_turn() {
    for ids in [[1, 1], [1, 2]] {
        let mut scheduler = Scheduler::default();
        let (bulk, _, rest) = two_ranks(&mut scheduler, vm(ids[0]));
        let (other, commits, own_rest) = two_ranks(&mut scheduler, vm(ids[1]));
        scheduler.touch(bulk, SECOND);
        scheduler.touch(other, SECOND);
        (0..40).for_each(|_| scheduler.push(rest, Pending::of_bytes(4096)));
        (0..40).for_each(|_| scheduler.push(own_rest, Pending::of_bytes(4096)));
        let mut device = Device::default();
        assert!(device.go(&mut scheduler, 1).len() >= DEPTH_LEAST);
        (0..2).for_each(|_| scheduler.push(commits, Pending::of_bytes(4096)));
        let next = device.go(&mut scheduler, 6);
        assert_eq!(next[..2], [commits, commits], "{next:?}");
        assert!(next[2..].contains(&rest) && next[2..].contains(&own_rest), "{next:?}");
    }
}

/// Commits are charged: they gain no more than a lead.
#[test]
fn a_guest_that_calls_everything_a_commit_gets_its_weight_and_no_more() {
    for ids in [[1, 1], [1, 2]] {
        let mut scheduler = Scheduler::default();
        let (honest, _, rest) = two_ranks(&mut scheduler, vm(ids[0]));
        let (greedy, commits, _) = two_ranks(&mut scheduler, vm(ids[1]));
        scheduler.touch(honest, SECOND);
        scheduler.touch(greedy, SECOND);
        for _ in 0..3000 {
            scheduler.push(rest, Pending::of_bytes(4096));
            scheduler.push(commits, Pending::of_bytes(4096));
        }
        let order = Device::default().go(&mut scheduler, 2000);
        let got = order.iter().filter(|queue| **queue == commits).count();
        let lead = (LEAD / REQUEST_BYTES) as usize;
        assert!((order.len() / 2..=order.len() / 2 + lead).contains(&got), "{got}");
    }
}

/// A VM with few requests often has none that waits, since all are in flight. It must not lose then
/// what the commits of others have gone ahead.
#[test]
fn guests_that_call_everything_a_commit_get_their_weight_beside_few_requests() {
    const ROUNDS: usize = 4000;
    for (guests, depth) in [(1, 8), (2, 4), (3, 4)] {
        // Returns how many requests of the modest VM have been completed.
        let [beside_commits, beside_usual] = [true, false].map(|are_commits| {
            let mut scheduler = Scheduler::default();
            let (modest, _, rest) = two_ranks(&mut scheduler, vm(0));
            scheduler.touch(modest, SECOND);
            (0..depth).for_each(|_| scheduler.push(rest, Pending::of_bytes(4096)));
            for number in 1..=guests {
                let (greedy, commits, usual) = two_ranks(&mut scheduler, vm(number));
                scheduler.touch(greedy, SECOND);
                let all = if are_commits { commits } else { usual };
                (0..32).for_each(|_| scheduler.push(all, Pending::of_bytes(4096)));
            }
            let mut device = Device::default();
            device.go(&mut scheduler, 1);
            let mut got = 0;
            for _ in 0..ROUNDS {
                let done = device.order[device.back];
                device.go(&mut scheduler, 1);
                // Its guest has seen the completion.
                scheduler.push(done, Pending::of_bytes(4096));
                got += usize::from(done == rest);
            }
            got
        });
        let gets_its_part = beside_commits * 5 >= beside_usual * 4;
        assert!(gets_its_part, "{guests} guests: {beside_commits}, {beside_usual} otherwise");
    }
}
