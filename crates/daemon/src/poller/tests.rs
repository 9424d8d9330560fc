//! Queues of real disks, driven over real sockets, on pollers that share threads.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::thread::{self, JoinHandle};

use flowstone_fileio::{DirectChoice, EngineChoice, LockPatience, open_host_file};
use flowstone_frontend::SocketAccess;
use flowstone_frontend::vhost_user::{DeviceOptions, DeviceShared, QueueRunner, Server};
use flowstone_image::{CreateOptions, Format, create};
use flowstone_testkit::load::{LoadOptions, LoadReport};
use rustix::event::{EventfdFlags, eventfd};

use super::*;
use crate::config::{Choice, DiskConfig};
use crate::stack::Stack;

const QUEUES: u16 = 2;
const DISK_BYTES: u64 = 64 << 20;

/// The queues that run, by disk and number, on pollers that all disks share.
struct Shared {
    pollers: Vec<PollerThread>,
    running: Mutex<HashMap<(u32, usize), Placed>>,
}

/// A queue, where it runs, and what it takes to run it elsewhere.
struct Placed {
    poller: usize,
    queue: RunningQueue,
    layer: Arc<dyn Layer>,
    counters: Arc<QueueCounters>,
}

impl Shared {
    fn new(pollers: usize) -> Arc<Self> {
        let poller = |n| PollerThread::spawn(format!("poller{n}"), None).unwrap();
        Arc::new(Self { pollers: (0..pollers).map(poller).collect(), running: Mutex::default() })
    }

    fn place(
        &self,
        poller: usize,
        origin: Origin,
        queue: VirtQueue,
        layer: Arc<dyn Layer>,
        counters: Arc<QueueCounters>,
    ) -> Placed {
        let (poll, to) = (PollMode::Auto, Arc::clone(&layer));
        let assignment =
            Assignment { queue, layer: to, origin, counters: Arc::clone(&counters), poll };
        let queue = self.pollers[poller].assign(assignment).unwrap();
        Placed { poller, queue, layer, counters }
    }

    /// Moves a queue to the next poller, if there is one that runs. Returns whether there was.
    fn move_one(&self, at: (u32, usize)) -> bool {
        // Held meanwhile: a monitor that stops the queue waits for the move.
        let mut running = self.running.lock().unwrap();
        let Some(Placed { poller, queue, layer, counters }) = running.remove(&at) else {
            return false;
        };
        let queue = queue.stop().expect("the poller lives");
        let origin = Origin::Queue { disk: at.0, queue: at.1 as u16 };
        let next = (poller + 1) % self.pollers.len();
        running.insert(at, self.place(next, origin, queue, layer, counters));
        true
    }
}

/// One disk's queues among those of others.
struct Runner {
    disk: u32,
    layer: Arc<dyn Layer>,
    shared: Arc<Shared>,
}

impl QueueRunner for Runner {
    fn start(&mut self, index: usize, queue: VirtQueue) -> io::Result<()> {
        let origin = Origin::Queue { disk: self.disk, queue: index as u16 };
        let layer = Arc::clone(&self.layer);
        let placed = self.shared.place(0, origin, queue, layer, Arc::default());
        self.shared.running.lock().unwrap().insert((self.disk, index), placed);
        Ok(())
    }

    fn begin_stop(&mut self, index: usize) {
        if let Some(placed) = self.shared.running.lock().unwrap().get(&(self.disk, index)) {
            placed.queue.begin_stop();
        }
    }

    fn stop(&mut self, index: usize) -> Option<u16> {
        let placed = self.shared.running.lock().unwrap().remove(&(self.disk, index))?;
        placed.queue.stop().map(|queue| queue.next_avail())
    }
}

/// A disk that listens.
struct Served {
    socket: PathBuf,
    stop: Arc<std::os::fd::OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    fn new(disk: u32, config: &DiskConfig, shared: &Arc<Shared>) -> Self {
        let of_all = crate::stack::Shared::new(open_host_file, None).unwrap();
        let layer = Stack::build(&of_all, disk, config).unwrap().top;
        let options = DeviceOptions {
            layer: Arc::clone(&layer),
            shared: Arc::new(DeviceShared::new(layer.geometry().capacity)),
            queues_max: QUEUES,
            id: "shared".into(),
        };
        let runner = Box::new(Runner { disk, layer, shared: Arc::clone(shared) });
        let server =
            Server::bind(&config.socket, SocketAccess::default(), options, runner).unwrap();
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let told = Arc::clone(&stop);
        let thread = Some(thread::spawn(move || server.run(&told)));
        Self { socket: config.socket.clone(), stop, thread }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        rustix::io::write(&*self.stop, &1u64.to_ne_bytes()).unwrap();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || ended.is_some_and(|it| it.is_ok()));
    }
}

