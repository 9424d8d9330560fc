//! Split queues of a disk that completes when the test tells it to.

use flowstone_block::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use flowstone_block::Reactor;

use super::form::QueueTasks;
use super::*;
use crate::PollMode;
use crate::fake_guest::{Asks, FakeGuest, spec_of};
use crate::held_disk::Held;
use crate::poller::{PollerOptions, PollerThread};
use crate::queue::ring::RingBuffer;
use crate::queue::split;
use crate::spin::FOR_DRIVER;
use crate::task::{Task, TaskContext};

fn spec(disk: &Held) -> QueueSpec {
    spec_of(Arc::new(disk.clone()), PollMode::Always)
}

fn wait_until(holds: impl Fn() -> bool) {
    flowstone_testkit::wait_until("something happens", holds);
}

/// Regression: the back half continued on a shared thread while the guest already had its memory
/// and ring back, and the disk wrote to them.
#[test]
fn a_queue_whose_front_has_panicked_stops_when_nothing_is_in_flight() {
    let disk = Held::default();
    let (mut guest, queue) = FakeGuest::new(Asks::Flush);
    let (mut front, back) = split(queue);
    // Room for one chain only, so that the second one makes it panic.
    let (to_back, mut between) = RingBuffer::new(1);
    let mut starts = std::mem::replace(&mut front.starts, to_back);
    let link = Arc::clone(&front.link);
    let threads = ["front", "back"]
        .map(|name| PollerThread::spawn(name.into(), PollerOptions::default()).unwrap());
    let back = threads[1].assign(Box::new(back), spec(&disk)).unwrap();
    let front = threads[0].assign(Box::new(front), spec(&disk)).unwrap();
    let orders = Arc::clone(front.orders());
    let tasks = QueueTasks { first: front, back: Some(back), threads: Vec::new() };
    guest.offer(0);
    wait_until(|| between.slots() == 1);
    assert!(starts.push(between.pop().unwrap()).is_ok());
    link.wake_back();
    wait_until(|| disk.has_one.load(Ordering::Acquire));
    guest.offer(1);
    guest.offer(2);
    // Its task is gone; the test and its handle hold the rest.
    wait_until(|| Arc::strong_count(&orders) == 2);
    let stop = thread::spawn(move || tasks.stop().is_none());
    thread::sleep(Duration::from_millis(100));
    let too_soon = stop.is_finished();
    disk.go_on();
    assert!(stop.join().unwrap() && !too_soon, "one was in flight");
}

/// Regression: a disk with a budget of 1 % rested for 100 ms at each step of a stop.
#[test]
fn a_half_that_others_wait_for_does_not_rest() {
    let (spec, reactor) = (spec(&Held::default()), Reactor::new().unwrap());
    let (front, back) = split(FakeGuest::new(Asks::Flush).1);
    let leave = Arc::<AtomicBool>::default();
    let context =
        |leave| TaskContext { spec: &spec, reactor: &reactor, leave, patience: FOR_DRIVER };
    let its = context(Arc::default());
    let channel = its.channel(back.size).unwrap();
    let back = back.task(channel, &its);
    assert!(back.may_rest());
    let front = front.task(&context(Arc::clone(&leave)));
    assert!(front.may_rest() && back.may_rest());
    leave.store(true, Ordering::Release);
    assert!(!front.may_rest() && !back.may_rest());
}

/// Each half sleeps while the other has work for it, and no other thread wakes it.
#[test]
fn halves_that_sleep_wake_each_other() {
    let disk = Held::default();
    let (mut guest, queue) = FakeGuest::new(Asks::Flush);
    let (front, back) = split(queue);
    let threads = ["front", "back"]
        .map(|name| PollerThread::spawn(name.into(), PollerOptions::default()).unwrap());
    let sleeps = QueueSpec { poll: PollMode::Never, ..spec(&disk) };
    let back = threads[1].assign(Box::new(back), sleeps.clone()).unwrap();
    thread::sleep(Duration::from_millis(50));
    guest.offer(0);
    let front = threads[0].assign(Box::new(front), sleeps).unwrap();
    wait_until(|| disk.has_one.load(Ordering::Acquire));
    let tasks = QueueTasks { first: front, back: Some(back), threads: Vec::new() };
    let stop = thread::spawn(move || tasks.stop().is_some());
    thread::sleep(Duration::from_millis(50));
    disk.go_on();
    wait_until(|| stop.is_finished());
    assert!(stop.join().unwrap());
}

mod hung;
