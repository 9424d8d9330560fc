//! A disk that starts requests only when kicked: orders, kills and broken rings within a batch.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use flowstone_block::sync::atomic::{AtomicBool, Ordering};
use flowstone_block::{Channel, Completion, NextLook, Reactor, Request};
use flowstone_frontend::vhost_user::VirtQueue;

use crate::PollMode;
use crate::fake_guest::{Asks, CHAINS, FakeGuest, Unlimited, spec_of};
use crate::held_disk::Held;
use crate::queue::{Whole, split};
use crate::spin::FOR_DRIVER;
use crate::task::{Task, TaskContext};

type Hook = Box<dyn FnMut(usize, u16)>;
type KickHook = Box<dyn FnMut(&VecDeque<Box<Request>>)>;

/// The calls that the disk has received.
#[derive(Default)]
struct Log {
    submitted: Vec<u16>,
    kicks: usize,
}

struct Corked {
    log: Arc<Mutex<Log>>,
    held: VecDeque<Box<Request>>,
    started: Vec<Completion>,
    /// Whether requests complete without a kick.
    at_once: bool,
    /// Whether nothing ever completes.
    hangs: bool,
    on_submit: Hook,
    on_kick: KickHook,
}

impl Corked {
    fn new(log: &Arc<Mutex<Log>>, on_submit: Hook) -> Self {
        let (held, started, log) = (VecDeque::new(), Vec::new(), Arc::clone(log));
        Self {
            log,
            held,
            started,
            at_once: false,
            hangs: false,
            on_submit,
            on_kick: Box::new(|_| {}),
        }
    }
}

impl Channel for Corked {
    fn submit(&mut self, request: Box<Request>) {
        let chain = request.tag as u16 / 2;
        let nth = {
            let mut log = self.log.lock().unwrap();
            log.submitted.push(chain);
            log.submitted.len()
        };
        thread::sleep(Duration::from_micros(1));
        (self.on_submit)(nth, chain);
        if self.at_once {
            self.started.push(Completion { request, outcome: Ok(()) });
        } else {
            self.held.push_back(request);
        }
    }

    fn kick(&mut self) {
        (self.on_kick)(&self.held);
        if self.hangs {
            return;
        }
        self.log.lock().unwrap().kicks += 1;
        self.started
            .extend(self.held.drain(..).map(|request| Completion { request, outcome: Ok(()) }));
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.started);
    }

    fn next_look(&mut self) -> NextLook {
        NextLook::now_if(!self.started.is_empty())
    }
}

struct Run {
    tasks: Vec<Box<dyn Task>>,
    leave: Arc<AtomicBool>,
}

fn run(queue: VirtQueue, is_split: bool, leave: &Arc<AtomicBool>, channel: Corked) -> Run {
    let queue = Whole { queue, throttle: Arc::new(Unlimited) };
    let spec = spec_of(Arc::new(Held::default()), PollMode::Never);
    let (reactor, leave) = (Reactor::new().unwrap(), Arc::clone(leave));
    let (told, patience) = (Arc::clone(&leave), FOR_DRIVER);
    let context = TaskContext { spec: &spec, reactor: &reactor, leave: told, patience };
    let channel = Box::new(channel);
    let tasks: Vec<Box<dyn Task>> = if is_split {
        let (front, back) = split(queue);
        let front = front.task(&context);
        vec![Box::new(front), Box::new(back.task(channel, &context))]
    } else {
        vec![Box::new(queue.task(channel, &context))]
    };
    Run { tasks, leave }
}

impl Run {
    /// Gives turns until no task finds work, as a poller does. A turn that never ends fails the
    /// test.
    fn turns(&mut self) {
        let start = Instant::now();
        loop {
            let mut any = false;
            for task in &mut self.tasks {
                any |= task.turn(u64::MAX).is_some();
            }
            if !any {
                return;
            }
            assert!(start.elapsed() < flowstone_testkit::HANG, "turns without end");
        }
    }
}

