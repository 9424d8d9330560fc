//! Queues of real disks, driven over real sockets, on pollers that share threads.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use flowstone_block::{
    Channel, Completion, Layer, Origin, QueueContext, QueueRunner, Request, Sector,
};
use flowstone_fileio::{DirectChoice, EngineChoice};
use flowstone_frontend::vhost_user::VirtQueue;
use flowstone_testkit::load::LoadOptions;
use flowstone_testkit::wait_until;

use super::*;
use crate::PollMode;
use crate::counters::QueueCounters;
use crate::fake_guest::{Unlimited, spec_of};
use crate::queue::{Whole, whole};
use crate::served_disk::{DiskConfig, QUEUES, Served, disk, layer_of, load, on_disk};
use crate::task::QueueSpec;

/// Calls of a queue that does not end and accounts nothing.
macro_rules! does_not_end {
    () => {
        fn is_leaving(&self) -> bool {
            false
        }

        fn is_over(&mut self) -> bool {
            false
        }

        fn count_looking(&self, _time: Duration) {}

        fn count_sleep(&self, _time: Duration) {}

        fn finish(self: Box<Self>) -> Box<dyn Part> {
            unreachable!("it does not end")
        }
    };
}

/// The same of one that is never idle.
macro_rules! is_never_idle {
    () => {
        does_not_end!();

        fn begin_idle(&mut self, _now: Instant) -> Duration {
            Duration::ZERO
        }

        fn park(&mut self) -> bool {
            true
        }

        fn next_look(&mut self) -> NextLook {
            NextLook::Now
        }

        fn unpark(&mut self) -> bool {
            false
        }
    };
}

mod death;
mod fairness;
mod passes;

/// Running queues by disk and number, on pollers that all disks share.
struct Shared {
    pollers: Vec<PollerThread>,
    running: Mutex<HashMap<(u32, usize), TaskHandle>>,
}

impl Shared {
    fn new(pollers: usize) -> Arc<Self> {
        let poller = |index| {
            let options = PollerOptions { index, ..PollerOptions::default() };
            PollerThread::spawn(format!("poller{index}"), options).unwrap()
        };
        Arc::new(Self { pollers: (0..pollers).map(poller).collect(), running: Mutex::default() })
    }

    /// Orders a queue to move to the next poller. Returns whether it will.
    fn move_one(&self, at: (u32, usize)) -> bool {
        let running = self.running.lock().unwrap();
        let Some(queue) = running.get(&at) else { return false };
        let next = (queue.orders().place().0 + 1) % self.pollers.len();
        queue.orders().move_to(self.pollers[next].inbox())
    }

    fn moves(&self) -> u64 {
        let moves = |poller: &PollerThread| poller.inbox().counters.moves.snapshot().count();
        self.pollers.iter().map(moves).sum()
    }
}

/// Runs one disk's queues on the shared pollers.
struct Runner {
    disk: u32,
    layer: Arc<dyn Layer>,
    /// Shared by all its queues.
    counters: Arc<QueueCounters>,
    shared: Arc<Shared>,
}

impl QueueRunner<VirtQueue> for Runner {
    fn start(&mut self, index: usize, queue: VirtQueue) -> io::Result<()> {
        let spec = QueueSpec {
            origin: Origin::Queue { disk: self.disk, queue: index as u16 },
            counters: Arc::clone(&self.counters),
            ..spec_of(Arc::clone(&self.layer), PollMode::Auto)
        };
        let queue = Box::new(Whole { queue, throttle: Arc::new(Unlimited) });
        let queue = self.shared.pollers[0].assign(queue, spec).map_err(|not_run| not_run.error)?;
        self.shared.running.lock().unwrap().insert((self.disk, index), queue);
        Ok(())
    }

    fn begin_stop(&mut self, index: usize) {
        if let Some(queue) = self.shared.running.lock().unwrap().get(&(self.disk, index)) {
            queue.begin_stop();
        }
    }

