use std::time::{Duration, Instant};

use flowstone_block::{Extent, Sector, SectorCount};

use super::*;
use crate::{Group, Limit, Weight};

/// A limited disk whose ring is a count.
struct Fixture {
    disk: Arc<DiskLimits>,
    reactor: Reactor,
    zeroes_are_written: bool,
}

impl Fixture {
    fn new(limit: &str) -> Self {
        let limit = limit.parse().unwrap();
        let disk = DiskLimits::new(Group::unnamed(), limit, Weight::default());
        Self { disk, reactor: Reactor::new().unwrap(), zeroes_are_written: false }
    }

    fn queue(&self) -> Admission {
        intake(&self.disk, self.zeroes_are_written, &self.reactor)
    }
}

fn intake(disk: &Arc<DiskLimits>, zeroes_are_written: bool, reactor: &Reactor) -> Admission {
    let geometry = Geometry::with_capacity(SectorCount::new(8));
    Arc::clone(disk).intake(&Geometry { zeroes_are_written, ..geometry }, reactor)
}

fn write() -> Op {
    Op::Write(Extent::new(Sector::new(0), SectorCount::new(8)).unwrap())
}

/// Takes a batch from a ring with `available` chains. Returns how many it has taken.
fn batch(queue: &mut Admission, available: usize, op: Op) -> usize {
    if !queue.open(available) {
        return 0;
    }
    let taken = (0..available).take_while(|_| queue.goes_on()).inspect(|_| queue.spend(op)).count();
    queue.close();
    taken
}

#[test]
fn without_a_limit_all_is_taken_and_nothing_is_counted() {
    let fixture = Fixture::new("off");
    let mut queue = fixture.queue();
    assert_eq!(batch(&mut queue, 50, write()), 50);
    assert_eq!(fixture.disk.throttled().0, 0);
    fixture.disk.set_limit("bw=1".parse().unwrap());
    assert_eq!(batch(&mut queue, 3, write()), 1);
    assert_eq!(batch(&mut queue, 2, write()), 0);
    assert!(queue.is_closed() && matches!(queue.next_look(), NextLook::At(_)));
    fixture.disk.set_limit(Limit::NONE);
    assert!(!queue.is_closed() && matches!(queue.next_look(), NextLook::Now));
    assert_eq!(batch(&mut queue, 2, write()), 2);
    assert_eq!(fixture.disk.throttled().0, 2);
}

/// Waiting chains are in the ring, so a stop has nothing to release: it only ends the queue. At a
/// limit of one byte a second a disk that has taken a block gets nothing for an hour, however often
/// its queues start again.
#[test]
fn a_guest_that_toggles_its_cache_mode_pays_what_it_owes() {
    let fixture = Fixture::new("bw=1");
    assert_eq!(batch(&mut fixture.queue(), 128, write()), 1);
    let again = (0..1000).map(|_| batch(&mut fixture.queue(), 128, write()));
    assert_eq!(again.sum::<usize>(), 0);
}

#[test]
fn a_flush_costs_nothing_and_an_answer_costs_a_request() {
    let fixture = Fixture::new("iops=1");
    let mut queue = fixture.queue();
    assert_eq!(batch(&mut queue, 1, Op::Flush), 1);
    assert_eq!(batch(&mut queue, 1, Op::Flush), 1);
    assert!(queue.open(1) && queue.goes_on());
    queue.spend_answered(1);
    queue.close();
    assert_eq!(batch(&mut queue, 1, Op::Flush), 0, "it comes after what has been taken");
}

/// Regression: a host without a call for zeroes wrote 842 MiB/s under `bw=1M`.
#[test]
fn zeroes_that_have_to_be_written_cost_their_bytes() {
    let mut fixture = Fixture::new("bw=1");
    let extent = Extent::new(Sector::new(0), SectorCount::new(8192)).unwrap();
    let zero = Op::WriteZeroes { extent, unmap: false };
    let mut queue = fixture.queue();
    assert_eq!([0; 2].map(|_| batch(&mut queue, 1, zero)), [1; 2]);
    fixture.zeroes_are_written = true;
    assert_eq!(batch(&mut fixture.queue(), 2, zero), 1);
    assert_eq!(batch(&mut fixture.queue(), 1, zero), 0);
}

