use std::io;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use flowstone_block::{Clock, QueueContext, QueueDepth, Reactor, TimeSource};
use flowstone_fileio::{FileIo, FileOffset, MemoryList};

use super::super::share::{Devices, DiskShare};
use super::super::vm::DeviceVm;
use super::*;
use crate::Weight;

mod first;

/// A file whose requests complete in order, when the test says so.
#[derive(Clone, Default)]
struct Host(Arc<Mutex<HostState>>);

#[derive(Default)]
struct HostState {
    below: VecDeque<usize>,
    done: Vec<FileCompletion>,
}

impl Host {
    /// Tags of requests in flight.
    fn below(&self) -> Vec<usize> {
        self.0.lock().unwrap().below.iter().copied().collect()
    }

    fn complete(&self, count: usize) {
        let mut state = self.0.lock().unwrap();
        let HostState { below, done } = &mut *state;
        done.extend(below.drain(..count).map(|tag| FileCompletion::new(tag, Ok(()))));
    }
}

impl FileIo for Host {
    fn size(&self) -> io::Result<u64> {
        Ok(1 << 30)
    }

    fn set_size(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn allocated_bytes(&self) -> io::Result<u64> {
        Ok(0)
    }

    fn next_data(&self, _: FileOffset) -> io::Result<Option<Range<FileOffset>>> {
        Ok(None)
    }

    fn device(&self) -> Option<u64> {
        Some(8)
    }

    fn block_bytes(&self) -> u32 {
        512
    }

    fn describe(&self) -> String {
        "a test".into()
    }

    fn channel(&self, _: &QueueContext) -> io::Result<Box<dyn FileChannel>> {
        Ok(Box::new(self.clone()))
    }
}

impl FileChannel for Host {
    fn submit(&mut self, request: FileRequest) {
        self.0.lock().unwrap().below.push_back(request.tag);
    }

    fn kick(&mut self) {}

    fn reap(&mut self, done: &mut Vec<FileCompletion>) {
        done.append(&mut self.0.lock().unwrap().done);
    }

    fn next_look(&mut self) -> NextLook {
        NextLook::now_if(!self.0.lock().unwrap().done.is_empty())
    }
}

/// A disk's queue, and the host below it.
struct Queue {
    host: Host,
    share: Arc<DiskShare>,
    channel: Box<dyn FileChannel>,
    reactor: Reactor,
    back: Vec<usize>,
}

/// A manual clock: nanoseconds passed since a start.
struct Passed {
    start: Instant,
    ns: Arc<AtomicU64>,
}

impl TimeSource for Passed {
    fn now(&self) -> Instant {
        self.start + Duration::from_nanos(self.ns.load(Ordering::Relaxed))
    }

    fn sleep(&self, _: Duration) {
        unreachable!("nothing here sleeps by it");
    }
}

/// Makes devices on a manual clock, and the clock's value.
fn devices() -> (Arc<Devices>, Arc<AtomicU64>) {
    let ns = Arc::<AtomicU64>::default();
    let passed = Passed { start: Instant::now(), ns: Arc::clone(&ns) };
    (Devices::with_clock(Clock::of(Arc::new(passed))), ns)
}

impl Queue {
    fn new(devices: &Arc<Devices>) -> Self {
        let share = DiskShare::new(Arc::clone(devices), 0, Weight::default());
        let host = Host::default();
        let context = QueueContext::alone(QueueDepth(256)).unwrap();
        let channel = share.charge(Box::new(host.clone())).channel(&context).unwrap();
        Self { host, share, channel, reactor: context.reactor, back: Vec::new() }
    }

    fn submit(&mut self, tags: Range<usize>) {
        for tag in tags {
            let op = FileOp::Read { offset: FileOffset::new(0), bytes: 4096 };
            self.channel.submit(FileRequest::new(op, MemoryList::EMPTY, tag));
        }
        self.channel.kick();
    }

    fn sync(&mut self, tag: usize) {
        self.channel.submit(FileRequest::new(FileOp::Datasync, MemoryList::EMPTY, tag));
        self.channel.kick();
    }