    fn stop(&mut self, index: usize) -> Option<VirtQueue> {
        let queue = self.shared.running.lock().unwrap().remove(&(self.disk, index))?;
        Some(whole::<VirtQueue, Unlimited>(queue.stop()?)?.queue)
    }
}

/// A disk that is being served.
struct Disk {
    served: Served,
    counters: Arc<QueueCounters>,
}

impl Disk {
    fn new(disk: u32, config: &DiskConfig, shared: &Arc<Shared>) -> Self {
        Self::over(disk, config, layer_of(config), shared)
    }

    /// Serves `layer` as a disk.
    fn over(disk: u32, config: &DiskConfig, layer: Arc<dyn Layer>, shared: &Arc<Shared>) -> Self {
        let (counters, shared) = (Arc::<QueueCounters>::default(), Arc::clone(shared));
        let (above, counted) = (Arc::clone(&layer), Arc::clone(&counters));
        let runner = Box::new(Runner { disk, layer, counters: counted, shared });
        Self { served: Served::new(config, above, runner), counters }
    }

    fn socket(&self) -> &Path {
        &self.served.socket
    }
}

/// Raw, qcow2 and log images, every engine, direct and through the page cache: no completion may be
/// missed while another queue waits.
#[test]
fn eight_queues_of_four_disks_share_one_thread() {
    use {DirectChoice as D, EngineChoice as E};
    let (dir, memory) = (on_disk(), tempfile::tempdir_in("/dev/shm").unwrap());
    let configs = [
        disk(dir.path(), "direct.raw", E::Uring, D::Auto),
        disk(memory.path(), "memory.raw", E::Auto, D::Auto),
        disk(dir.path(), "threads.qcow2", E::Sync, D::Off),
        disk(dir.path(), "direct.flow", E::Uring, D::Auto),
    ];
    let shared = Shared::new(1);
    let disks: Vec<Disk> =
        (0..).zip(&configs).map(|(n, config)| Disk::new(n, config, &shared)).collect();
    thread::scope(|scope| {
        for (seed, disk) in (1..).zip(&disks) {
            scope.spawn(move || load(disk.socket(), 3000, seed));
        }
        let all = usize::from(QUEUES) * disks.len();
        while shared.running.lock().unwrap().len() < all {
            thread::yield_now();
        }
    });
}

/// Dropping a runner with running queues joins their thread, so the queues have to end.
#[test]
fn a_queue_that_nobody_holds_any_more_ends() {
    let dir = on_disk();
    let config = disk(dir.path(), "dropped.raw", EngineChoice::Auto, DirectChoice::Auto);
    let shared = Shared::new(1);
    let disk = Disk::new(0, &config, &shared);
    let mut options = flowstone_testkit::ClientOptions::new(disk.socket());
    options.queues = usize::from(QUEUES);
    let client = flowstone_testkit::Client::connect(options).unwrap();
    while shared.running.lock().unwrap().len() < usize::from(QUEUES) {
        thread::yield_now();
    }
    shared.running.lock().unwrap().clear();
    drop((client, disk));
    // Waits for the thread.
    drop(Arc::into_inner(shared).expect("its disks are gone"));
}

/// A queue moves between threads while its guest writes, reads and flushes.
#[test]
fn a_queue_moves_a_thousand_times_under_load() {
    const MOVES: u64 = 1000;
    let dir = on_disk();
    let names = ["moving.raw", "moving.qcow2", "moving.flow"];
    let configs = names.map(|name| disk(dir.path(), name, EngineChoice::Auto, DirectChoice::Auto));
    let shared = Shared::new(2);
    let disks: Vec<Disk> =
        (0..).zip(&configs).map(|(n, config)| Disk::new(n, config, &shared)).collect();
    thread::scope(|scope| {
        for (seed, disk) in (1..).zip(&disks) {
            let shared = &shared;
            scope.spawn(move || {
                for round in 0.. {
                    load(disk.socket(), 2000, seed + 10 * round);
                    if shared.moves() >= MOVES {
                        break;
                    }
                }
            });
        }
        while shared.moves() < MOVES {
            for disk in 0..names.len() as u32 {
                (0..usize::from(QUEUES)).for_each(|queue| _ = shared.move_one((disk, queue)));
            }
            // The queues have work to do between two moves.
            thread::yield_now();
        }
    });
}