/// Chains that an earlier daemon left undone are executed regardless of debts: the in-flight log
/// does not survive a stop.
#[test]
fn what_is_taken_without_a_lease_is_owed() {
    let fixture = Fixture::new("iops=1");
    let mut queue = fixture.queue();
    (0..3600).for_each(|_| queue.spend(write()));
    queue.close();
    assert_eq!(batch(&mut queue, 1, write()), 0);
    let look = queue.next_look();
    assert!(matches!(look, NextLook::At(at) if at > Instant::now() + Duration::from_secs(3000)));
}

/// Otherwise chains that it no longer has would go on to take tokens.
#[test]
fn a_broken_ring_waits_for_nothing() {
    let fixture = Fixture::new("iops=1,burst=3600s");
    let mut queue = fixture.queue();
    assert_eq!(batch(&mut queue, 100, write()), 1);
    assert_eq!(batch(&mut queue, 99, write()), 0);
    queue.forget();
    assert!(!queue.is_closed() && matches!(queue.next_look(), NextLook::OnWake));
    let known = fixture.disk.group.lock().line.next_look(queue.gate.queue, 0);
    assert_eq!(known, None);
}

/// Regression: a guest that rewrites its superblock repeatedly caused reads of 64 MiB/s beside
/// `bw=1M`.
#[test]
fn what_the_daemon_reads_because_of_a_guest_is_paced_and_paid_by_it() {
    let fixture = Fixture::new("bw=1M");
    let mib = |charged| fixture.disk.own_read(1 << 20, charged);
    assert_eq!([false; 100].map(mib), [Duration::from_secs(1); 100]);
    let mut queue = fixture.queue();
    assert_eq!(batch(&mut queue, 1, write()), 1, "the first reading is the daemon's own wish");
    assert_eq!([true; 3600].map(mib), [Duration::from_secs(1); 3600]);
    assert_eq!(batch(&mut queue, 1, write()), 0);
    let look = queue.next_look();
    assert!(matches!(look, NextLook::At(at) if at > Instant::now() + Duration::from_secs(3000)));
    fixture.disk.set_limit(Limit::NONE);
    assert_eq!(mib(true), Duration::ZERO);
}

#[test]
fn another_limit_wakes_a_thread_that_sleeps() {
    let fixture = Fixture::new("bw=1");
    let mut queue = fixture.queue();
    assert_eq!(batch(&mut queue, 64, write()), 1);
    assert_eq!(batch(&mut queue, 63, write()), 0);
    let disk = Arc::clone(&fixture.disk);
    let operator = std::thread::spawn(move || disk.set_limit(Limit::NONE));
    // Ends by the change, or after 4,096 seconds.
    while batch(&mut queue, 63, write()) == 0 {
        fixture.reactor.sleep(|| queue.next_look());
    }
    operator.join().unwrap();
}

#[test]
fn a_disk_that_goes_leaves_its_group_to_the_others() {
    let group = Group::new("tenants".into(), "iops=1".parse().unwrap());
    let reactor = Reactor::new().unwrap();
    for _ in 0..3 {
        let disk = |_| DiskLimits::new(Arc::clone(&group), Limit::NONE, Weight::default());
        let [first, second] = [0, 1].map(disk);
        let mut queues = [&first, &second].map(|disk| intake(disk, false, &reactor));
        assert_eq!(first.group(), Some("tenants"));
        queues.iter_mut().for_each(|queue| _ = batch(queue, 4, write()));
        drop((first, queues));
        let mut queue = intake(&second, false, &reactor);
        group.set_limit(Limit::NONE);
        assert_eq!(batch(&mut queue, 4, write()), 4);
        group.set_limit("iops=1".parse().unwrap());
    }
}
