//! The excess of a disk's cost over what was assumed is its own debt.

use super::*;

const MS: u64 = 1_000_000;
const LARGE: Cost = Cost { requests: 1, bytes: 100 << 20 };

/// Makes a group with 10 MiB/s in which a disk has taken a request of 100 MiB, with a neighbour's
/// queue.
fn after_a_large_one(weights: [u32; 2]) -> (Line, QueueKey, QueueKey) {
    let (mut line, disks, _) = line(&[(weights[0], &[]), (weights[1], &[])], BLOCK);
    let (hog, modest) = (line.add_queue(disks[0]), line.add_queue(disks[1]));
    line.set_group_limit(limit("bw=10M"), SECOND);
    assert_eq!(take(&mut line, hog, 2, LARGE, SECOND), 1);
    (line, hog, modest)
}

/// Regression: the group was in debt for one disk's request of 100 MiB, so each read of a neighbour
/// waited for 10 s.
#[test]
fn a_neighbours_read_does_not_wait_for_what_a_large_request_owes() {
    let (mut line, _, modest) = after_a_large_one([100, 100]);
    let mut now = SECOND;
    for round in 0..50 {
        let came = now;
        while take(&mut line, modest, 1, BLOCK, now) == 0 {
            now = line.next_look(modest, now).expect("it waits");
            // One piece of the other one's debt, and a late look.
            assert!(now <= came + 30 * MS, "round {round}: {} ms", (now - came) / MS);
        }
    }
}

/// Its debt is paid according to its weight, and it gets nothing more before that.
#[test]
fn a_large_request_is_paid_for_in_turns_of_its_disk() {
    let (mut line, hog, modest) = after_a_large_one([300, 100]);
    let (mut got, mut now) = (0, SECOND);
    while take(&mut line, hog, 1, LARGE, now) == 0 {
        got += take(&mut line, modest, 64, BLOCK, now) as u64 * BLOCK.bytes;
        now += MS;
    }
    assert!(near(got, LARGE.bytes as f64 / 3.0), "the neighbour had {got}");
    assert!(near(now - SECOND, 40.0 / 3.0 * SECOND as f64), "paid after {} ms", now / MS);
}

/// Nobody looks at the line meanwhile.
#[test]
fn a_debt_is_paid_in_time_that_nobody_uses() {
    let (mut line, hog, modest) = after_a_large_one([100, 100]);
    assert_eq!(take(&mut line, modest, 1, BLOCK, 10 * SECOND), 1);
    assert_eq!(take(&mut line, hog, 1, LARGE, 10 * SECOND), 0);
    assert_eq!(take(&mut line, hog, 1, LARGE, 11 * SECOND + 100 * MS), 1);
}

/// Regression: a guest that toggles its cache mode had 85,579 reads/s under a limit of 100: each
/// stop released all waiting chains, and its group was charged.
#[test]
fn a_queue_that_comes_again_and_again_gains_nothing_and_its_group_loses_nothing() {
    let (mut line, disks, _) = line(&[(100, &[]), (100, &[])], BLOCK);
    line.set_limit(disks[0], limit("iops=100"), SECOND);
    line.set_group_limit(limit("iops=2000"), SECOND);
    let modest = line.add_queue(disks[1]);
    let (mut toggled, mut neighbours) = (0, 0);
    for step in 0..1000 {
        let now = SECOND + step * 10 * MS;
        let queue = line.add_queue(disks[0]);
        toggled += take(&mut line, queue, 128, BLOCK, now);
        line.look(queue, 128, now);
        line.remove_queue(queue);
        neighbours += take(&mut line, modest, 20, BLOCK, now);
    }
    assert!((980..=1002).contains(&toggled), "{toggled} in ten seconds");
    assert!((18_900..=20_000).contains(&neighbours), "{neighbours}");
}

