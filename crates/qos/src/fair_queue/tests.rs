use super::level::Kinds;
use super::*;

fn weight(weight: u32) -> Weight {
    Weight::new(weight).unwrap()
}

/// Makes disks of these weights with a queue each, all in one VM.
fn disks(weights: &[u32]) -> (FairQueue<u64>, Vec<(DiskKey, QueueKey)>) {
    let mut fair = FairQueue::default();
    let vm = fair.add_vm(7);
    let add = |it: &u32| {
        let disk = fair.add_disk(vm, weight(*it));
        (disk, fair.add_queue(disk, Rank::Usual))
    };
    let keys = weights.iter().map(add).collect();
    (fair, keys)
}

fn pop(fair: &mut FairQueue<u64>) -> Option<(DiskKey, QueueKey, u64)> {
    let disk = fair.next(Kind::Waiting, |_| true)?;
    let times = |fair: &FairQueue<u64>| {
        let vm = &fair.vms[fair.disks[disk.0].vm];
        (fair.top.virtual_time, vm.level.virtual_time)
    };
    let before = times(fair);
    let (queue, cost) = fair.grant(disk, disk, |cost| *cost);
    let after = times(fair);
    assert!(after.0 >= before.0 && after.1 >= before.1, "virtual time went back");
    Some((disk, queue, cost))
}

/// Checks the levels against the state of disks and queues.
fn audit(fair: &FairQueue<u64>) {
    let nowhere = (Share::new(1), Kinds::default());
    let mut top = Level::default();
    top.virtual_time = fair.top.virtual_time;
    for (at, vm) in &fair.vms {
        let mut level = Level::default();
        level.virtual_time = vm.level.virtual_time;
        for (disk, state) in fair.disks.iter().filter(|(_, disk)| disk.vm == at) {
            level.moved(disk, nowhere, state.place());
        }
        assert_eq!(vm.level, level);
        top.moved(at, nowhere, vm.place());
    }
    assert_eq!(fair.top, top);
}

#[test]
fn those_that_wait_are_known_whatever_happens() {
    let (mut fair, mut keys) = disks(&[100, 1, 10_000, 100, 50]);
    let vms = [fair.vm_of(keys[0].0), fair.add_vm(1), fair.add_vm(u32::MAX)];
    let mut random = fastrand::Rng::with_seed(11);
    for _ in 0..20_000 {
        let at = random.usize(..keys.len());
        let (disk, queue) = keys[at];
        match random.u8(..12) {
            10 => fair.move_disk(disk, vms[random.usize(..3)]),
            11 => fair.set_vm_weight(vms[random.usize(..3)], random.u32(1..)),
            0..4 => fair.push(queue, random.u64(1..100)),
            4..7 => drop(pop(&mut fair)),
            7 => fair.refund(disk, random.u64(..50)),
            8 => fair.set_apart(disk, random.bool()),
            _ if random.u8(..10) > 0 => fair.set_weight(disk, weight(random.u32(1..10_000))),
            _ => {
                fair.remove_queue(queue);
                fair.remove_disk(disk);
                let disk = fair.add_disk(vms[random.usize(..3)], weight(100));
                let rank = if random.bool() { Rank::First } else { Rank::Usual };
                keys[at] = (disk, fair.add_queue(disk, rank));
            }
        }
        audit(&fair);
    }
    let (disk, queue) = keys[0];
    fair.set_owes(disk, true);
    fair.take_all(queue);
    audit(&fair);
    fair.pay(disk, 10);
    fair.set_owes(disk, false);
    audit(&fair);
}

/// Regression: each grant visited all disks, and all of them for each of them.
#[test]
fn the_disk_whose_turn_it_is_is_found_without_a_look_at_the_others() {
    let (mut fair, keys) = disks(&[100; 1000]);
    keys.iter().for_each(|(_, queue)| fair.push(*queue, 10));
    let looks = std::cell::Cell::new(0);
    let may_go = |_| looks.replace(looks.get() + 1) < usize::MAX;
    assert_eq!(fair.next(Kind::Waiting, may_go), Some(keys[0].0));
    assert_eq!(looks.get(), 1);
}

