//! Queues whose form changes while they work, are stopped, or cannot run in the other one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use flowstone_block::{Channel, Errno, Geometry, Layer, Origin, QueueContext, SectorCount};
use flowstone_fileio::{DirectChoice, EngineChoice};
use flowstone_frontend::vhost_user::QueueRunner;
use flowstone_layers::Null;
use flowstone_testkit::load::LoadOptions;

use super::*;
use crate::PollMode;
use crate::config::DiskConfig;
use crate::fake_guest::{Asks, FakeGuest};
use crate::idle_cpus::IdleCpus;
use crate::pollers::form_changer::{Watched, look_at_all};
use crate::pollers::load_watch::Look;
use crate::pollers::{PollerChoice, PollersConfig};
use crate::served_disk::{QUEUES, Served, disk, layer_of, load, on_disk};

fn places(choice: PollerChoice) -> Arc<Places> {
    Arc::new(Places::new(&PollersConfig { choice, ..PollersConfig::default() }).unwrap())
}

fn spec(layer: Arc<dyn Layer>, disk: u32, queue: u16) -> QueueSpec {
    let (counters, origin) = (Arc::default(), Origin::Queue { disk, queue });
    QueueSpec { layer, origin, counters, poll: PollMode::Auto, budget: None }
}

fn own() -> OwnThreads {
    OwnThreads { name: "queue".into(), cpus: [None; 2] }
}

type Running = Arc<Mutex<Vec<Option<PlacedQueue>>>>;

/// Runs a disk's queues so that the test can change their form.
struct Runner {
    places: Arc<Places>,
    layer: Arc<dyn Layer>,
    running: Running,
}

impl QueueRunner for Runner {
    fn start(&mut self, index: usize, queue: VirtQueue) -> io::Result<()> {
        let spec = spec(Arc::clone(&self.layer), 0, index as u16);
        let places = Arc::clone(&self.places);
        let queue = PlacedQueue::run(places, Form::Fused, Box::new(queue), spec, own())?;
        self.running.lock().unwrap()[index] = Some(queue);
        Ok(())
    }

    fn begin_stop(&mut self, index: usize) {
        if let Some(queue) = &self.running.lock().unwrap()[index] {
            queue.begin_stop();
        }
    }

    fn stop(&mut self, index: usize) -> Option<u16> {
        let queue = self.running.lock().unwrap()[index].take();
        queue?.stop().map(|queue| queue.next_avail())
    }
}

fn serve(config: &DiskConfig, choice: PollerChoice) -> (Served, Running) {
    let (layer, running) = (layer_of(0, config), Running::default());
    running.lock().unwrap().resize_with(usize::from(QUEUES), || None);
    let (below, theirs) = (Arc::clone(&layer), Arc::clone(&running));
    let runner = Runner { places: places(choice), layer: below, running: theirs };
    (Served::new(config, layer, Box::new(runner)), running)
}

/// Changes the form of every queue that runs until the load ends. Returns how often one has changed.
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

/// The thread that looks at loads tries two threads for a queue that fills its own, and decides.
#[test]
fn a_queue_that_fills_its_thread_is_tried_on_two() {
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let config = disk(memory.path(), "full.raw", EngineChoice::Auto, DirectChoice::Auto);
    let (served, running) = serve(&config, PollerChoice::PerQueue);
    let (tried, idle) = (AtomicU32::new(0), IdleCpus::made_up(rustix::thread::CpuSet::MAX_CPU));
    thread::scope(|scope| {
        scope.spawn(|| {
            while tried.load(Ordering::Relaxed) == 0 {
                let mut options = LoadOptions::new(&served.socket).workload("write").iodepth(16);
                // Copies: the driver has nothing to do meanwhile.
                (options.block_bytes, options.client.queues) = (1 << 20, 1);
                assert_eq!(flowstone_testkit::load::run(&options.ops(4000)).unwrap().errors, 0);
            }
        });
        let (deadline, mut changes) = (Instant::now() + Duration::from_secs(60), 0);
        let watched = Mutex::new(Vec::<Watched>::new());
        while changes == 0 && Instant::now() < deadline {
            let queue = running.lock().unwrap()[0].as_ref().map(|it| Arc::clone(&it.0));
            let is_known = !watched.lock().unwrap().is_empty();
            watched.lock().unwrap().extend(queue.iter().filter(|_| !is_known).map(Watched::new));
            let began = Instant::now();
            thread::sleep(Duration::from_millis(30));
            look_at_all(&watched, &idle, Look { time: began.elapsed(), is_stale: false });
            changes = queue.map_or(0, |it| it.counters().form_changes.load(Ordering::Relaxed));
        }
        tried.store(1, Ordering::Relaxed);
        assert!(changes > 0, "it is never tried");
    });
}

/// A stop that came while the form changed found nothing to stop, and the queue began to run again.
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

/// A disk whose next channels can be made, or cannot.
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
fn run(choice: PollerChoice, form: Form, makes: &Arc<Makes>) -> (FakeGuest, PlacedQueue) {
    let (guest, queue) = FakeGuest::new(Asks::Flush);
    let (places, spec) = (places(choice), spec(Arc::clone(makes) as Arc<dyn Layer>, 0, 0));
    (guest, PlacedQueue::run(places, form, Box::new(queue), spec, own()).unwrap())
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
            let deadline = Instant::now() + Duration::from_secs(20);
            while runs_again && !done() {
                assert!(Instant::now() < deadline, "{form:?} does not go on");
                thread::yield_now();
            }
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
