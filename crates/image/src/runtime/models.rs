//! Models of queues that wait for other threads of an image: for requests that these carry out, and
//! for a sync that these lead.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use flowstone_block::model::{check, spawn};
use flowstone_block::{Completion, Errno, NextLook, Op, Outcome, Reactor, Request};

use super::completion_queue::CompletionQueue;
use super::group_sync::{Flushes, GroupSync};
use super::wakers::QueueWaker;

fn flush() -> Completion {
    Completion { request: Request::new(Op::Flush, 0), outcome: Ok(()) }
}

#[test]
fn every_request_of_the_slow_path_comes_back() {
    check("image, completions", 3, || {
        let reactor = Reactor::new().unwrap();
        let queue = Arc::new(CompletionQueue::new(QueueWaker::new(&reactor)));
        let others = [(); 2].map(|()| {
            let queue = Arc::clone(&queue);
            spawn(move || queue.put(flush()))
        });
        let mut back = 0;
        while back < 2 {
            reactor.sleep(|| NextLook::now_if(queue.has_completions()));
            if queue.has_completions() {
                back += queue.take().len();
            }
        }
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

/// Runs one queue with one flush, like a channel: it leads when told to, and otherwise sleeps until
/// it is served or must take over. A sync of the file ends with `outcome`. Returns the outcome of
/// the flush.
fn flush_once(sync: &GroupSync, leaves: bool, outcome: impl Fn() -> Outcome) -> Outcome {
    let reactor = Reactor::new().unwrap();
    let (waker, mut flushes) = (QueueWaker::new(&reactor), Flushes::default());
    let mut leads = flushes.submit(sync, flush(), &waker);
    let mut completed = Vec::new();
    if leaves {
        flushes.leave();
    }
    loop {
        flushes.collect(sync, || sync.has_failed(), &mut completed);
        if !completed.is_empty() && !flushes.is_leading() {
            return completed[0].outcome;
        }
        if leads {
            leads = flushes.finish(sync, outcome());
        } else if flushes.take_over(sync) {
            leads = true;
        } else if !flushes.can_advance(sync) {
            reactor.sleep(|| NextLook::now_if(flushes.can_advance(sync)));
        }
    }
}

/// The leading queue leaves as soon as its sync has ended.
#[test]
fn a_flush_is_served_or_takes_the_lead() {
    check("image, group sync", 5, || {
        let sync = Arc::new(GroupSync::default());
        let other = Arc::clone(&sync);
        let other = spawn(move || flush_once(&other, true, || Ok(())));
        assert_eq!(flush_once(&sync, true, || Ok(())), Ok(()));
        assert_eq!(other.join().unwrap(), Ok(()));
    });
}

/// The first sync succeeds, the second one fails; one queue may carry out both. The flush served by
/// the second one fails, whichever queue it belongs to.
#[test]
fn a_flush_hears_of_the_failure_of_its_sync() {
    check("image, failed sync", 5, || {
        let (sync, count) = (Arc::new(GroupSync::default()), Arc::new(AtomicU32::new(0)));
        let outcome = move || match count.fetch_add(1, Ordering::Relaxed) {
            0 => Ok(()),
            _ => Err(Errno::IO),
        };
        let (other, same) = (Arc::clone(&sync), outcome.clone());
        let other = spawn(move || flush_once(&other, false, same));
        let mine = flush_once(&sync, false, outcome);
        assert!(mine.is_err() || other.join().unwrap().is_err());
    });
}