#[test]
fn disks_that_always_wait_get_costs_by_their_weights() {
    let weights = [100, 100, 300, 50];
    let (mut fair, keys) = disks(&weights);
    let mut random = fastrand::Rng::with_seed(7);
    let mut got = [0; 4];
    for (_, queue) in &keys {
        fair.push(*queue, random.u64(1..100));
    }
    for _ in 0..100_000 {
        let (disk, queue, cost) = pop(&mut fair).unwrap();
        got[disk.0] += cost;
        fair.push(queue, random.u64(1..100));
    }
    let per_weight = [0, 1, 2, 3].map(|at: usize| got[at] as f64 / f64::from(weights[at]));
    let mean = per_weight.iter().sum::<f64>() / 4.0;
    for (at, share) in per_weight.iter().enumerate() {
        assert!((share / mean - 1.0).abs() < 0.001, "disk {at}: {per_weight:?}");
    }
}

/// However much another one has waiting, and however much that costs.
#[test]
fn a_disk_that_asks_now_and_then_waits_for_one_request_at_most() {
    let (mut fair, keys) = disks(&[100, 100]);
    let ((_, hog), (modest, queue)) = (keys[0], keys[1]);
    (0..1000).for_each(|_| fair.push(hog, 1 << 20));
    for round in 0..400 {
        pop(&mut fair).unwrap();
        fair.push(queue, 1);
        let turn = (0..3).position(|_| pop(&mut fair).unwrap().0 == modest);
        assert!(turn.is_some_and(|turn| turn <= 1), "round {round}: {turn:?}");
    }
}

#[test]
fn a_disk_that_was_idle_gets_nothing_for_that_time() {
    let (mut fair, keys) = disks(&[100, 100]);
    (0..1000).for_each(|_| fair.push(keys[0].1, 10));
    (0..500).for_each(|_| assert!(pop(&mut fair).is_some()));
    (0..500).for_each(|_| fair.push(keys[1].1, 10));
    let late = (0..100).filter(|_| pop(&mut fair).unwrap().0 == keys[1].0).count();
    assert!((49..=51).contains(&late), "{late} of 100");
}

#[test]
fn queues_of_a_disk_take_turns_and_keep_their_order() {
    let mut fair = FairQueue::default();
    let vm = fair.add_vm(1);
    let disk = fair.add_disk(vm, Weight::default());
    let queues = [0, 1, 2].map(|_| fair.add_queue(disk, Rank::Usual));
    // The first one is deep, the others are not.
    for (at, queue) in [(0, 5), (1, 1), (2, 2)] {
        (0..queue).for_each(|nth| fair.push(queues[at], at as u64 * 10 + nth));
    }
    let order: Vec<u64> = std::iter::from_fn(|| pop(&mut fair).map(|it| it.2)).collect();
    assert_eq!(order, [0, 10, 20, 1, 21, 2, 3, 4]);
    assert_eq!(queues.map(|queue| fair.take_granted(queue)), [5, 1, 2]);
    assert_eq!(queues.map(|queue| fair.take_granted(queue)), [0; 3]);
}

/// With disks that come and go, that are blocked at times, and whose weights change.
#[test]
fn virtual_time_never_goes_back_and_nothing_waits_for_ever() {
    let mut random = fastrand::Rng::with_seed(3);
    let (mut fair, keys) = disks(&[1, 100, 10_000, 7]);
    let mut waiting = [0u64; 4];
    let mut passed_by = [0; 4];
    for _ in 0..100_000 {
        let at = random.usize(0..4);
        if random.u8(0..3) > 0 && waiting[at] < 8 {
            fair.push(keys[at].1, random.u64(1..1 << 20));
            waiting[at] += 1;
        }
        if random.u8(0..200) == 0 {
            fair.set_weight(keys[at].0, weight(random.u32(1..=Weight::MAX)));
        }
        let blocked = random.usize(0..8);
        let Some(disk) = fair.next(Kind::Waiting, |disk| disk.0 != blocked) else {
            continue;
        };
        let vm = fair.vm_of(disk).place();
        let before = fair.vms[vm].level.virtual_time;
        fair.grant(disk, disk, |cost| *cost);
        assert!(fair.vms[vm].level.virtual_time >= before);
        waiting[disk.0] -= 1;
        for (other, passed) in passed_by.iter_mut().enumerate() {
            *passed = if other == disk.0 || waiting[other] == 0 { 0 } else { *passed + 1 };
            assert!(*passed < 50_000, "disk {other} starves");
        }
    }
    for (_, queue) in keys {
        assert_eq!(fair.take_all(queue).len() as u64, waiting[fair.disk_of(queue).0]);
        fair.remove_queue(queue);
    }
    assert!(fair.next(Kind::Waiting, |_| true).is_none());
}

