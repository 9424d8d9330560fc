//! Batches on a disk whose submissions take time: which completions the driver sees during a batch.

use std::io;
use std::sync::{Arc, Mutex};
use std::thread;

use flowstone_block::{
    Channel, Completion, Geometry, Layer, NextLook, QueueContext, Reactor, Request, SectorCount,
};

use super::*;
use crate::PollMode;
use crate::fake_guest::{Asks, CHAINS, FakeGuest, SIZE, spec_of};
use crate::queue::split;
use crate::spin::FOR_DRIVER;
use crate::task::{Task, TaskContext};

mod corked;

/// Sixteen of these are longer than a stretch.
const SUBMISSION: Duration = Duration::from_micros(1);

/// The used index seen by the driver, at each submission.
type Seen = Arc<Mutex<Vec<u16>>>;

struct Slow {
    guest: Arc<FakeGuest>,
    seen: Seen,
}

struct SlowChannel {
    disk: Slow,
    done: Vec<Completion>,
}

impl Layer for Slow {
    fn geometry(&self) -> Geometry {
        Geometry::with_capacity(SectorCount::new(1 << 12))
    }

    fn channel(&self, _context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        let disk = Self { guest: Arc::clone(&self.guest), seen: Arc::clone(&self.seen) };
        Ok(Box::new(SlowChannel { disk, done: Vec::new() }))
    }
}

impl Channel for SlowChannel {
    fn submit(&mut self, request: Box<Request>) {
        self.disk.seen.lock().unwrap().push(self.disk.guest.used());
        thread::sleep(SUBMISSION);
        self.done.push(Completion { request, outcome: Ok(()) });
    }

    fn kick(&mut self) {}

    fn reap(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.done);
    }

    fn next_look(&mut self) -> NextLook {
        NextLook::now_if(!self.done.is_empty())
    }
}

/// Runs all chains of a guest, fused or with both halves on this thread. Returns the used index
/// that the guest sees at each submission.
fn seen_of_all_chains(is_split: bool) -> Vec<u16> {
    let (mut guest, queue) = FakeGuest::new(Asks::Flush);
    (0..CHAINS).for_each(|chain| guest.offer(chain));
    let (guest, seen) = (Arc::new(guest), Seen::default());
    let disk = Slow { guest: Arc::clone(&guest), seen: Arc::clone(&seen) };
    let (spec, reactor) = (spec_of(Arc::new(disk), PollMode::Never), Reactor::new().unwrap());
    let (leave, patience) = (Arc::default(), FOR_DRIVER);
    let context = TaskContext { spec: &spec, reactor: &reactor, leave, patience };
    let channel = context.channel(SIZE).unwrap();
    let mut run: Vec<Box<dyn Task>> = if is_split {
        let (front, back) = split(queue);
        let front = front.task(&context);
        vec![Box::new(front), Box::new(back.task(channel, &context))]
    } else {
        vec![Box::new(queue.task(channel, &context))]
    };
    // The front half hands over all chains first.
    for task in &mut run {
        while task.turn(u64::MAX).is_some() {}
    }
    assert_eq!(guest.used(), CHAINS);
    std::mem::take(&mut seen.lock().unwrap())
}

#[test]
fn what_has_completed_is_shown_while_a_long_batch_is_still_being_issued() {
    for is_split in [false, true] {
        let seen = seen_of_all_chains(is_split);
        // Turns of 4, 8, 16 and 32 chains; the last of them in two stretches.
        assert_eq!([seen[4], seen[12], seen[28]], [4, 12, 28]);
        assert_eq!([seen[28 + 15], seen[28 + 16]], [28, 28 + 16]);
    }
}

#[test]
fn chains_that_come_while_a_batch_is_issued_are_the_next_turns() {
    let mut batch = Batch::new(1000, u64::MAX);
    batch.end_stretch(16, 10);
    assert_eq!(batch.chains(), 10);
    // More chains have arrived meanwhile.
    batch.end_stretch(10, 500);
    assert!(batch.is_over());
}

#[test]
fn a_batch_ends_with_its_bytes_with_its_chains_and_when_nothing_can_be_taken() {
    let mut batch = Batch::new(8, 4096);
    assert!(batch.goes_on());
    batch.count(5000);
    assert!(batch.is_over() && !batch.goes_on());
    batch = Batch::new(8, 4096);
    batch.end_stretch(8, 100);
    assert!(batch.is_over());
    batch = Batch::new(8, 4096);
    batch.end_stretch(0, 100);
    assert!(batch.is_over());
}

/// Regression: with rings full of chains that need no disk, a neighbour's median went from 15 us to
/// 4.4 ms.
#[test]
fn a_turn_of_chains_that_are_answered_at_once_has_an_end() {
    for (bytes, chains) in [(1 << 20, 512), (u64::MAX, 10_000)] {
        let batch = Batch::new(usize::MAX, bytes);
        // A stretch may end before every sixteenth of them.
        let taken = (0..10_000).filter(|_| batch.goes_on() || batch.bytes.get() > 1 << 20).count();
        assert_eq!(taken, chains);
    }
}

/// Chains of a thousand descriptors each.
#[test]
fn a_turn_of_a_shared_thread_ends_with_its_time() {
    for (bytes, ends) in [(1 << 20, true), (u64::MAX, false)] {
        let mut batch = Batch::new(1000, bytes);
        batch.end = batch.end.map(|end| end - TURN);
        batch.end_stretch(16, 900);
        assert!(!batch.is_over(), "a stretch is taken at least");
        batch.begin_stretch();
        assert_eq!(batch.is_over(), ends, "{bytes}");
    }
}