fn guest(chains: u16) -> (FakeGuest, VirtQueue) {
    let (mut guest, queue) = FakeGuest::new(Asks::Flush);
    (0..chains).for_each(|chain| guest.offer(chain));
    (guest, queue.queue)
}

#[test]
fn what_was_submitted_is_started_when_an_order_to_leave_comes_within_a_batch() {
    for is_split in [false, true] {
        for at in [1, 4, 5, 28 + 1, 28 + 15, 28 + 16, 28 + 17, 28 + 31, 60] {
            let (guest, queue) = guest(CHAINS);
            let (log, leave): (Arc<Mutex<Log>>, Arc<AtomicBool>) = Default::default();
            let raised = Arc::clone(&leave);
            let channel = Corked::new(
                &log,
                Box::new(move |nth, _| {
                    if nth == at {
                        raised.store(true, Ordering::Release);
                    }
                }),
            );
            let mut run = run(queue, is_split, &leave, channel);
            run.turns();
            let submitted = log.lock().unwrap().submitted.len();
            assert!(
                run.tasks.iter_mut().all(|task| task.is_over()),
                "{is_split} {at} of {submitted}"
            );
            assert_eq!(usize::from(guest.used()), submitted);
            assert!(is_split || submitted == at, "{submitted} {at}");
            assert!(run.leave.load(Ordering::Acquire));
        }
    }
}

#[test]
fn what_was_submitted_is_started_when_the_driver_breaks_its_ring_within_a_batch() {
    for at in [1, 4, 28 + 15, 28 + 16, 28 + 17] {
        let (guest, queue) = guest(CHAINS);
        let guest = Arc::new(guest);
        let (log, leave): (Arc<Mutex<Log>>, Arc<AtomicBool>) = Default::default();
        let theirs = Arc::clone(&guest);
        let channel = Corked::new(
            &log,
            Box::new(move |nth, _| {
                if nth == at {
                    theirs.jump();
                }
            }),
        );
        run(queue, false, &leave, channel).turns();
        assert_eq!(usize::from(guest.used()), log.lock().unwrap().submitted.len(), "{at}");
    }
}

/// The driver offers a chain again as soon as it completes, which delays other queues of the
/// thread.
#[test]
fn a_driver_that_answers_at_once_does_not_keep_the_turn_going() {
    for is_split in [false, true] {
        let (mut guest, queue) = guest(CHAINS);
        let (log, leave): (Arc<Mutex<Log>>, Arc<AtomicBool>) = Default::default();
        let mut seen = 0;
        let mut channel = Corked::new(
            &log,
            Box::new(move |_, _| {
                while seen != guest.used() {
                    guest.offer(guest.used_at(seen).0);
                    seen = seen.wrapping_add(1);
                }
            }),
        );
        channel.at_once = true;
        let mut run = run(queue, is_split, &leave, channel);
        let mut before = 0;
        for turn in 0..40 {
            let mut ready = 0;
            for task in &mut run.tasks {
                let _ = task.turn(u64::MAX);
                ready += 1;
            }
            assert!(ready > 0);
            let submitted = log.lock().unwrap().submitted.len();
            assert!(
                submitted - before <= usize::from(CHAINS),
                "{is_split}: {} in turn {turn}",
                submitted - before
            );
            before = submitted;
        }
        assert!(before > 500, "{before}");
    }
}

