//! Queues whose form changes while they work, are stopped, or cannot run in the other form.

use std::collections::{BTreeSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use flowstone_block::{
    Channel, Errno, FrontHalf, Geometry, GuestQueue, Layer, Origin, QueueContext, QueueRunner,
    SectorCount,
};
use flowstone_fileio::{DirectChoice, EngineChoice};
use flowstone_frontend::vhost_user::VirtQueue;
use flowstone_layers::Null;
use flowstone_testkit::load::LoadOptions;
use flowstone_testkit::{wait_for, wait_until};

use super::*;
use crate::PollMode;
use crate::fake_guest::{Asks, FakeGuest, Unlimited, spec_of};
use crate::held_disk::Held;
use crate::idle_cpus::IdleCpus;
use crate::pollers::form_changer::{Watched, look_at_all};
use crate::pollers::load_watch::Look;
use crate::pollers::{PollerChoice, PollersConfig};
use crate::queue::{Whole, whole};
use crate::served_disk::{DiskConfig, QUEUES, Served, disk, layer_of, load, on_disk};

fn places(choice: PollerChoice) -> Arc<Places> {
    Arc::new(Places::new(&PollersConfig { choice, ..PollersConfig::default() }).unwrap())
}

fn spec(layer: Arc<dyn Layer>, disk: u32, queue: u16) -> QueueSpec {
    QueueSpec { origin: Origin::Queue { disk, queue }, ..spec_of(layer, PollMode::Auto) }
}

fn stopped(queue: QueueHandle) -> Option<VirtQueue> {
    Some(whole::<VirtQueue, Unlimited>(queue.stop()?)?.queue)
}

type Running = Arc<Mutex<Vec<Option<QueueHandle>>>>;

/// Runs a disk's queues so that the test can change their form.
struct Runner {
    places: Arc<Places>,
    layer: Arc<dyn Layer>,
    running: Running,
}

impl QueueRunner<VirtQueue> for Runner {
    fn start(&mut self, index: usize, queue: VirtQueue) -> io::Result<()> {
        let spec = spec(Arc::clone(&self.layer), 0, index as u16);
        let places = Arc::clone(&self.places);
        let queue = Box::new(Whole { queue, throttle: Arc::new(Unlimited) });
        let queue = QueueHandle::run(places, Form::Fused, queue, spec)?;
        self.running.lock().unwrap()[index] = Some(queue);
        Ok(())
    }

    fn begin_stop(&mut self, index: usize) {
        if let Some(queue) = &self.running.lock().unwrap()[index] {
            queue.begin_stop();
        }
    }

    fn stop(&mut self, index: usize) -> Option<VirtQueue> {
        let queue = self.running.lock().unwrap()[index].take();
        stopped(queue?)
    }
}

fn serve(config: &DiskConfig, choice: PollerChoice) -> (Served, Running) {
    let (layer, running) = (layer_of(config), Running::default());
    running.lock().unwrap().resize_with(usize::from(QUEUES), || None);
    let (below, theirs) = (Arc::clone(&layer), Arc::clone(&running));
    let runner = Runner { places: places(choice), layer: below, running: theirs };
    (Served::new(config, layer, Box::new(runner)), running)
}

/// Changes the form of every running queue until the load ends. Returns the number of changes.
fn change_until(running: &Running, over: impl Fn() -> bool) -> u32 {
    let mut changes = 0;
    for round in 0.. {
        let form = if round % 2 == 0 { Form::Split } else { Form::Fused };
        for index in 0..usize::from(QUEUES) {
            let queue = running.lock().unwrap()[index].as_ref().map(|it| Arc::clone(&it.0));
            changes += u32::from(queue.is_some_and(|queue| queue.change(form)));
        }
        if over() {
            break;
        }
    }
    changes
}

#[test]
fn queues_change_their_form_hundreds_of_times_under_load() {
    use PollerChoice as C;
    let dir = on_disk();
    for (name, choice) in
        [("a.raw", C::PerQueue), ("b.qcow2", C::Count(2)), ("c.flow", C::PerQueue)]
    {
        let config = disk(dir.path(), name, EngineChoice::Auto, DirectChoice::Auto);
        let (served, running) = serve(&config, choice);
        let changed = AtomicU32::new(0);
        let enough = || changed.load(Ordering::Relaxed) >= 200;
        thread::scope(|scope| {
            let load = scope.spawn(|| {
                for seed in 1.. {
                    load(&served.socket, 2000, seed);
                    if enough() {
                        break;
                    }
                }
            });
            while !load.is_finished() {
                let done = change_until(&running, || load.is_finished() || !enough());
                changed.fetch_add(done, Ordering::Relaxed);
            }
        });
        assert!(enough(), "{name}: {changed:?} changes");
    }
}

/// The form changer tries two threads for a queue that fills its own, and decides. The looks use
/// simulated time, which advances while the queue works, so that the queue fills its thread on a
/// busy machine too.
#[test]
fn a_queue_that_fills_its_thread_is_tried_on_two() {
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let config = disk(memory.path(), "full.raw", EngineChoice::Auto, DirectChoice::Auto);
    let (served, running) = serve(&config, PollerChoice::PerQueue);
    let (tried, idle) =
        (AtomicBool::new(false), IdleCpus::made_up(rustix::thread::CpuSet::MAX_CPU));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !tried.load(Ordering::Relaxed) {
                let mut options = LoadOptions::new(&served.socket).workload("write").iodepth(16);
                // Copies: the driver has nothing to do meanwhile.
                (options.block_bytes, options.client.queues) = (1 << 20, 1);
                assert_eq!(flowstone_testkit::load::run(&options.ops(4000)).unwrap().errors, 0);
            }
        });
        let _over = Over(&tried);
        let watched = Mutex::new(Vec::<Watched>::new());
        let mut worked_ns = 0;
        wait_until("it is tried", || {
            let Some(queue) = running.lock().unwrap()[0].as_ref().map(|it| Arc::clone(&it.0))
            else {
                return false;
            };
            let before = worked_ns;
            worked_ns = queue.counters().work_ns();
            if watched.lock().unwrap().is_empty() {
                watched.lock().unwrap().push(Watched::new(&queue));
            } else if worked_ns > before {
                let time = Duration::from_nanos((worked_ns - before) * 10 / 9);
                look_at_all(&watched, &idle, Look { time, is_stale: false });
            }
            queue.counters().form_changes.load(Ordering::Relaxed) > 0
        });
    });
}

