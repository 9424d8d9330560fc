//! Requests of rank `First`: syncs, and journal commits.

use super::*;

/// A sync waits for its turn, and precedes the other waiting requests of its disk.
#[test]
fn while_two_contend_requests_and_syncs_wait() {
    let (devices, clock) = devices();
    let (mut hog, mut modest) = (Queue::new(&devices), Queue::new(&devices));
    hog.submit(0..100);
    assert_eq!(hog.host.below().len(), 100, "no other disk contends yet");
    modest.submit(0..1);
    assert_eq!(modest.host.below(), [0]);
    hog.submit(100..120);
    assert_eq!(hog.host.below().len(), 100);
    hog.sync(999);
    assert_eq!(hog.host.below().len(), 100, "what it has there is more than its slots");
    clock.fetch_add(1_000_000, Ordering::Relaxed);
    // Its requests above its slots have to complete first.
    hog.complete(80);
    assert_eq!(hog.host.below().len(), 20);
    hog.complete(6);
    assert!(hog.host.below()[14..].starts_with(&[999, 100]), "{:?}", hog.host.below());
    modest.complete(1);
    while hog.back.len() < 121 {
        hog.complete(hog.host.below().len());
    }
    assert_eq!((hog.share.syncs(), modest.share.syncs()), (1, 0));
    hog.back.retain(|tag| *tag != 999);
    assert_eq!(hog.back, Vec::from_iter(0..120));
    assert!(hog.share.held_back().0 >= 21 && modest.share.held_back().0 == 0);
}

/// Regression: syncs may take long, and the disk's reads did not continue meanwhile.
#[test]
fn syncs_that_are_on_their_way_have_no_slots_and_do_not_stall_their_disk() {
    let (devices, clock) = devices();
    let (mut hog, mut other) = (Queue::new(&devices), Queue::new(&devices));
    hog.submit(0..1);
    other.submit(0..1);
    other.complete(1);
    (900..920).for_each(|tag| other.sync(tag));
    assert_eq!(other.host.below(), Vec::from_iter(900..920));
    clock.fetch_add(150_000_000, Ordering::Relaxed);
    hog.complete(1);
    hog.submit(1..2);
    assert_eq!(hog.host.below(), [1]);
    other.submit(1..2);
    assert!(other.host.below().contains(&1), "{:?}", other.host.below());
}

/// The guest's journal commits precede its other requests, however many of these wait.
#[test]
fn commits_go_before_what_else_waits() {
    let (devices, _) = devices();
    let (mut hog, mut other) = (Queue::new(&devices), Queue::new(&devices));
    other.submit(0..1);
    hog.submit(0..1);
    hog.submit(1..60);
    let sent = hog.host.below().len();
    let op = FileOp::Write { offset: FileOffset::new(0), bytes: 4096, durable: false };
    hog.channel.submit(FileRequest::new(op, MemoryList::EMPTY, 777).first(true));
    hog.channel.kick();
    assert_eq!(hog.host.below().len(), sent, "it needs a slot");
    hog.complete(1);
    assert_eq!(hog.host.below().last(), Some(&777));
}
