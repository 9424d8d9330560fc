//! Queues that always have work, beside one that has little, on one thread.

use std::sync::atomic::AtomicU32;

use flowstone_block::sync::mpsc::{Receiver, sync_channel};

use super::*;
use crate::cpu_budget::CpuBudget;
use crate::fake_guest::spec_of;
use crate::held_disk::Held;
use crate::task::{Part, QueueSpec, Task, Work};

/// A queue with work in each turn, which it reports to have taken `time`.
pub struct Busy {
    pub time: Duration,
    pub bytes: u64,
    /// Turns in which it took something.
    pub turns: Arc<AtomicU32>,
}

impl Task for Busy {
    is_never_idle!();

    fn issue(&mut self, bytes_max: u64) -> Option<Work> {
        (bytes_max > 0).then(|| {
            self.turns.fetch_add(1, Ordering::Relaxed);
            Work { found: Instant::now(), time: self.time, bytes: self.bytes }
        })
    }
}

/// Makes a task whose queue is notified at each sleep, and finds work in the turns that `finds`
/// selects.
fn notified(finds: impl Fn(u32) -> bool + 'static, budget: Option<&str>, at: Instant) -> Scheduled {
    let budget = budget.map(|share| Arc::new(CpuBudget::new(share.parse().unwrap())));
    let spec = QueueSpec { budget, ..spec(0) };
    let orders = Arc::new(Orders::new(Arc::new(Inbox::new(0, Reactor::new().unwrap().waker()))));
    let queue = Box::new(Notified { finds: Box::new(finds), at, turns: 0 });
    Scheduled::new(queue, spec, orders, sync_channel(1).0)
}

/// Lets its thread sleep up to `at_most` times, until the task rests. Returns how often it slept.
fn sleeps(task: &mut Scheduled, at_most: u32, now: Instant) -> u32 {
    let sleep = |_: &u32| {
        task.unpark();
        task.turn(u64::MAX);
        task.park(now);
        task.rests.is_none() && task.deaf.is_none()
    };
    (0..at_most).take_while(sleep).count() as u32
}

/// A time later than all that the code under test reads: a rest until then does not end.
pub fn later() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

/// Regression: 17 to 80 % of a CPU for ever, under a budget of 5 %: spurious wake-ups were not
/// charged.
#[test]
fn a_queue_that_is_notified_for_nothing_is_heard_less_and_less() {
    let now = later();
    let mut task = notified(|_| false, None, now);
    assert_eq!(sleeps(&mut task, 1000, now), 16);
    for ms in [1, 2, 4, 8, 16, 32, 64, 64] {
        assert_eq!(task.deaf, Some(now + Duration::from_millis(ms)));
        task.deaf = None;
        assert_eq!(sleeps(&mut task, 1000, now), 0);
    }
}

/// Regression: a guest that sent spurious notifications beside its requests waited 64 ms for
/// completions.
#[test]
fn what_the_disk_completes_is_shown_while_its_queue_is_not_heard() {
    let now = later();
    let mut task = notified(|_| false, None, now);
    assert_eq!(sleeps(&mut task, 1000, now), 16);
    assert!(task.has_turns() && task.turn(u64::MAX).is_some(), "it takes nothing and completes");
    assert!(matches!(task.next_look(), NextLook::At(at) if at == now));
    assert_eq!(task.deaf, Some(now + Duration::from_millis(1)));
}

/// A notification for a request that was taken already is no driver error.
#[test]
fn a_queue_that_finds_something_is_heard() {
    let now = later();
    let mut task = notified(|turn| turn.is_multiple_of(16), None, now);
    assert_eq!(sleeps(&mut task, 1000, now), 1000);
}

/// Regression: all polling was charged to all disks of the thread, and a disk with a budget beside
/// one that polls always had no turns any more.
#[test]
fn polling_is_charged_to_the_disks_that_the_thread_polls_for() {
    let mut fixture = Fixture::new(&[], Duration::ZERO);
    for (disk, looks) in
        [Duration::ZERO, Duration::MAX, Duration::from_micros(20)].into_iter().enumerate()
    {
        fixture.add(disk as u32, Box::new(Idle(looks)));
        let budget = CpuBudget::new("5%".parse().unwrap());
        fixture.poller.tasks[disk].spec.budget = Some(Arc::new(budget));
    }
    let now = later();
    // No queue finds work meanwhile, and each look asks all of them again.
    for _ in 0..1000 {
        fixture.poller.look_budget(now);
        fixture.poller.count_looking(Duration::from_millis(1), now);
    }
    let rests = |task: &Scheduled| task.rests.is_some();
    assert_eq!(fixture.poller.tasks.iter().map(rests).collect::<Vec<_>>(), [false, true, false]);
}

#[test]
fn wake_ups_for_nothing_are_charged_to_the_budget_of_the_disk() {
    let now = later();
    let mut task = notified(|turn| turn.is_multiple_of(4), Some("5%"), now);
    // The credit, and the shortest rest that is taken: half a millisecond of work each, at 10 us a
    // sleep.
    let counted = sleeps(&mut task, 1000, now);
    assert!((60..=75).contains(&counted), "{counted}");
    assert_eq!(sleeps(&mut notified(|_| true, Some("5%"), now), 1000, now), 1000);
}

