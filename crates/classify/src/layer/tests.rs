//! Lifetime of layouts that queues cache.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Weak};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use flowstone_block::{QueueDepth, SectorCount};
use flowstone_layers::Mem;

use super::*;

fn classify() -> Classify {
    Classify::new(Arc::new(Mem::new(SectorCount::new(64)).unwrap()), 3)
}

fn queue(number: u16) -> QueueContext {
    let origin = Origin::Queue { disk: 0, queue: number };
    QueueContext { origin, ..QueueContext::alone(QueueDepth(1)).unwrap() }
}

/// Waits until no queue holds the layout any more.
fn is_let_go(layout: &Weak<Layout>) -> bool {
    let begin = Instant::now();
    while layout.strong_count() > 0 && begin.elapsed() < Duration::from_secs(60) {
        sleep(Duration::from_millis(1));
    }
    layout.strong_count() == 0
}

/// Each sleeping queue kept the layout that it had seen last, each a different one: 82 MiB for 32
/// queues of a disk whose guest changed its superblock in between.
#[test]
fn queues_that_sleep_let_go_of_a_layout_that_has_been_replaced() {
    let (classify, stopped) = (classify(), AtomicBool::new(false));
    let (tell, told) = channel();
    let run = |number| {
        let context = queue(number);
        let mut channel = classify.channel(&context).unwrap();
        tell.clone().send(context.reactor.waker()).unwrap();
        while !stopped.load(Ordering::Acquire) {
            channel.reap(&mut Vec::new());
            let is_stopped = || stopped.load(Ordering::Acquire);
            context.reactor.sleep(|| NextLook::now_if(is_stopped()).min(channel.next_look()));
        }
    };
    scope(|scope| {
        (0..4).for_each(|number| _ = scope.spawn(move || run(number)));
        let wakers: Vec<_> = (0..4).map(|_| told.recv().unwrap()).collect();
        let layouts = [0; 3].map(|_| {
            let layout = Arc::downgrade(&classify.disk.layout());
            classify.disk.layout.publish(Layout::default());
            is_let_go(&layout)
        });
        stopped.store(true, Ordering::Release);
        wakers.iter().for_each(|waker| waker.wake());
        assert_eq!(layouts, [true; 3]);
    });
}

/// A layout published between a queue's last turn and its sleep wakes no thread.
#[test]
fn a_queue_does_not_fall_asleep_on_a_layout_that_has_been_replaced() {
    let classify = classify();
    let mut channel = classify.channel(&queue(0)).unwrap();
    // The first reading may end in between.
    let mut replace_and_look = || {
        classify.disk.layout.publish(Layout::default());
        channel.next_look()
    };
    assert_eq!(replace_and_look(), NextLook::Now);
    let layout = Arc::downgrade(&classify.disk.layout());
    classify.disk.layout.publish(Layout::default());
    channel.reap(&mut Vec::new());
    assert!(is_let_go(&layout));
}