/// The debt of a removed queue.
#[test]
fn a_debt_stays_with_the_disk_when_its_queue_goes() {
    let (mut line, hog, _) = after_a_large_one([100, 100]);
    let disk = line.fair.disk_of(hog);
    line.remove_queue(hog);
    let again = line.add_queue(disk);
    assert_eq!(take(&mut line, again, 1, BLOCK, SECOND + 9 * SECOND), 0);
    assert_eq!(take(&mut line, again, 1, BLOCK, SECOND + 11 * SECOND), 1);
    let own = "bw=1M".parse().unwrap();
    line.set_group_limit(Limit::NONE, SECOND);
    line.set_limit(disk, own, 12 * SECOND);
    assert_eq!(take(&mut line, again, 1, LARGE, 13 * SECOND), 1);
    line.remove_queue(again);
    let last = line.add_queue(disk);
    assert_eq!(take(&mut line, last, 1, BLOCK, (13 + 99) * SECOND), 0);
    assert_eq!(take(&mut line, last, 1, BLOCK, (13 + 101) * SECOND), 1);
}

/// Queues had small requests, and then one large one each: all were granted as small ones.
#[test]
fn grants_for_small_requests_end_with_the_first_large_one() {
    let (mut line, disks, _) = line(&[(100, &[])], BLOCK);
    line.set_limit(disks[0], limit("bw=1M,burst=1s"), SECOND);
    let queues: Vec<_> = (0..16).map(|_| line.add_queue(disks[0])).collect();
    let now = 10 * SECOND;
    // The first look grants those of all queues.
    queues.iter().for_each(|queue| line.announce(*queue, 1));
    assert_eq!(take(&mut line, queues[0], 1, LARGE, now), 1);
    let others = queues[1..].iter().map(|queue| take(&mut line, *queue, 1, LARGE, now));
    assert_eq!(others.sum::<usize>(), 0);
}

#[test]
fn what_was_granted_and_not_taken_is_not_paid_for() {
    let (mut line, disks, _) = line(&[(100, &[])], BLOCK);
    line.set_limit(disks[0], limit("iops=1000,burst=1s"), SECOND);
    let (first, second) = (line.add_queue(disks[0]), line.add_queue(disks[0]));
    let now = 10 * SECOND;
    let lease = line.look(first, 1000, now);
    assert_eq!(lease.chains, 1000);
    line.settle(first, lease, 1, BLOCK, now);
    line.remove_queue(first);
    assert_eq!(line.look(second, 5000, now).chains, 1000);
}

/// A guest may move its avail index back: chains it no longer has must not take tokens.
#[test]
fn chains_that_are_gone_are_forgotten() {
    let (mut line, disks, _) = line(&[(100, &[])], BLOCK);
    line.set_limit(disks[0], limit("iops=1"), SECOND);
    let (broken, other) = (line.add_queue(disks[0]), line.add_queue(disks[0]));
    line.look(broken, 1000, SECOND);
    line.look(broken, 0, SECOND);
    assert!(line.next_look(broken, SECOND).is_none());
    let granted = (2..12).map(|second| line.look(other, 1, second * SECOND).chains);
    assert_eq!(granted.sum::<usize>(), 10);
}

/// Regression: for a guest with 128 rings of 32,768 chains the line stored 64 MiB of entries, and
/// visited all under the lock of the group, on the thread of whichever disk looked next.
#[test]
fn what_the_line_knows_of_a_ring_is_bounded() {
    let mut line = Line::default();
    let disk = line.add_disk(Weight::default());
    line.set_limit(disk, limit("iops=1"), 0);
    line.owe(disk, Cost { requests: 10, bytes: 0 }, 0);
    let queue = line.add_queue(disk);
    assert_eq!(line.look(queue, 32_768, 0).chains, 0);
    assert!(line.fair.known(queue) <= 1024, "{}", line.fair.known(queue));
    // The others wait as well.
    assert!(line.next_look(queue, 0).is_some());
}