/// Kills the daemon at the `at`th submission, at any place in a stretch.
#[test]
fn a_kill_within_a_batch_loses_nothing_and_what_is_undone_is_repeated_in_order_one_by_one() {
    for is_split in [false, true] {
        for at in [1, 4, 28 + 16, 28 + 17, 28 + 20, 28 + 32, 64] {
            let (guest, queue) = guest(CHAINS);
            let (log, leave): (Arc<Mutex<Log>>, Arc<AtomicBool>) = Default::default();
            let mut channel =
                Corked::new(&log, Box::new(move |nth, _| assert!(nth != at, "killed")));
            channel.at_once = true;
            let mut first = run(queue, is_split, &leave, channel);
            assert!(catch_unwind(AssertUnwindSafe(|| first.turns())).is_err());
            let used = guest.used();
            let last = log.lock().unwrap().submitted.len() as u16;
            drop(first);
            let (again, leave): (Arc<Mutex<Log>>, Arc<AtomicBool>) = Default::default();
            let mut second =
                run(guest.queue(), is_split, &leave, Corked::new(&again, Box::new(|_, _| {})));
            let before = again.lock().unwrap().kicks;
            for task in &mut second.tasks {
                let _ = task.turn(u64::MAX);
            }
            if is_split || used + 1 < last {
                assert_eq!(again.lock().unwrap().submitted.len(), 1, "{is_split} {at} {used}");
                assert_eq!(again.lock().unwrap().kicks, before + 1);
            }
            second.turns();
            assert_eq!(guest.used(), CHAINS, "{is_split} {at}");
            let submitted = again.lock().unwrap().submitted.clone();
            assert_eq!(submitted, Vec::from_iter(used..CHAINS), "{is_split} {at}");
            let mut all: Vec<u16> = (0..CHAINS).map(|place| guest.used_at(place).0).collect();
            all.sort_unstable();
            assert_eq!(all, Vec::from_iter(0..CHAINS));
        }
    }
}

/// docs/durability.md: a request that has killed two daemons is answered with an error by the
/// third. This one kills when the disk starts it.
#[test]
fn a_request_that_kills_at_the_kick_is_given_up_after_two_lives() {
    for poison in [28 + 20, 28 + 3] {
        for is_split in [false, true] {
            let (guest, mut queue) = guest(CHAINS);
            let mut deaths = 0;
            loop {
                let (log, leave): (Arc<Mutex<Log>>, Arc<AtomicBool>) = Default::default();
                let mut channel = Corked::new(&log, Box::new(|_, _| {}));
                channel.on_kick = Box::new(move |held| {
                    assert!(held.iter().all(|it| it.tag as u16 / 2 != poison));
                });
                let mut life = run(queue, is_split, &leave, channel);
                if catch_unwind(AssertUnwindSafe(|| life.turns())).is_ok() {
                    break;
                }
                deaths += 1;
                drop(life);
                queue = guest.queue();
            }
            let status =
                (0..CHAINS).map(|at| guest.used_at(at)).find(|it| it.0 == poison).unwrap().1;
            assert_eq!((status, deaths), (1, 2), "{poison}, split: {is_split}");
        }
    }
}

/// See docs/durability.md, row 2.
#[test]
fn requests_that_the_disk_has_are_not_blamed_for_kills() {
    for is_split in [false, true] {
        let (guest, mut queue) = guest(CHAINS);
        for _ in 0..6 {
            let (log, leave): (Arc<Mutex<Log>>, Arc<AtomicBool>) = Default::default();
            let mut channel = Corked::new(&log, Box::new(|_, _| {}));
            channel.hangs = true;
            let mut life = run(queue, is_split, &leave, channel);
            for _ in 0..3 * CHAINS {
                for task in &mut life.tasks {
                    let _ = task.turn(u64::MAX);
                }
            }
            assert!(is_split || log.lock().unwrap().submitted.len() == usize::from(CHAINS));
            drop(life);
            queue = guest.queue();
        }
        let (log, leave): (Arc<Mutex<Log>>, Arc<AtomicBool>) = Default::default();
        run(queue, is_split, &leave, Corked::new(&log, Box::new(|_, _| {}))).turns();
        assert_eq!(guest.used(), CHAINS);
        assert!((0..CHAINS).all(|at| guest.used_at(at).1 == 0), "one is answered with an error");
    }
}