    /// Completes this many requests, and reaps them.
    fn complete(&mut self, count: usize) {
        self.host.complete(count);
        let mut done = Vec::new();
        self.channel.reap(&mut done);
        self.back.extend(done.iter().map(|completion| completion.tag));
    }
}

#[test]
fn a_disk_alone_sends_everything_at_once_and_in_order() {
    let mut queue = Queue::new(&devices().0);
    queue.submit(0..200);
    assert_eq!(queue.host.below(), Vec::from_iter(0..200));
    queue.complete(200);
    assert_eq!(queue.back.len(), 200);
    assert_eq!(queue.share.held_back().0, 0);
}

/// A slot freed by one disk is the turn of another, whose thread sleeps.
#[test]
fn what_comes_back_to_one_thread_ends_the_sleep_of_another() {
    let (devices, _) = devices();
    let mut hog = Queue::new(&devices);
    hog.submit(0..1);
    let (step, steps) = std::sync::mpsc::channel();
    let (ready, is_ready) = std::sync::mpsc::channel();
    let theirs = Arc::clone(&devices);
    let other = std::thread::spawn(move || {
        let mut queue = Queue::new(&theirs);
        queue.submit(0..1);
        ready.send(()).unwrap();
        let () = steps.recv().unwrap();
        queue.submit(1..6);
        assert_eq!(queue.host.below(), [0]);
        ready.send(()).unwrap();
        while queue.host.below().len() < 6 {
            let Queue { reactor, channel, .. } = &mut queue;
            // Only the waker ends the sleep: a timeout would have the same result in the end.
            reactor.clone().sleep(|| match channel.next_look() {
                NextLook::At(_) => NextLook::OnWake,
                other => other,
            });
            queue.complete(0);
        }
    });
    is_ready.recv().unwrap();
    // All slots but the other disk's one, and far more requests than the other wants.
    hog.submit(1..31);
    assert_eq!(hog.host.below().len(), 15);
    step.send(()).unwrap();
    is_ready.recv().unwrap();
    hog.complete(15);
    other.join().unwrap();
}

#[test]
fn what_waits_when_a_channel_goes_is_carried_out() {
    let (devices, _) = devices();
    let (mut hog, mut modest) = (Queue::new(&devices), Queue::new(&devices));
    modest.submit(0..1);
    hog.submit(0..1);
    hog.submit(1..60);
    assert!(hog.host.below().len() <= 18, "{:?}", hog.host.below());
    let host = hog.host.clone();
    drop(hog);
    assert_eq!(host.below(), Vec::from_iter(0..60));
    modest.submit(1..16);
    assert_eq!(modest.host.below().len(), 16, "its slots are free");
}

/// A stopped FUSE server, or a dead path to a part of a device.
#[test]
fn a_disk_whose_host_hangs_holds_others_up_for_a_moment_only() {
    let (devices, clock) = devices();
    let (mut dead, mut live) = (Queue::new(&devices), Queue::new(&devices));
    live.submit(0..1);
    dead.submit(0..1);
    dead.submit(1..60);
    let sent = dead.host.below().len();
    assert!(sent <= 16, "{sent}");
    live.complete(1);
    // One at a time: more would have slots.
    for tag in 1..30 {
        live.submit(tag..tag + 1);
        while live.back.len() <= tag {
            if live.host.below().is_empty() {
                // It waits for a slot, which no other disk frees, until the time that it has named
                // itself.
                assert!(matches!(live.channel.next_look(), NextLook::At(_)));
                clock.fetch_add(10_000_000, Ordering::Relaxed);
            }
            live.complete(live.host.below().len());
        }
    }
    assert_eq!(clock.load(Ordering::Relaxed), 100_000_000);
    assert_eq!(dead.host.below().len(), sent, "it sends nothing more");
    // It continues when the host does.
    while dead.back.len() < 40 {
        dead.complete(dead.host.below().len());
    }
}

/// A guest whose reads are answered by the cache kicks the file below without submitting requests.
#[test]
fn a_disk_that_asks_the_device_for_nothing_holds_nobody_back() {
    let (devices, clock) = devices();
    let (mut hog, mut other) = (Queue::new(&devices), Queue::new(&devices));
    hog.submit(0..1);
    for _ in 0..3 {
        clock.fetch_add(11_000_000, Ordering::Relaxed);
        other.channel.kick();
        hog.submit(0..0);
    }
    hog.submit(1..100);
    assert_eq!(hog.host.below().len(), 100);
}

/// Waiting requests of a dropped channel are sent below without slots: these go to others.
#[test]
fn slots_of_a_channel_that_goes_are_given_to_others() {
    let (devices, _) = devices();
    let (mut hog, mut live) = (Queue::new(&devices), Queue::new(&devices));
    live.submit(0..1);
    hog.submit(0..1);
    hog.submit(1..255);
    assert!(hog.host.below().len() <= 18, "{:?}", hog.host.below());
    // More than its part, one at a time, until it waits for a slot.
    for tag in 1..4 {
        live.complete(live.host.below().len());
        let op = FileOp::Read { offset: FileOffset::new(0), bytes: 1 << 20 };
        live.channel.submit(FileRequest::new(op, MemoryList::EMPTY, tag));
        live.channel.kick();
    }
    live.complete(live.host.below().len());
    assert!(live.host.below().is_empty() && live.back.len() < 4, "{:?}", live.back);
    drop(hog);
    live.complete(0);
    assert!(!live.host.below().is_empty(), "it waits for nobody");
}

/// Disks come, go and hang, and weights change: every waiting request has something to wait for.
#[test]
fn nothing_waits_for_ever() {
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (devices, clock) = devices();
        let mut queues: Vec<(Queue, usize)> = Vec::new();
        for _ in 0..400 {
            if random.u8(0..4) == 0 {
                let ns = [1_000, 100_000, 5_000_000, 150_000_000][random.usize(0..4)];
                clock.fetch_add(ns, Ordering::Relaxed);
            }
            if queues.len() < 2 || queues.len() < 6 && random.u8(0..40) == 0 {
                queues.push((Queue::new(&devices), 0));
            }
            let at = random.usize(0..queues.len());
            let (queue, sent) = &mut queues[at];
            match random.u8(0..20) {
                0..7 => {
                    let count = [1, 1, 2, 30, 100][random.usize(0..5)];
                    if *sent - queue.back.len() < 128 {
                        queue.submit(*sent..*sent + count);
                        *sent += count;
                    }
                }
                7 if random.bool() => {
                    queue.sync(*sent);
                    *sent += 1;
                }
                8..16 => {
                    let below = queue.host.below().len();
                    queue.complete([below, random.usize(0..=below)][random.usize(0..2)]);
                }
                16 => {
                    // A stretch that is announced before its batch is kicked.
                    for _ in 0..2 {
                        let op = FileOp::Read { offset: FileOffset::new(0), bytes: 4096 };
                        for tag in *sent..*sent + 16 {
                            queue.channel.submit(FileRequest::new(op, MemoryList::EMPTY, tag));
                        }
                        *sent += 16;
                        queue.complete(random.usize(0..=queue.host.below().len()));
                    }
                    queue.channel.kick();
                }
                17 => queue.share.set_weight(Weight::new(random.u32(1..=Weight::MAX)).unwrap()),
                18 if random.bool() => {
                    let (id, weight) = (random.u32(0..4), random.u32(1..1000));
                    queue.share.set_vm(DeviceVm { id, weight });
                }
                18 if random.u8(0..5) == 0 => {
                    let (queue, sent) = queues.remove(at);
                    let (host, back) = (queue.host.clone(), queue.back.len());
                    drop(queue);
                    assert_eq!(back + host.below().len(), sent);
                }
                _ => queue.complete(0),
            }
        }
        drain(&mut queues, &clock, seed);
    }
}