/// Sets the flag when dropped, also if the test fails.
struct Over<'flag>(&'flag AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One poller suffices for idle queues; queues that fill theirs get more, until their load drops.
/// The counters are set by the test; the balancer's thread is the real one.
#[test]
fn pollers_come_and_go_with_the_load() {
    let (choice, cpus) = (PollerChoice::Auto, "0,0,0".parse().unwrap());
    let config = PollersConfig { choice, cpus: Some(cpus), ..PollersConfig::default() };
    let places = Arc::new(Places::new(&config).unwrap());
    let run = |disk| {
        let (guest, queue) = FakeGuest::new(Asks::Flush);
        let spec = QueueSpec { poll: PollMode::Never, ..spec(Arc::new(NULL), disk, 0) };
        let places = Arc::clone(&places);
        (guest, QueueHandle::run(places, Form::Fused, Box::new(queue), spec).unwrap())
    };
    let queues: Vec<(FakeGuest, QueueHandle)> = (0..4).map(run).collect();
    let in_use = || {
        let place = |queue: &QueueHandle| match &*queue.0.state() {
            State::Runs(QueueTasks { first, back: None, .. }) => first.orders().place(),
            _ => panic!("it runs on one thread"),
        };
        // A moving queue counts at its origin.
        queues.iter().map(|(_, queue)| place(queue).0).collect::<BTreeSet<usize>>().len()
    };
    assert_eq!(in_use(), 1);
    wait_until("there are as many as there may be", || {
        places.activity.woke();
        queues.iter().for_each(|(_, queue)| fill(queue));
        in_use() == 3
    });
    wait_until("one is enough", || {
        places.activity.woke();
        in_use() == 1
    });
    assert!(queues.into_iter().all(|(_, queue)| queue.stop().is_some()));
}

/// Regression: a stop during a form change found nothing to stop, and the queue began to run again.
#[test]
fn a_queue_that_is_stopped_while_its_form_changes_stops() {
    let dir = on_disk();
    let config = disk(dir.path(), "stopped.flow", EngineChoice::Auto, DirectChoice::Auto);
    let (served, running) = serve(&config, PollerChoice::PerQueue);
    thread::scope(|scope| {
        // Each one connects, and stops its queues when it goes.
        let loads = scope.spawn(|| (0..60).for_each(|seed| _ = load(&served.socket, 40, seed)));
        assert!(change_until(&running, || loads.is_finished()) > 0);
    });
    assert!(running.lock().unwrap().iter().all(Option::is_none));
}

