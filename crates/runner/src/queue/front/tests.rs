//! The front half, step by step: steps of the back half fall between any two of its steps.

use flowstone_block::sync::atomic::{AtomicBool, Ordering};
use flowstone_block::{BackHalf, Reactor};
use flowstone_frontend::vhost_user::{QueueFault, VirtQueue};

use super::*;
use crate::PollMode;
use crate::fake_guest::{Asks, CHAINS, FakeGuest, SIZE, Unlimited, spec_of};
use crate::held_disk::Held;
use crate::queue::split;
use crate::spin::FOR_DRIVER;

/// A driver whose chains need no disk, and a back half driven by the test.
struct Bench {
    guest: FakeGuest,
    front: FrontTask<VirtQueue, Unlimited>,
    leave: Arc<AtomicBool>,
    back: Back<VirtQueue>,
}

impl Bench {
    fn new() -> Self {
        let (guest, queue) = FakeGuest::new(Asks::Nonsense);
        let (front, back) = split(queue);
        let (leave, reactor) = (Arc::<AtomicBool>::default(), Reactor::new().unwrap());
        let spec = spec_of(Arc::new(Held::default()), PollMode::Auto);
        let (told, patience) = (Arc::clone(&leave), FOR_DRIVER);
        let context = TaskContext { spec: &spec, reactor: &reactor, leave: told, patience };
        let front = front.task(&context);
        Self { guest, front, leave, back }
    }

    /// The back half answers one chain and returns it.
    fn finish(&mut self) {
        let start = self.back.starts.pop().unwrap();
        let head = self.back.back.begin(start, |_| panic!("no disk is asked")).unwrap();
        let done = self.back.back.done();
        assert!(self.back.returns.push(Return { head, request: None, done }).is_ok());
    }

    /// The back half publishes completions and clears their marks.
    fn publish(&mut self) {
        self.back.back.publish();
        self.tell();
    }

    /// The back half reports the cleared marks.
    fn tell(&mut self) {
        let link = &self.back.link.0;
        link.set_cleared(self.back.back.done());
        link.wake_front();
    }

    fn must_not_sleep(&mut self) -> bool {
        matches!(self.front.next_look(), NextLook::Now)
    }

    fn taken(&self) -> usize {
        self.back.starts.slots()
    }

    fn fault(&self) -> Option<QueueFault> {
        self.front.half.front.fault()
    }
}

/// Regression: a wake-up is lost on a thread that is about to sleep; a stop hung.
#[test]
fn a_chain_that_comes_back_just_before_the_sleep_is_seen() {
    let mut bench = Bench::new();
    bench.guest.offer(0);
    assert!(bench.front.turn(u64::MAX).is_some());
    bench.leave.store(true, Ordering::Release);
    assert!(!bench.front.park());
    assert!(!bench.must_not_sleep());
    bench.finish();
    bench.publish();
    assert!(bench.must_not_sleep());
    bench.front.unpark();
    assert!(bench.front.turn(u64::MAX).is_none());
    assert!(bench.front.is_over());
}

/// The front did not wait for chains when it was parked, so the back half would not have woken it.
#[test]
fn an_order_to_leave_that_comes_just_before_the_sleep_is_seen() {
    let mut bench = Bench::new();
    bench.guest.offer(0);
    assert!(bench.front.turn(u64::MAX).is_some());
    assert!(!bench.front.park());
    assert!(!bench.must_not_sleep());
    bench.leave.store(true, Ordering::Release);
    assert!(bench.must_not_sleep());
    bench.front.unpark();
    assert!(!bench.front.park() && !bench.must_not_sleep());
    bench.finish();
    bench.publish();
    assert!(bench.must_not_sleep());
}

/// Otherwise its mark would be cleared with those of its last use, and a killed daemon would lose
/// the request.
#[test]
fn a_chain_is_taken_again_when_its_mark_is_cleared() {
    let mut bench = Bench::new();
    for round in 0..3 * SIZE {
        let chain = round % CHAINS;
        bench.guest.offer(chain);
        assert!(bench.front.turn(u64::MAX).is_some());
        assert_eq!(bench.taken(), 1);
        bench.finish();
        bench.back.back.publish();
        bench.guest.offer(chain);
        for _ in 0..3 {
            bench.front.turn(u64::MAX);
            assert_eq!((bench.taken(), bench.fault()), (0, None), "it is not cleared yet");
        }
        bench.tell();
        bench.front.turn(u64::MAX);
        assert_eq!((bench.taken(), bench.fault()), (1, None));
        bench.finish();
        bench.publish();
    }
}

#[test]
fn a_chain_that_is_in_flight_is_not_taken_twice() {
    let mut bench = Bench::new();
    bench.guest.offer(1);
    bench.guest.offer(1);
    assert!(bench.front.turn(u64::MAX).is_some());
    assert_eq!((bench.taken(), bench.fault()), (1, Some(QueueFault::HeadInUse)));
    assert!(bench.front.turn(u64::MAX).is_none() && !bench.front.park() && !bench.must_not_sleep());
}

/// Regression: it polled for ever for a mark that the back half, having panicked, could not clear.
#[test]
fn a_front_whose_other_half_has_panicked_sleeps_until_it_is_to_leave() {
    for offered_again in [false, true] {
        let mut bench = Bench::new();
        bench.guest.offer(0);
        assert!(bench.front.turn(u64::MAX).is_some());
        bench.finish();
        if offered_again {
            bench.guest.offer(0);
        }
        // The back half returned the chain but did not publish it.
        let Bench { mut front, leave, back, .. } = bench;
        drop(back);
        front.turn(u64::MAX);
        assert!(front.turn(u64::MAX).is_none());
        assert!(!front.park() && matches!(front.next_look(), NextLook::OnWake));
        front.unpark();
        leave.store(true, Ordering::Release);
        assert!(front.turn(u64::MAX).is_none() && front.is_over());
    }
}