/// A queue that has nothing to do, and is to be polled for this long.
struct Idle(Duration);

impl Task for Idle {
    does_not_end!();

    fn issue(&mut self, _bytes_max: u64) -> Option<Work> {
        None
    }

    fn begin_idle(&mut self, _now: Instant) -> Duration {
        self.0
    }

    fn park(&mut self) -> bool {
        false
    }

    fn next_look(&mut self) -> NextLook {
        NextLook::OnWake
    }

    fn unpark(&mut self) -> bool {
        false
    }
}

struct Notified {
    finds: Box<dyn Fn(u32) -> bool>,
    at: Instant,
    turns: u32,
}

impl Task for Notified {
    does_not_end!();

    fn issue(&mut self, bytes_max: u64) -> Option<Work> {
        self.turns += 1;
        let work = Work { found: self.at, time: Duration::ZERO, bytes: 0 };
        (bytes_max == 0 || (self.finds)(self.turns)).then_some(work)
    }

    fn begin_idle(&mut self, _now: Instant) -> Duration {
        Duration::ZERO
    }

    fn park(&mut self) -> bool {
        false
    }

    fn next_look(&mut self) -> NextLook {
        NextLook::OnWake
    }

    fn next_completion(&mut self) -> NextLook {
        NextLook::At(self.at)
    }

    fn unpark(&mut self) -> bool {
        true
    }
}

fn spec(disk: u32) -> QueueSpec {
    let origin = Origin::Queue { disk, queue: 0 };
    QueueSpec { origin, ..spec_of(Arc::new(Held::default()), PollMode::Never) }
}

pub struct Fixture {
    pub poller: Poller,
    turns: Vec<Arc<AtomicU32>>,
    _ended: Vec<Receiver<Box<dyn Part>>>,
}

impl Fixture {
    /// A poller with one queue for each of `disks`.
    pub fn new(disks: &[u32], time: Duration) -> Self {
        let poller = Poller::new(PollerOptions::default()).unwrap();
        let mut fixture = Self { poller, turns: Vec::new(), _ended: Vec::new() };
        for disk in disks {
            let turns = Arc::<AtomicU32>::default();
            let queue = Box::new(Busy { time, bytes: 0, turns: Arc::clone(&turns) });
            fixture.turns.push(turns);
            fixture.add(*disk, queue);
        }
        fixture
    }

    pub fn add(&mut self, disk: u32, queue: Box<dyn Task>) {
        let (ended, has_ended) = sync_channel(1);
        let orders = Arc::new(Orders::new(Arc::clone(&self.poller.inbox)));
        self.poller.tasks.push(Scheduled::new(queue, spec(disk), orders, ended));
        self.poller.count_tasks();
        self._ended.push(has_ended);
    }

    fn turns(&self) -> Vec<u32> {
        self.turns.iter().map(|turns| turns.load(Ordering::Relaxed)).collect()
    }
}

/// Regression: a neighbour's median went from 15 us to 382 ms beside a disk with 64 queues: each of
/// them had a turn before it.
#[test]
fn a_disk_with_many_queues_has_as_much_of_a_pass_as_one_with_a_single_queue() {
    let disks: Vec<u32> = [0; 64].into_iter().chain([1]).collect();
    let mut fixture = Fixture::new(&disks, Duration::from_micros(60));
    for _ in 0..650 {
        assert!(fixture.poller.turn().is_some());
    }
    let turns = fixture.turns();
    assert_eq!(turns[64], 650, "the neighbour has one in each pass");
    assert_eq!(turns[..64].iter().sum::<u32>(), 2 * 650, "two turns are 120 us");
    let (least, most) = (turns[..64].iter().min(), turns[..64].iter().max());
    assert!(least >= Some(&10) && most <= Some(&30), "{turns:?}");
}

#[test]
fn queues_of_one_disk_have_all_of_their_thread() {
    let mut fixture = Fixture::new(&[7; 4], Duration::from_millis(1));
    (0..10).for_each(|_| assert!(fixture.poller.turn().is_some()));
    assert_eq!(fixture.turns(), [10; 4]);
}

/// Regression: a cold queue had one turn in 16 passes, and the first index advanced by one in each
/// pass, so with 4 queues the two were in step: a queue with new work always came after a busy one
/// of its disk, and never had a turn with bytes left.
#[test]
fn a_queue_that_has_been_idle_has_its_part_beside_a_busy_one_of_its_disk() {
    for cold in [1, 2, 3] {
        for phase in 0..4 {
            let mut fixture = Fixture::new(&[0, 0, 0, 1], Duration::from_micros(200));
            (0..phase).for_each(|_| assert!(fixture.poller.turn().is_some()));
            fixture.poller.tasks[cold].empty_turns_for_test(1000);
            fixture.poller.look_at_all = false;
            let before = fixture.turns()[cold];
            (0..1000).for_each(|_| assert!(fixture.poller.turn().is_some()));
            let had = fixture.turns()[cold] - before;
            assert!(had > 100, "queue {cold}, phase {phase}: {had} of 1000 passes");
        }
    }
}