/// Makes disks with a queue each, as pairs of a VM and a weight, in VMs of these weights.
fn in_vms(vms: &[u32], disks: &[(usize, u32)]) -> (FairQueue<u64>, Vec<(DiskKey, QueueKey)>) {
    let mut fair = FairQueue::default();
    let vms: Vec<VmKey> = vms.iter().map(|weight| fair.add_vm(*weight)).collect();
    let add = |(vm, own): &(usize, u32)| {
        let disk = fair.add_disk(vms[*vm], weight(*own));
        (disk, fair.add_queue(disk, Rank::Usual))
    };
    let keys = disks.iter().map(add).collect();
    (fair, keys)
}

/// Returns each disk's part of 100,000 grants while all of them wait.
fn parts(fair: &mut FairQueue<u64>, keys: &[(DiskKey, QueueKey)]) -> Vec<f64> {
    keys.iter().for_each(|(_, queue)| fair.push(*queue, 10));
    let mut got = vec![0.0; keys.len()];
    for _ in 0..100_000 {
        let (disk, queue, _) = pop(fair).unwrap();
        got[disk.0] += 1e-5;
        fair.push(queue, 10);
    }
    got
}

/// Regression: a VM with four disks got four times as much as one of the same weight with one disk.
#[test]
fn vms_share_by_weight_however_many_disks_they_have() {
    let disks = [(0, 100), (1, 100), (1, 100), (1, 300), (1, 500)];
    for weights in [[4, 1], [400, 100], [u32::MAX / 100 * 4, u32::MAX / 100]] {
        let (mut fair, keys) = in_vms(&weights, &disks);
        let got = parts(&mut fair, &keys);
        for (got, expected) in got.iter().zip([0.8, 0.02, 0.02, 0.06, 0.1]) {
            assert!((got / expected - 1.0).abs() < 0.01, "{got:?}");
        }
    }
}

/// The unused part of a disk goes to the others of its VM, not to all.
#[test]
fn a_vm_has_what_its_disks_leave() {
    let (mut fair, keys) = in_vms(&[1, 1], &[(0, 100), (1, 100), (1, 9900)]);
    let busy = [keys[0], keys[1]];
    let got = parts(&mut fair, &busy);
    assert!((got[0] - 0.5).abs() < 0.001 && (got[1] - 0.5).abs() < 0.001, "{got:?}");
}

#[test]
fn a_disk_that_is_found_to_be_of_another_vm_has_its_part_there() {
    let (mut fair, keys) = in_vms(&[1, 1, 1], &[(0, 100), (1, 100), (2, 100)]);
    let third = |got: &[f64]| got.iter().all(|it| (it - 1.0 / 3.0).abs() < 0.001);
    assert!(third(&parts(&mut fair, &keys)));
    keys.iter().for_each(|(_, queue)| drop(fair.take_all(*queue)));
    let vm = fair.vm_of(keys[1].0);
    fair.move_disk(keys[2].0, vm);
    let got = parts(&mut fair, &keys);
    assert!((got[0] - 0.5).abs() < 0.001 && (got[2] - 0.25).abs() < 0.001, "{got:?}");
}

/// They are charged: their disk, and its VM, get no more than without them.
#[test]
fn what_goes_first_goes_before_the_rest_of_its_disk() {
    let mut fair = FairQueue::default();
    let vm = fair.add_vm(1);
    let disk = fair.add_disk(vm, Weight::default());
    let queues = [Rank::Usual, Rank::First].map(|rank| fair.add_queue(disk, rank));
    (0..3).for_each(|nth| fair.push(queues[0], nth));
    (10..12).for_each(|nth| fair.push(queues[1], nth));
    assert_eq!(fair.next(Kind::First, |_| true), Some(disk));
    let order: Vec<u64> = std::iter::from_fn(|| pop(&mut fair).map(|it| it.2)).collect();
    assert_eq!(order, [10, 11, 0, 1, 2]);
    assert_eq!(fair.next(Kind::First, |_| true), None);
}
