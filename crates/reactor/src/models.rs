//! Models of a sleeping thread and its wakers, in each interleaving and with each value that the
//! memory model allows.
//!
//! The data is stored and loaded without ordering (`Relaxed`), so only the sleep protocol makes it
//! visible.

use std::sync::Arc;
use std::time::Instant;

use crate::model::{check, spawn};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::{NextLook, Reactor, Waker};

/// Stores a value and wakes, `times` times.
fn leave(left: &AtomicUsize, times: usize, waker: &Waker) {
    for time in 1..=times {
        left.store(time, Ordering::Relaxed);
        waker.wake();
    }
}

/// Sleeps until all values have been found. If a wake-up is lost, it sleeps forever, which loom
/// reports.
fn find(left: &[Arc<AtomicUsize>], times: usize, reactor: &Reactor) {
    let found = || left.iter().all(|left| left.load(Ordering::Relaxed) == times);
    while !found() {
        reactor.sleep(|| NextLook::now_if(found()));
    }
}

fn no_wake_up_is_lost(name: &str, preemptions: usize, threads: usize, times: usize) {
    check(name, preemptions, move || {
        let reactor = Reactor::new().unwrap();
        let left: Vec<Arc<AtomicUsize>> = (0..threads).map(|_| Arc::default()).collect();
        let others = left.iter().map(|left| {
            let (left, waker) = (Arc::clone(left), reactor.waker());
            spawn(move || leave(&left, times, &waker))
        });
        let others: Vec<_> = others.collect();
        find(&left, times, &reactor);
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

#[test]
fn what_one_thread_leaves_again_and_again_is_found() {
    no_wake_up_is_lost("reactor, one wakes three times", 4, 1, 3);
}

#[test]
fn what_two_threads_leave_is_found() {
    no_wake_up_is_lost("reactor, two wake", 3, 2, 1);
}

/// The owner wakes up by itself while it is being woken. The late event ends one sleep, and the
/// next wake-up is not lost.
#[test]
fn an_event_that_comes_late_ends_one_sleep_and_no_more() {
    check("reactor, a late event", 4, || {
        let reactor = Reactor::new().unwrap();
        let waker = reactor.waker();
        let other = spawn(move || waker.wake());
        reactor.sleep(|| NextLook::At(Instant::now()));
        other.join().unwrap();
        reactor.sleep(|| NextLook::Now);
        let waker = reactor.waker();
        assert!(!waker.event().is_readable(), "it would end every sleep from now on");
        waker.fall_asleep();
        waker.wake();
        assert!(waker.event().is_readable());
    });
}
