//! Models of queues on pollers, in every interleaving of the threads: real pollers, tasks, orders
//! and channels, and a disk that completes at once.
//!
//! Nothing polls (`PollMode::Never`): a thread that is not woken sleeps for ever, and loom reports
//! that. The shared ring and its notifications are outside the model: chains are offered before a
//! model begins.

use std::sync::atomic::{AtomicU32, Ordering};

use flowstone_block::model::{check, spawn};
use flowstone_block::sync::mpsc::sync_channel;
use flowstone_block::{Channel, Completion, Geometry, Layer, QueueContext, Request, SectorCount};
use flowstone_layers::Null;

use super::*;
use crate::PollMode;
use crate::fake_guest::{Asks, FakeGuest, spec_of};
use crate::queue::split;
use crate::task::{Part, QueueSpec};

const DISK: Null = Null::new(SectorCount::new(1 << 12));

fn spec(layer: Arc<dyn Layer>) -> QueueSpec {
    spec_of(layer, PollMode::Never)
}

fn poller(index: usize) -> PollerThread {
    let options = PollerOptions { index, ..PollerOptions::default() };
    PollerThread::spawn(format!("poller{index}"), options).unwrap()
}

/// Makes a queue with one chain available.
fn queue() -> Box<dyn Part> {
    let (mut guest, queue) = FakeGuest::new(Asks::Flush);
    guest.offer(0);
    Box::new(queue)
}

/// One thread moves the queue while another stops it.
#[test]
fn an_order_to_stop_holds_beside_one_to_move() {
    check("poller, move beside stop", 2, || {
        let pollers = [0, 1].map(poller);
        let queue = pollers[0].assign(queue(), spec(Arc::new(DISK))).unwrap();
        let (orders, to) = (Arc::clone(queue.orders()), Arc::clone(pollers[1].inbox()));
        let balancer = spawn(move || _ = orders.move_to(&to));
        assert!(queue.stop().is_some());
        balancer.join().unwrap();
    });
}

/// A disk that refuses its second channel: a queue that moves there returns.
#[derive(Default)]
struct Choosy(AtomicU32);

impl Layer for Choosy {
    fn geometry(&self) -> Geometry {
        DISK.geometry()
    }

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        let is_second = self.0.fetch_add(1, Ordering::Relaxed) == 1;
        if is_second { Err(io::Error::other("not here")) } else { DISK.channel(context) }
    }
}

#[test]
fn an_order_to_stop_holds_while_a_queue_comes_back() {
    check("poller, come back and stop", 2, || {
        let pollers = [0, 1].map(poller);
        let queue = pollers[0].assign(queue(), spec(Arc::<Choosy>::default())).unwrap();
        queue.orders().move_to(pollers[1].inbox());
        assert!(queue.stop().is_some());
    });
}

/// A queue is posted while its poller is told to end: it runs, or it is returned. In both cases the
/// poller ends: one that cleared its flag before it saw that it was closed could sleep for ever.
#[test]
fn what_is_posted_runs_or_comes_back() {
    check("poller, post and end", 2, || {
        let poller = poller(0);
        let inbox = Arc::clone(poller.inbox());
        let orders = Arc::new(Orders::new(Arc::clone(&inbox)));
        let (started, has_started) = sync_channel(1);
        let (ended, has_ended) = sync_channel(1);
        let (part, spec) = (queue(), spec(Arc::new(DISK)));
        let cause = Cause::Start(started);
        let arrival = Arrival { part, spec, orders: Arc::clone(&orders), ended, cause };
        let end = spawn(move || drop(poller));
        let posted = inbox.post(arrival).is_ok();
        let runs = matches!(has_started.recv(), Ok(Ok(())));
        assert_eq!(runs, posted);
        orders.stop();
        assert_eq!(has_ended.recv().is_ok(), posted);
        end.join().unwrap();
    });
}

/// The destination poller ends before the queue arrives. The monitor is told, and waits no longer.
#[test]
fn a_queue_that_moves_to_a_poller_that_ends_is_not_waited_for() {
    check("poller, move and end", 1, || {
        let [first, second] = [0, 1].map(poller);
        let queue = first.assign(queue(), spec(Arc::new(DISK))).unwrap();
        queue.orders().move_to(second.inbox());
        let end = spawn(move || drop(second));
        queue.stop();
        end.join().unwrap();
    });
}

/// Runs a split queue with one chain available. Returns its halves when they have stopped.
fn run_split(layer: Arc<dyn Layer>) -> [Option<Box<dyn Part>>; 2] {
    let (mut guest, queue) = FakeGuest::new(Asks::Flush);
    guest.offer(0);
    let (front, back) = split(queue);
    let pollers = [0, 1].map(poller);
    let back = pollers[1].assign(Box::new(back), spec(Arc::clone(&layer)));
    let front = pollers[0].assign(Box::new(front), spec(layer));
    // As `QueueHandle` does.
    let front = front.unwrap().stop();
    [front, back.unwrap().stop()]
}

#[test]
fn halves_that_sleep_wake_each_other_and_stop() {
    check("halves, sleep, wake and stop", 1, || {
        let halves = run_split(Arc::new(DISK));
        let [Some(front), Some(back)] = halves else { panic!("a half is lost") };
        assert!(front.join(back).is_some());
    });
}

/// A disk whose channel panics, silently.
struct Broken;

impl Layer for Broken {
    fn geometry(&self) -> Geometry {
        DISK.geometry()
    }

    fn channel(&self, _context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        Ok(Box::new(Self))
    }
}

impl Channel for Broken {
    fn submit(&mut self, _request: Box<Request>) {
        std::panic::resume_unwind(Box::new(()));
    }

    fn kick(&mut self) {}

    fn reap(&mut self, _done: &mut Vec<Completion>) {}

    fn next_look(&mut self) -> NextLook {
        NextLook::OnWake
    }
}

#[test]
fn a_front_stops_whose_other_half_has_panicked() {
    check("halves, panic", 1, || {
        let [front, _] = run_split(Arc::new(Broken));
        assert!(front.is_some());
    });
}