/// Regression: an order to stop a moving queue was sent to the poller that the queue had left.
#[test]
fn a_queue_that_is_stopped_while_it_moves_stops() {
    let dir = on_disk();
    let config = disk(dir.path(), "stopped.flow", EngineChoice::Auto, DirectChoice::Auto);
    let shared = Shared::new(3);
    let disk = Disk::new(0, &config, &shared);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // Each one connects, and stops its queues when it goes.
            (0..150).for_each(|seed| _ = load(disk.socket(), 40, seed));
            over.store(true, Ordering::Relaxed);
        });
        while !over.load(Ordering::Relaxed) {
            (0..usize::from(QUEUES)).for_each(|queue| _ = shared.move_one((0, queue)));
        }
    });
    assert!(shared.moves() > 0 && shared.running.lock().unwrap().is_empty());
}

/// The call in which a layer panics.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    Made,
    Submit,
    NextLook,
    Dropped,
}

/// A layer whose channel panics when one sector is requested, or when `mistake` is reached.
struct Panics {
    base: Arc<dyn Layer>,
    mistake: Mistake,
    /// Calls to a channel after its panic.
    later: Arc<AtomicU32>,
}

struct PanicsHere {
    base: Box<dyn Channel>,
    mistake: Mistake,
    asked: bool,
    panicked: bool,
    later: Arc<AtomicU32>,
}

const DEADLY: Sector = Sector::new(8);

impl Layer for Panics {
    fn geometry(&self) -> flowstone_block::Geometry {
        self.base.geometry()
    }

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        assert!(self.mistake != Mistake::Made, "the mistake");
        let (base, mistake) = (self.base.channel(context)?, self.mistake);
        let later = Arc::clone(&self.later);
        Ok(Box::new(PanicsHere { base, mistake, asked: false, panicked: false, later }))
    }
}

impl PanicsHere {
    fn reach(&mut self, place: Mistake) {
        self.later.fetch_add(u32::from(self.panicked), Ordering::Relaxed);
        self.panicked |= self.asked && self.mistake == place;
        assert!(!self.panicked, "the mistake");
    }
}

impl Channel for PanicsHere {
    fn submit(&mut self, request: Box<Request>) {
        self.asked |= request.op.extent().is_some_and(|extent| extent.start() == DEADLY);
        self.reach(Mistake::Submit);
        self.base.submit(request);
    }

    fn kick(&mut self) {
        self.base.kick();
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        self.later.fetch_add(u32::from(self.panicked), Ordering::Relaxed);
        self.base.reap(done);
    }

    fn next_look(&mut self) -> NextLook {
        self.reach(Mistake::NextLook);
        self.base.next_look()
    }

    fn retire(&mut self) -> bool {
        self.base.retire()
    }
}

impl Drop for PanicsHere {
    fn drop(&mut self) {
        assert!(!self.asked || self.mistake != Mistake::Dropped, "the mistake");
    }
}