/// A new image and how it is to be served.
fn disk(dir: &Path, name: &str, engine: EngineChoice, direct: DirectChoice) -> DiskConfig {
    let path = dir.join(name);
    let format = Format::choose(None, &path).unwrap();
    let patience = LockPatience::NONE;
    create(&path, format, DISK_BYTES, &CreateOptions::default(), patience).unwrap();
    let mut config = DiskConfig::new(name.into(), dir.join(format!("{name}.sock")));
    (config.image, config.queues) = (Some(path), QUEUES);
    (config.engine, config.direct) = (Choice(engine), Choice(direct));
    config
}

/// A load of everything, each block read back and checked.
fn load(socket: &Path, ops: u64, seed: u64) -> LoadReport {
    let mut options = LoadOptions::new(socket).workload("mix").iodepth(8).ops(ops);
    options.client.queues = usize::from(QUEUES);
    options.completion = flowstone_testkit::load::Completion::Eventfd;
    options.flush_every = 16;
    (options.verify, options.verify_final, options.discard_zeroes) = (true, true, true);
    options.seed = seed;
    let report = flowstone_testkit::load::run(&options).unwrap();
    assert_eq!((report.errors, report.first_error.as_deref()), (0, None));
    assert!(report.verified_blocks > 0);
    report
}

/// Beside the test's program: /tmp may be in memory.
fn on_disk() -> tempfile::TempDir {
    let program = std::env::current_exe().unwrap();
    tempfile::tempdir_in(program.parent().unwrap()).unwrap()
}

/// Raw, qcow2 and log images, every engine, direct and through the page cache: what one of them waits
/// for, another one's completion must not be missed.
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
    let disks: Vec<Served> =
        (0..).zip(&configs).map(|(n, config)| Served::new(n, config, &shared)).collect();
    thread::scope(|scope| {
        for (seed, disk) in (1..).zip(&disks) {
            scope.spawn(move || load(&disk.socket, 3000, seed));
        }
        let all = usize::from(QUEUES) * disks.len();
        while shared.running.lock().unwrap().len() < all {
            thread::yield_now();
        }
    });
}

/// A runner that is dropped with queues running waits for their thread: they have to end.
#[test]
fn a_queue_that_nobody_holds_any_more_ends() {
    let dir = on_disk();
    let config = disk(dir.path(), "dropped.raw", EngineChoice::Auto, DirectChoice::Auto);
    let shared = Shared::new(1);
    let disk = Served::new(0, &config, &shared);
    let mut options = flowstone_testkit::ClientOptions::new(&disk.socket);
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

/// A queue goes to and fro between threads while its guest writes, reads and flushes.
#[test]
fn a_queue_moves_a_thousand_times_under_load() {
    const MOVES: usize = 1000;
    let dir = on_disk();
    let names = ["moving.raw", "moving.qcow2", "moving.flow"];
    let configs = names.map(|name| disk(dir.path(), name, EngineChoice::Auto, DirectChoice::Auto));
    let shared = Shared::new(2);
    let disks: Vec<Served> =
        (0..).zip(&configs).map(|(n, config)| Served::new(n, config, &shared)).collect();
    let moved = AtomicUsize::new(0);
    thread::scope(|scope| {
        for (seed, disk) in (1..).zip(&disks) {
            let moved = &moved;
            scope.spawn(move || {
                for round in 0.. {
                    load(&disk.socket, 2000, seed + 10 * round);
                    if moved.load(Ordering::Relaxed) >= MOVES {
                        break;
                    }
                }
            });
        }
        while moved.load(Ordering::Relaxed) < MOVES {
            for disk in 0..names.len() as u32 {
                for queue in 0..usize::from(QUEUES) {
                    moved.fetch_add(usize::from(shared.move_one((disk, queue))), Ordering::Relaxed);
                }
            }
            // The queues have work to do between two moves.
            thread::yield_now();
        }
    });
}