/// Regression: on a busy host, chains that waited for the other thread of their queue at two kills
/// were answered with errors.
#[test]
fn requests_that_wait_for_the_other_thread_are_not_blamed_for_kills() {
    let (guest, mut queue) = guest(CHAINS);
    for _ in 0..6 {
        let (log, leave): (Arc<Mutex<Log>>, Arc<AtomicBool>) = Default::default();
        let mut life = run(queue, true, &leave, Corked::new(&log, Box::new(|_, _| {})));
        assert!(life.tasks[0].turn(u64::MAX).is_some(), "the front takes nothing");
        assert!(log.lock().unwrap().submitted.is_empty());
        drop(life);
        queue = guest.queue();
    }
    let (log, leave): (Arc<Mutex<Log>>, Arc<AtomicBool>) = Default::default();
    run(queue, true, &leave, Corked::new(&log, Box::new(|_, _| {}))).turns();
    assert_eq!(guest.used(), CHAINS);
    assert!((0..CHAINS).all(|at| guest.used_at(at).1 == 0), "one is answered with an error");
}

/// A stretch of a batch is at most 16 requests on a slow disk: the second one is timed separately.
#[test]
fn each_stretch_shows_what_the_one_before_has_completed() {
    for is_split in [false, true] {
        let (guest, queue) = guest(CHAINS);
        let guest = Arc::new(guest);
        let (log, leave): (Arc<Mutex<Log>>, Arc<AtomicBool>) = Default::default();
        let (theirs, seen) = (Arc::clone(&guest), Arc::new(Mutex::new(Vec::new())));
        let sees = Arc::clone(&seen);
        let mut channel =
            Corked::new(&log, Box::new(move |_, _| sees.lock().unwrap().push(theirs.used())));
        channel.at_once = true;
        let mut run = run(queue, is_split, &leave, channel);
        // Enough turns for a batch of all chains; the front has handed over all of them by then.
        while run.tasks.len() > 1 && run.tasks[0].turn(u64::MAX).is_some() {}
        run.turns();
        let seen = seen.lock().unwrap();
        // Turns of 4, 8, 16, 32 in two stretches, and 4.
        assert_eq!(
            [seen[28], seen[43], seen[44], seen[59], seen[60]],
            [28, 28, 44, 44, 60],
            "{is_split}"
        );
    }
}

/// Other queues of the thread wait while a submission is a copy (S2.6).
#[test]
fn a_turn_takes_no_more_than_its_bytes_on_one_thread_and_on_two() {
    for is_split in [false, true] {
        let (mut guest, queue) = FakeGuest::new(Asks::Read);
        (0..CHAINS).for_each(|chain| guest.offer(chain));
        let (log, leave): (Arc<Mutex<Log>>, Arc<AtomicBool>) = Default::default();
        let mut run = run(queue.queue, is_split, &leave, Corked::new(&log, Box::new(|_, _| {})));
        while run.tasks.len() > 1 && run.tasks[0].turn(u64::MAX).is_some() {}
        let last = run.tasks.last_mut().unwrap();
        let mut before = 0;
        for turn in 0..CHAINS {
            let _ = last.turn(3 * 512);
            let submitted = log.lock().unwrap().submitted.len();
            assert!(submitted - before <= 3, "{is_split}: {} in turn {turn}", submitted - before);
            before = submitted;
        }
        assert_eq!((before, guest.used()), (usize::from(CHAINS), CHAINS), "{is_split}");
    }
}

/// Regression: it took sixteen chains, whatever its disk had left of the pass.
#[test]
fn the_half_that_takes_requests_takes_no_more_than_the_bytes_of_its_turn() {
    let (mut guest, queue) = FakeGuest::new(Asks::Read);
    (0..CHAINS).for_each(|chain| guest.offer(chain));
    let (log, leave): (Arc<Mutex<Log>>, Arc<AtomicBool>) = Default::default();
    let mut run = run(queue.queue, true, &leave, Corked::new(&log, Box::new(|_, _| {})));
    for turn in 1..=usize::from(CHAINS) {
        assert!(run.tasks[0].turn(512).is_some());
        while run.tasks[1].turn(u64::MAX).is_some() {}
        assert_eq!(log.lock().unwrap().submitted.len(), turn);
    }
}