/// The thread holds the queue's lock and the queue itself when it panics.
#[test]
fn a_queue_stops_when_the_thread_that_changes_its_form_panics() {
    for takes in [false, true] {
        let makes = Arc::new(Makes(Mutex::new([true].into())));
        let (_guest, queue) = run(PollerChoice::PerQueue, Form::Fused, &makes);
        let changeable = Arc::clone(&queue.0);
        let change = move || {
            let mut state = changeable.state();
            let _taken = takes.then(|| std::mem::replace(&mut *state, State::Over(None)));
            panic!("the mistake");
        };
        assert!(thread::spawn(change).join().is_err());
        assert_eq!(queue.stop().is_none(), takes);
    }
}

/// A disk for which the test decides which of the next channels can be opened.
struct Makes(Mutex<VecDeque<bool>>);

const NULL: Null = Null::new(SectorCount::new(1 << 12));

impl Layer for Makes {
    fn geometry(&self) -> Geometry {
        NULL.geometry()
    }

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        let can = self.0.lock().unwrap().pop_front().unwrap();
        if can { NULL.channel(context) } else { Err(Errno::MFILE.into()) }
    }
}

/// Runs a queue on such a disk.
fn run(choice: PollerChoice, form: Form, makes: &Arc<Makes>) -> (FakeGuest, QueueHandle) {
    let (guest, queue) = FakeGuest::new(Asks::Flush);
    let (places, spec) = (places(choice), spec(Arc::clone(makes) as Arc<dyn Layer>, 0, 0));
    (guest, QueueHandle::run(places, form, Box::new(queue), spec).unwrap())
}

#[test]
fn a_queue_that_cannot_run_in_another_form_keeps_its_own_or_is_given_back() {
    let choices = [PollerChoice::PerQueue, PollerChoice::Count(2)];
    for (choice, form) in choices.iter().flat_map(|it| [(*it, Form::Fused), (*it, Form::Split)]) {
        for runs_again in [true, false] {
            let makes = Arc::new(Makes(Mutex::new([true, false, runs_again].into())));
            let (mut guest, queue) = run(choice, form, &makes);
            // Without a notification: it is found when the queue runs again.
            guest.offer(0);
            assert!(!queue.0.change(form.other()), "there is no channel for it");
            let done = || queue.0.counters().all_requests() == 1;
            wait_until("it goes on", || !runs_again || done());
            assert_eq!(queue.0.counters().is_split.load(Ordering::Relaxed), form == Form::Split);
            assert!(queue.stop().is_some(), "its state is known, also if it runs nowhere");
        }
    }
}

#[test]
fn a_queue_that_nothing_holds_any_more_ends_and_does_not_come_back_to_life() {
    let makes = Arc::new(Makes(Mutex::new([true].into())));
    let (_guest, queue) = run(PollerChoice::PerQueue, Form::Fused, &makes);
    let changeable = Arc::clone(&queue.0);
    drop(queue);
    assert_eq!(Arc::strong_count(&makes), 2, "that of its description, and ours: no thread's");
    assert!(!changeable.change(Form::Split));
}

/// Counts a look's worth of work for a queue that fills its thread.
fn fill(queue: &QueueHandle) {
    queue.0.counters().submit.record(LOOK.time * 9 / 10);
    queue.0.counters().requests[0].fetch_add(1000, Ordering::Relaxed);
}

const LOOK: Look = Look { time: Duration::from_millis(100), is_stale: false };

fn idle_host() -> IdleCpus {
    IdleCpus::made_up(rustix::thread::CpuSet::MAX_CPU)
}

/// Regression: it ran again and took requests without its disk's limits, which end with the order
/// to stop.
#[test]
fn a_queue_that_has_been_told_to_stop_does_not_run_again_in_another_form() {
    let makes = Arc::new(Makes(Mutex::new([true, true].into())));
    let (mut guest, queue) = run(PollerChoice::PerQueue, Form::Fused, &makes);
    queue.begin_stop();
    guest.offer(0);
    queue.0.change(Form::Split);
    thread::sleep(Duration::from_millis(100));
    assert_eq!(queue.0.counters().all_requests(), 0, "it takes requests after the order to stop");
    let next = stopped(queue).map(|queue| queue.next_avail());
    assert_eq!(next, Some(0));
}