/// Completes everything, with no more time than it takes to see that a VM does not continue: a hang
/// is waited for longer.
fn drain(queues: &mut [(Queue, usize)], clock: &AtomicU64, seed: u64) {
    let mut still = 0;
    while queues.iter().any(|(queue, sent)| queue.back.len() < *sent) {
        let mut moved = false;
        for (queue, sent) in queues.iter_mut() {
            let (below, back) = (queue.host.below().len(), queue.back.len());
            match queue.channel.next_look() {
                NextLook::OnWake if below == 0 => continue,
                NextLook::At(_) if below == 0 => continue,
                _ => queue.complete(below),
            }
            assert!(queue.back.len() <= *sent);
            moved |= queue.back.len() > back || !queue.host.below().is_empty();
        }
        still = if moved { 0 } else { still + 1 };
        if still > 3 {
            let any_time = queues
                .iter_mut()
                .any(|(queue, _)| matches!(queue.channel.next_look(), NextLook::At(_)));
            assert!(any_time, "seed {seed}: nothing is looked at again");
            clock.fetch_add(2_000_000, Ordering::Relaxed);
            for (queue, _) in queues.iter_mut() {
                queue.complete(0);
            }
            assert!(still < 10, "seed {seed}: waits for the time only");
        }
    }
}
