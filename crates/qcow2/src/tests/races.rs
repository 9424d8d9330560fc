//! Tests of requests in flight while their clusters are reused; and of several queues.

use std::time::Duration;

use fastrand::Rng;
use flowstone_block::Op;
use flowstone_sim::Schedule;

use super::basic::any_change;
use super::fixture::{Guest, assert_clean, contents, extent, new_disk, open};

const CLUSTER: u64 = 8;

/// Long enough for all pending maintenance work.
fn let_maintenance_work() {
    std::thread::sleep(Duration::from_millis(60));
}

/// The first queue has `op` in flight to the only cluster in use; meanwhile the second discards the
/// cluster, and writes others.
fn overtaken(op: Op) -> (Vec<u8>, Vec<u8>) {
    let disk = new_disk(8 * CLUSTER, CLUSTER * 512);
    let image = open(&disk);
    let mut other = Guest::new(&image);
    other.run(Op::Write(extent(0, CLUSTER)), 1).unwrap();
    other.run(Op::Flush, 0).unwrap();
    // Completions of a queue are seen when it reaps, not before.
    let mut slow = Guest::new(&image);
    slow.submit(op, 9);
    other.run(Op::Discard(extent(0, CLUSTER)), 0).unwrap();
    for round in 0..3 {
        other.run(Op::Flush, 0).unwrap();
        let_maintenance_work();
        other.run(Op::Write(extent((2 * round + 1) * CLUSTER, 2 * CLUSTER)), 5).unwrap();
    }
    slow.next().outcome.unwrap();
    let found = slow.memory(0).to_vec();
    drop((slow, other));
    let held = contents(&image);
    drop(image);
    assert_clean(&disk);
    (found, held)
}

#[test]
fn a_read_does_not_find_what_its_cluster_is_used_for_next() {
    let (found, _) = overtaken(Op::Read(extent(0, CLUSTER)));
    assert!(found.iter().all(|byte| matches!(byte, 0 | 1)), "found {}", found[0]);
}

#[test]
fn a_write_does_not_land_in_what_its_cluster_is_used_for_next() {
    let (_, held) = overtaken(Op::Write(extent(0, CLUSTER)));
    let start = CLUSTER as usize * 512;
    assert!(held[start..7 * start].iter().all(|byte| *byte == 5));
}

#[test]
fn writes_to_one_new_cluster_share_it() {
    let disk = new_disk(8 * CLUSTER, CLUSTER * 512);
    disk.set_schedule(Schedule::Shuffled { seed: 3 });
    let image = open(&disk);
    let mut guests = [Guest::new(&image), Guest::new(&image)];
    guests[0].run(Op::Write(extent(7 * CLUSTER, 1)), 1).unwrap();
    for sector in 0..CLUSTER {
        guests[sector as usize % 2].submit(Op::Write(extent(sector, 1)), sector as u8 + 1);
    }
    for guest in &mut guests {
        while guest.in_flight > 0 {
            guest.next().outcome.unwrap();
        }
    }
    let held = contents(&image);
    drop((guests, image));
    assert_clean(&disk);
    for sector in 0..CLUSTER as usize {
        assert_eq!(held[sector * 512], sector as u8 + 1);
    }
}

#[test]
fn queues_of_several_threads_do_not_disturb_each_other() {
    const THREADS: u64 = 4;
    const SHARE: u64 = 600;
    for cluster_bytes in [512, 4096, 65_536] {
        let disk = new_disk(THREADS * SHARE, cluster_bytes);
        let image = open(&disk);
        let mut model = vec![0; (THREADS * SHARE * 512) as usize];
        std::thread::scope(|scope| {
            for (index, share) in model.chunks_mut(SHARE as usize * 512).enumerate() {
                let image = &image;
                scope.spawn(move || {
                    let mut random = Rng::with_seed(index as u64);
                    let mut guest = Guest::new(image);
                    for step in 0..400u32 {
                        let stamp = (step % 250) as u8 + 1;
                        let op = any_change(&mut random, share, stamp);
                        guest.run(shifted(op, index as u64 * SHARE), stamp).unwrap();
                        if random.u8(..15) == 0 {
                            guest.run(Op::Flush, 0).unwrap();
                        }
                    }
                });
            }
        });
        assert!(contents(&image) == model, "clusters of {cluster_bytes}");
        drop(image);
        assert_clean(&disk);
        assert!(contents(&open(&disk)) == model, "clusters of {cluster_bytes}, opened again");
    }
}

/// Shifts the operation by `by` sectors.
fn shifted(op: Op, by: u64) -> Op {
    let shift =
        |place: flowstone_block::Extent| extent(place.start().get() + by, place.count().get());
    match op {
        Op::Write(place) => Op::Write(shift(place)),
        Op::Discard(place) => Op::Discard(shift(place)),
        Op::WriteZeroes { extent, unmap } => Op::WriteZeroes { extent: shift(extent), unmap },
        Op::Read(_) | Op::Flush => op,
    }
}

#[test]
fn a_flush_that_another_queue_serves_ends_the_sleep_of_its_thread() {
    use std::time::{Duration, Instant};

    use flowstone_block::{Layer, NextLook, QueueContext, QueueDepth, Request};

    const LONG: Duration = flowstone_testkit::HANG;
    let disk = new_disk(8 * CLUSTER, CLUSTER * 512);
    let image = open(&disk);
    let contexts = [(); 2].map(|()| QueueContext::alone(QueueDepth(8)).unwrap());
    let [mut leader, mut other] = [0, 1].map(|n: usize| image.channel(&contexts[n]).unwrap());
    for channel in [&mut leader, &mut other] {
        channel.submit(Request::new(Op::Flush, 0));
        channel.kick();
    }
    assert_eq!(other.next_look(), NextLook::OnWake);
    let start = Instant::now();
    contexts[1].reactor.sleep(|| {
        let mut done = Vec::new();
        for _ in 0..3 {
            leader.reap(&mut done);
        }
        assert_eq!(done.len(), 1);
        NextLook::At(start + LONG)
    });
    assert!(start.elapsed() < LONG, "nobody woke it");
    assert_eq!(other.next_look(), NextLook::Now);
    let mut done = Vec::new();
    other.reap(&mut done);
    assert_eq!(done[0].outcome, Ok(()));
}

#[test]
fn a_queue_that_goes_away_finishes_the_sync_that_it_leads() {
    let disk = new_disk(8 * CLUSTER, CLUSTER * 512);
    let image = open(&disk);
    let (mut leader, mut other) = (Guest::new(&image), Guest::new(&image));
    let tag = leader.submit(Op::Flush, 0);
    other.submit(Op::Flush, 0);
    leader.close(tag);
    assert!((0..1000).any(|_| other.poll().is_some()), "its leader is gone");
}