/// Regression: a brief lack of file descriptors during a form change hung a guest's queue until its
/// next reset.
#[test]
fn a_queue_that_could_run_in_neither_form_is_tried_again() {
    let makes = Arc::new(Makes(Mutex::new([true, false, false, false, false, true].into())));
    let (mut guest, queue) = run_over(Arc::clone(&makes) as Arc<dyn Layer>);
    let watched = Mutex::new(vec![Watched::new(&queue.0)]);
    guest.offer(0);
    wait_until("it runs", || queue.0.counters().all_requests() == 1);
    for _ in 0..5 {
        fill(&queue);
        look_at_all(&watched, &idle_host(), LOOK);
    }
    wait_until("both forms were tried", || makes.0.lock().unwrap().len() <= 3);
    guest.offer(1);
    let done = queue.0.counters().all_requests();
    wait_until("it runs again", || {
        let looks_again = look_at_all(&watched, &idle_host(), LOOK);
        assert!(looks_again || makes.0.lock().unwrap().is_empty());
        queue.0.counters().all_requests() != done
    });
    // A failed change is not retried soon: there are no more channels here.
    for _ in 0..50 {
        fill(&queue);
        look_at_all(&watched, &idle_host(), LOOK);
    }
    assert!(queue.stop().is_some());
}

/// A queue that never sleeps: its guest does not notify.
fn eager(layer: Arc<dyn Layer>) -> QueueSpec {
    QueueSpec { poll: PollMode::Always, ..spec(layer, 0, 0) }
}

fn run_over(layer: Arc<dyn Layer>) -> (FakeGuest, QueueHandle) {
    let (guest, queue) = FakeGuest::new(Asks::Flush);
    let places = places(PollerChoice::PerQueue);
    let spec = eager(layer);
    (guest, QueueHandle::run(places, Form::Fused, Box::new(queue), spec).unwrap())
}

/// Runs queues of two disks that fill their threads; the first disk hangs while the form of its
/// queue is about to change. Passes the second disk's queue and the watched queues to `then`.
fn beside_a_hung_disk(then: impl FnOnce(QueueHandle, &Mutex<Vec<Watched>>)) {
    let hangs = Held::default();
    let (mut hung_guest, hung) = run_over(Arc::new(hangs.clone()));
    let other = Arc::new(Makes(Mutex::new([true, true, true].into())));
    let (_guest, queue) = run_over(Arc::clone(&other) as Arc<dyn Layer>);
    hung_guest.offer(0);
    wait_until("it hangs", || hangs.has_one.load(Ordering::Acquire));
    let watched = Mutex::new(vec![Watched::new(&hung.0), Watched::new(&queue.0)]);
    for _ in 0..4 {
        fill(&hung);
        fill(&queue);
        look_at_all(&watched, &idle_host(), LOOK);
    }
    fill(&hung);
    fill(&queue);
    thread::scope(|scope| {
        let changer = scope.spawn(|| {
            look_at_all(&watched, &idle_host(), LOOK);
        });
        thread::sleep(Duration::from_millis(200));
        let caught = std::panic::catch_unwind(AssertUnwindSafe(|| then(queue, &watched)));
        hangs.go_on();
        changer.join().unwrap();
        if let Err(panic) = caught {
            std::panic::resume_unwind(panic);
        }
    });
    assert!(hung.stop().is_some());
}

/// Regression: the image of a removed disk stayed open and locked for as long as another disk hung.
#[test]
fn a_disk_is_let_go_while_the_form_of_another_disks_queue_waits() {
    beside_a_hung_disk(|queue, _| {
        let layer = Arc::clone(&queue.0);
        let weak = Arc::downgrade(&layer);
        drop(layer);
        assert!(queue.stop().is_some());
        // The form changer may hold a reference for a moment, but not while the other disk hangs.
        wait_until("nothing of it holds its disk", || weak.strong_count() == 0);
    });
}

/// Regression: while one disk hung, all queues of the daemon kept their form, even idle ones on two
/// threads.
#[test]
fn queues_change_their_form_while_another_disk_hangs() {
    beside_a_hung_disk(|queue, _| {
        let changed = || queue.0.counters().form_changes.load(Ordering::Relaxed) == 1;
        wait_until("it does not wait for the other disk", changed);
        assert!(queue.stop().is_some());
    });
}

/// Number of entries in a directory of /proc/self.
fn entries(what: &str) -> usize {
    std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count()
}

