//! The order of a pass: all queues issue before one entrance to the kernel, and complete after it.

use std::cell::RefCell;
use std::rc::Rc;

use flowstone_reactor::RingUser;
use io_uring::opcode::Nop;

use super::fairness::{Busy, Fixture};
use super::*;
use crate::cpu_budget::CpuBudget;
use crate::poller::pass::Done;
use crate::task::{Part, Task, Work};

/// A step of a queue, and whether it saw its completion in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Issue(bool),
    Complete(bool),
    Entered,
}
use Step::{Complete, Entered, Issue};

/// Steps of all queues, by their disks.
type Steps = Rc<RefCell<Vec<(usize, Step)>>>;

/// A queue that submits a request to the thread's ring in each turn.
struct Ringed {
    disk: usize,
    ring: RingUser,
    bytes: u64,
    /// Time that its completions take.
    time: Duration,
    steps: Steps,
}

impl Ringed {
    fn did(&self, step: Step) {
        self.steps.borrow_mut().push((self.disk, step));
    }

    fn has_completed(&mut self) -> bool {
        self.ring.bring_out();
        self.ring.next_completion().is_some()
    }
}

impl Task for Ringed {
    is_never_idle!();

    fn issue(&mut self, _bytes_max: u64) -> Option<Work> {
        // SAFETY: it names nothing.
        unsafe { self.ring.push(Nop::new().build(), 0) };
        self.ring.submit();
        let has_completed = self.has_completed();
        self.did(Issue(has_completed));
        Some(Work { found: Instant::now(), time: Duration::ZERO, bytes: self.bytes })
    }

    fn complete(&mut self) -> Option<Work> {
        let has_completed = self.has_completed();
        self.did(Complete(has_completed));
        (has_completed && !self.time.is_zero()).then(|| {
            let found = Instant::now();
            Work { found, time: self.time, bytes: 0 }
        })
    }

    fn entered(&mut self, _time: Duration) {
        self.did(Entered);
    }
}

/// Makes a poller with queues that submit requests of so many bytes, each of a disk of its own. The
/// first is the first of the next pass.
fn ringed(bytes: &[u64]) -> (Fixture, Steps) {
    ringed_for(bytes, Duration::ZERO)
}

/// The same with this time for each completion.
fn ringed_for(bytes: &[u64], time: Duration) -> (Fixture, Steps) {
    let (mut fixture, steps) = (Fixture::new(&[], Duration::ZERO), Steps::default());
    for (disk, bytes) in bytes.iter().enumerate() {
        let ring = RingUser::new(&fixture.poller.reactor, 8).unwrap();
        let queue = Ringed { disk, ring, bytes: *bytes, time, steps: Rc::clone(&steps) };
        fixture.add(disk as u32, Box::new(queue));
    }
    fixture.poller.first = bytes.len() - 1;
    (fixture, steps)
}

#[test]
fn all_queues_issue_before_the_thread_enters_the_kernel_once() {
    let (mut fixture, steps) = ringed(&[4096; 3]);
    assert!(fixture.poller.turn().is_some());
    let each = |step| [0, 1, 2].map(|disk| (disk, step));
    let turns = [0, 1, 2].map(|disk| [(disk, Issue(false)), (disk, Complete(false))]).concat();
    let wanted = [&turns[..], &each(Complete(true)), &each(Entered)].concat();
    assert_eq!(*steps.borrow(), wanted);
}

#[test]
fn a_queue_alone_on_its_thread_enters_the_kernel_itself() {
    let (mut fixture, steps) = ringed(&[4096]);
    assert!(fixture.poller.turn().is_some());
    assert_eq!(*steps.borrow(), [(0, Issue(true)), (0, Complete(false)), (0, Entered)]);
}

/// Otherwise 64 queues of a disk, each with a megabyte to copy, would all have taken it before the
/// disk has used its share of the pass.
#[test]
fn the_kernel_is_entered_before_the_end_of_a_pass_for_large_requests() {
    let (mut fixture, steps) = ringed(&[1 << 20, 4096]);
    assert!(fixture.poller.turn().is_some());
    let first = [(0, Issue(false)), (0, Complete(false)), (0, Entered), (1, Issue(false))];
    assert_eq!(steps.borrow()[..4], first);
}

#[test]
fn time_in_the_kernel_is_divided_by_the_bytes_of_the_work() {
    let mut fixture = Fixture::new(&[0, 1, 2], Duration::ZERO);
    let Poller { tasks, .. } = &mut fixture.poller;
    for (task, bytes) in tasks.iter_mut().zip([30_000, 0, 1]) {
        task.spec.budget = Some(Arc::new(CpuBudget::new("1%".parse().unwrap())));
        (task.has_worked, task.bytes) = (true, bytes);
    }
    fixture.poller.charge_for_test(Duration::from_millis(1));
    let Poller { tasks, shares, .. } = &fixture.poller;
    let rests = tasks.iter().map(|task| task.rests.is_some());
    assert_eq!(rests.collect::<Vec<_>>(), [true, false, false]);
    let has_share = tasks.iter().map(|task| shares.bytes_left(task.share) > 0);
    assert_eq!(has_share.collect::<Vec<_>>(), [false, true, true]);
    assert!(tasks.iter().all(|task| task.bytes == 0 && !task.has_worked), "charged once");
}

/// A neighbour pays for no request that never was in the thread's ring.
#[test]
fn queues_that_do_not_use_the_ring_are_charged_for_no_time_in_the_kernel() {
    let (mut fixture, _steps) = ringed(&[4096]);
    let turns = Arc::default();
    fixture.add(1, Box::new(Busy { time: Duration::ZERO, turns, bytes: 1 << 20 }));
    let mut done = Done::default();
    for index in 0..2 {
        fixture.poller.let_work(index, &mut done, |task| task.turn(u64::MAX));
    }
    let bytes: Vec<u64> = fixture.poller.tasks.iter().map(|task| task.bytes).collect();
    assert_eq!(bytes, [4096, 0]);
}

/// Otherwise a disk with 63 queues, each with an expensive completion, would begin each pass as if
/// it had used nothing.
#[test]
fn what_completes_at_the_end_of_a_pass_counts_in_the_next_one() {
    let (mut fixture, _steps) = ringed_for(&[4096; 2], Duration::from_millis(1));
    assert!(fixture.poller.turn().is_some());
    let Poller { shares, tasks, pass, .. } = &mut fixture.poller;
    shares.begin(pass.wrapping_add(1));
    assert!(tasks.iter().all(|task| shares.bytes_left(task.share) == 0));
}