/// Regression: a panic ended the thread, and with it the queues of all disks on it.
#[test]
fn a_queue_that_panics_takes_no_other_one_with_it() {
    for mistake in [Mistake::Made, Mistake::Submit, Mistake::NextLook, Mistake::Dropped] {
        let dir = on_disk();
        let configs = ["broken.raw", "neighbour.flow"]
            .map(|name| disk(dir.path(), name, EngineChoice::Auto, DirectChoice::Auto));
        let shared = Shared::new(1);
        let base = layer_of(&configs[0]);
        let later = Arc::<AtomicU32>::default();
        let layer = Arc::new(Panics { base, mistake, later: Arc::clone(&later) });
        let broken = Disk::over(0, &configs[0], layer, &shared);
        let neighbour = Disk::new(1, &configs[1], &shared);
        thread::scope(|scope| {
            let load = scope.spawn(|| load(neighbour.socket(), 3000, 1));
            let mut options = flowstone_testkit::ClientOptions::new(broken.socket());
            options.queues = usize::from(QUEUES);
            if mistake == Mistake::Made {
                // Nothing answers.
                options.timeout_ms = 1000;
            }
            if let Ok(mut client) = flowstone_testkit::Client::connect(options) {
                assert!(mistake != Mistake::Made, "its queues cannot run");
                client.write(0, &[1; 4096]).unwrap();
                client.set_timeout(Duration::from_millis(200));
                let answer = client.write(8, &[1; 4096]);
                assert!(
                    answer.is_err() || mistake != Mistake::Submit,
                    "a queue that has panicked answers"
                );
            }
            load.join().unwrap();
        });
        // The queues stop, and the thread still runs.
        drop((broken, neighbour));
        let last = Disk::new(2, &configs[1], &shared);
        load(last.socket(), 200, 2);
        assert_eq!(later.load(Ordering::Relaxed), 0, "{mistake:?}: a turn after the panic");
    }
}

/// If a submission is a copy, a queue that takes its whole ring delays the other queues.
#[test]
fn a_queue_that_shares_its_thread_takes_large_requests_one_by_one() {
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let config = disk(memory.path(), "large.raw", EngineChoice::Auto, DirectChoice::Auto);
    let shared = Shared::new(1);
    let disk = Disk::new(0, &config, &shared);
    let mut options = LoadOptions::new(disk.socket()).workload("write").iodepth(16).ops(500);
    (options.client.queues, options.block_bytes) = (usize::from(QUEUES), 1 << 20);
    let report = flowstone_testkit::load::run(&options).unwrap();
    assert_eq!(report.errors, 0);
    let batches = disk.counters.submit.snapshot().count();
    assert!(batches >= 500, "{batches} batches for 500 requests of {} bytes", shares::TURN_BYTES);
}

/// A wake-up is lost on a thread that is about to sleep.
#[test]
fn what_arrives_just_before_the_sleep_is_seen() {
    let sleeper = thread::spawn(|| {
        let mut poller = Poller::new(PollerOptions::default()).unwrap();
        poller.inbox.close();
        poller.sleep();
    });
    wait_until("it does not sleep", || sleeper.is_finished());
    sleeper.join().unwrap();
}

#[test]
fn an_order_to_stop_stays_with_a_queue_that_comes_back() {
    let inbox = |index| Arc::new(Inbox::new(index, Reactor::new().unwrap().waker()));
    let (here, there) = (inbox(0), inbox(1));
    let orders = Orders::new(Arc::clone(&here));
    assert!(orders.move_to(&there));
    assert!(orders.depart().is_some_and(|to| to.index == 1));
    assert_eq!(orders.place(), (1, true));
    orders.stop();
    orders.divert(&here);
    assert_eq!(orders.place(), (0, false));
    assert!(orders.leave_flag().load(Ordering::Acquire));
    assert!(orders.depart().is_none());
}

/// Regression: the threads that watch the load slept on.
#[test]
fn a_poller_that_wakes_up_says_so() {
    let activity = Arc::<Activity>::default();
    let options = PollerOptions { activity: Arc::clone(&activity), ..PollerOptions::default() };
    let poller = PollerThread::spawn("poller".into(), options).unwrap();
    let sleeper = thread::spawn(move || activity.wait());
    wait_until("it does not sleep on", || {
        poller.inbox().wake();
        sleeper.is_finished()
    });
    assert!(sleeper.join().unwrap());
}