#[test]
fn many_changes_leave_no_thread_and_no_descriptor_behind() {
    for choice in [PollerChoice::PerQueue, PollerChoice::Count(2)] {
        let (mut guest, queue) = FakeGuest::new(Asks::Flush);
        let spec = eager(Arc::new(NULL));
        let queue = QueueHandle::run(places(choice), Form::Fused, Box::new(queue), spec).unwrap();
        let mut form = Form::Split;
        let mut round = |chain: u16| {
            guest.offer(chain % crate::fake_guest::CHAINS);
            assert!(queue.0.change(form));
            form = form.other();
            let wanted = u64::from(chain) + 1;
            wait_until("it is done", || queue.0.counters().all_requests() == wanted);
        };
        (0..20).for_each(&mut round);
        let before = (entries("fd"), entries("task"));
        (20..420).for_each(&mut round);
        // Other tests run in this process.
        wait_for(&format!("about {before:?}"), || {
            let after = (entries("fd"), entries("task"));
            let is_like_before = after.0 <= before.0 + 60 && after.1 <= before.1 + 60;
            if is_like_before { Ok(()) } else { Err(after) }
        });
        assert!(queue.stop().is_some());
    }
}

/// The driver breaks its queue; then its form changes.
#[test]
fn a_broken_queue_stays_broken_when_its_form_changes() {
    for form in [Form::Fused, Form::Split] {
        wait_until("it is broken before it stops", || stays_broken(form));
    }
}

/// Returns whether its thread has met the broken descriptor.
fn stays_broken(form: Form) -> bool {
    let (mut guest, queue) = FakeGuest::new(Asks::Flush);
    let spec = eager(Arc::new(NULL));
    let places = places(PollerChoice::PerQueue);
    let queue = QueueHandle::run(places, form, Box::new(queue), spec).unwrap();
    guest.offer(0);
    wait_until("it runs", || queue.0.counters().all_requests() == 1);
    // An invalid descriptor.
    guest.offer(1000);
    thread::sleep(Duration::from_millis(50));
    for _ in 0..4 {
        assert!(queue.0.change(form.other()) && queue.0.change(form));
    }
    guest.offer(1);
    thread::sleep(Duration::from_millis(50));
    assert_eq!(queue.0.counters().all_requests(), 1);
    let queue = stopped(queue).unwrap();
    assert_eq!(queue.next_avail(), 1);
    queue.front().is_broken()
}

/// The monitor stops all queues of a device: otherwise the others would continue while one of them
/// waits for its disk.
#[test]
fn an_order_to_stop_does_not_wait_for_a_form_that_changes_on_a_hung_disk() {
    let hangs = Held::default();
    let (mut guest, queue) = run_over(Arc::new(hangs.clone()));
    guest.offer(0);
    wait_until("it hangs", || hangs.has_one.load(Ordering::Acquire));
    let told = AtomicBool::new(false);
    thread::scope(|scope| {
        let changes = Arc::clone(&queue.0);
        let changer = scope.spawn(move || changes.change(Form::Split));
        wait_until("it changes", || queue.0.state.try_lock().is_err());
        scope.spawn(|| {
            queue.begin_stop();
            told.store(true, Ordering::Release);
        });
        let told = std::panic::catch_unwind(AssertUnwindSafe(|| {
            wait_until("the monitor does not wait", || told.load(Ordering::Acquire));
        }));
        hangs.go_on();
        told.unwrap();
        assert!(!changer.join().unwrap(), "it runs again after the order to stop");
    });
    assert!(queue.stop().is_some());
}

/// If the image were closed only some time after its disk was removed, the next owner could not
/// open it at once.
#[test]
fn a_queue_that_has_stopped_holds_its_disk_no_longer() {
    for choice in [PollerChoice::Count(1), PollerChoice::PerQueue] {
        let places = places(choice);
        for round in 0..300 {
            let layer = Arc::new(NULL);
            let (_guest, queue) = FakeGuest::new(Asks::Flush);
            let form = if round % 2 == 0 { Form::Fused } else { Form::Split };
            let (spec, queue) = (spec(Arc::clone(&layer) as _, 0, 0), Box::new(queue));
            let queue = QueueHandle::run(Arc::clone(&places), form, queue, spec).unwrap();
            assert!(queue.stop().is_some());
            assert_eq!(Arc::strong_count(&layer), 1, "{choice:?} {form:?} {round}");
        }
    }
}

/// Returns the form by the number of its threads, not by the counters.
fn form_of(queue: &QueueHandle) -> Option<Form> {
    match &*queue.0.state() {
        State::Runs(tasks) if tasks.back.is_some() => Some(Form::Split),
        State::Runs(_) => Some(Form::Fused),
        State::Over(_) => None,
    }
}

#[test]
fn a_queue_runs_in_the_form_that_is_counted() {
    for form in [Form::Fused, Form::Split] {
        let makes = Arc::new(Makes(Mutex::new([true, false, true, true].into())));
        let (_guest, queue) = run(PollerChoice::PerQueue, form, &makes);
        let is_split = || queue.0.counters().is_split.load(Ordering::Relaxed);
        assert!(!queue.0.change(form.other()));
        assert_eq!((form_of(&queue), is_split()), (Some(form), form == Form::Split));
        assert!(queue.0.change(form.other()));
        assert_eq!((form_of(&queue), is_split()), (Some(form.other()), form == Form::Fused));
    }
}

#[test]
fn a_queue_that_runs_nowhere_is_given_back_also_after_another_change() {
    let makes = Arc::new(Makes(Mutex::new([true, false, false].into())));
    let (_guest, queue) = run(PollerChoice::PerQueue, Form::Fused, &makes);
    assert!(!queue.0.change(Form::Split) && !queue.0.change(Form::Split));
    assert!(queue.stop().is_some());
}

/// The split form is for using two pollers.
#[test]
fn halves_run_on_two_shared_pollers_after_a_change() {
    let (_guest, queue) = FakeGuest::new(Asks::Flush);
    // A choice with which one poller is used under little load.
    let (choice, cpus) = (PollerChoice::Auto, "0,0".parse().unwrap());
    let config = PollersConfig { choice, cpus: Some(cpus), ..PollersConfig::default() };
    let (spec, places) = (eager(Arc::new(NULL)), Arc::new(Places::new(&config).unwrap()));
    let queue = QueueHandle::run(places, Form::Fused, Box::new(queue), spec).unwrap();
    for _ in 0..3 {
        assert!(queue.0.change(Form::Split));
        if let State::Runs(QueueTasks { first: front, back: Some(back), .. }) = &*queue.0.state() {
            assert_ne!(front.orders().place().0, back.orders().place().0);
        }
        assert!(queue.0.change(Form::Fused));
    }
    assert!(queue.stop().is_some());
}

/// Work done while the thread slept is not the current load.
#[test]
fn stale_looks_change_nothing_and_queues_that_have_ended_are_forgotten() {
    let (_guest, queue) = run_over(Arc::new(NULL));
    let watched = Mutex::new(vec![Watched::new(&queue.0)]);
    for _ in 0..20 {
        fill(&queue);
        assert!(look_at_all(&watched, &idle_host(), Look { is_stale: true, ..LOOK }));
    }
    assert_eq!(queue.0.counters().form_changes.load(Ordering::Relaxed), 0);
    drop(queue);
    assert!(!look_at_all(&watched, &idle_host(), LOOK));
    assert!(watched.lock().unwrap().is_empty());
}

/// Otherwise a booting guest would wait for another guest's disk.
#[test]
fn queues_are_added_while_a_form_changes_on_a_hung_disk() {
    beside_a_hung_disk(|queue, watched| {
        assert!(watched.try_lock().is_ok(), "the list is locked");
        assert!(queue.stop().is_some());
    });
}

#[test]
fn a_queue_whose_threads_may_run_on_one_cpu_only_has_no_place_for_a_second_one() {
    for (choice, cpus, has_place) in [
        (PollerChoice::PerQueue, [None, None], true),
        (PollerChoice::PerQueue, [Some(0), Some(1)], true),
        (PollerChoice::PerQueue, [Some(0), Some(0)], false),
        (PollerChoice::Count(1), [None, None], false),
        (PollerChoice::Count(2), [None, None], true),
        // It has threads of its own.
        (PollerChoice::Count(1), [Some(0), Some(1)], true),
        (PollerChoice::Count(2), [Some(0), Some(0)], false),
    ] {
        let spec = QueueSpec { cpus, ..spec(Arc::new(NULL), 0, 0) };
        let queue = FakeGuest::new(Asks::Flush).1;
        let queue = QueueHandle::run(places(choice), Form::Fused, Box::new(queue), spec);
        let queue = queue.unwrap();
        assert_eq!(queue.0.cpus_of_second().is_some(), has_place, "{choice:?} {cpus:?}");
    }
}
