use std::io;
use std::sync::Mutex;
use std::time::Duration;

use flowstone_block::{
    BlockingDisk, Extent, Geometry, Layer, Origin, QueueContext, QueueDepth, Reactor, Sector,
    SectorCount,
};

use flowstone_testkit::HANG;

use super::*;
use crate::{Group, Limit, Limited, Weight};

/// One request in an hour: what waits comes back because of what happens, or not at all.
const NEVER: &str = "bw=1";

/// Completes everything at the next reap, and remembers in which order it came.
#[derive(Default)]
struct Below {
    order: Arc<Mutex<Vec<u32>>>,
}

#[expect(clippy::vec_box, reason = "requests travel in boxes")]
struct BelowChannel {
    order: Arc<Mutex<Vec<u32>>>,
    submitted: Vec<Box<Request>>,
    kicked: Vec<Box<Request>>,
}

impl Layer for Below {
    fn geometry(&self) -> Geometry {
        flowstone_layers::Null::new(SectorCount::new(1 << 20)).geometry()
    }

    fn channel(&self, _: &QueueContext) -> io::Result<Box<dyn Channel>> {
        let order = Arc::clone(&self.order);
        Ok(Box::new(BelowChannel { order, submitted: Vec::new(), kicked: Vec::new() }))
    }
}

impl Channel for BelowChannel {
    fn submit(&mut self, request: Box<Request>) {
        self.order.lock().unwrap().push(request.tag);
        self.submitted.push(request);
    }

    fn kick(&mut self) {
        self.kicked.append(&mut self.submitted);
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        done.extend(self.kicked.drain(..).map(|request| Completion { request, outcome: Ok(()) }));
    }

    fn next_look(&mut self) -> NextLook {
        self.kick();
        NextLook::now_if(!self.kicked.is_empty())
    }
}

struct Fixture {
    order: Arc<Mutex<Vec<u32>>>,
    disk: Arc<DiskLimits>,
    layer: Limited,
    reactor: Reactor,
}

impl Fixture {
    fn new(limit: &str) -> Self {
        let below = Below::default();
        let order = Arc::clone(&below.order);
        let limit = limit.parse().unwrap();
        let layer = Limited::new(Arc::new(below), Group::unnamed(), limit, Weight::default());
        Self { order, disk: layer.disk(), layer, reactor: Reactor::new().unwrap() }
    }

    fn queue(&self, queue: u16) -> Box<dyn Channel> {
        let origin = Origin::Queue { disk: 0, queue };
        let (depth, reactor) = (QueueDepth(64), self.reactor.clone());
        self.layer.channel(&QueueContext { depth, origin, reactor }).unwrap()
    }

    fn order(&self) -> Vec<u32> {
        self.order.lock().unwrap().clone()
    }

    /// Reaps until so many have come back.
    fn wait(&self, channel: &mut dyn Channel, count: usize) -> Vec<u32> {
        let (mut done, end) = (Vec::new(), Instant::now() + HANG);
        while done.len() < count {
            self.reactor.sleep(|| channel.next_look().min(NextLook::At(end)));
            channel.reap(&mut done);
            assert!(Instant::now() < end, "{} of {count} have come back", done.len());
        }
        done.iter().map(|completion| completion.request.tag).collect()
    }
}

fn block() -> Extent {
    Extent::new(Sector::new(0), SectorCount::new(8)).unwrap()
}

fn submit(channel: &mut dyn Channel, ops: impl IntoIterator<Item = Op>) {
    for (tag, op) in (0..).zip(ops) {
        channel.submit(Request::new(op, tag));
    }
    channel.kick();
}

/// A flush that overtook a write that waits would promise what has not been done.
#[test]
fn nothing_overtakes_what_waits_and_a_flush_costs_nothing() {
    let fixture = Fixture::new(NEVER);
    let mut queue = fixture.queue(0);
    let ops = [
        Op::Flush,
        Op::Write(block()),
        Op::Flush,
        Op::Flush,
        Op::Discard(block()),
        Op::Flush,
        Op::Read(block()),
    ];
    submit(&mut *queue, ops);
    // One may be owed; what follows it and costs nothing goes along.
    assert_eq!(fixture.order(), [0, 1, 2, 3]);
    fixture.disk.set_limit("iops=20".parse().unwrap());
    assert_eq!(fixture.wait(&mut *queue, 7), [0, 1, 2, 3, 4, 5, 6]);
    let (requests, time) = fixture.disk.throttled();
    assert!(requests == 2 && time > Duration::ZERO, "{requests} for {time:?}");
}

#[test]
fn without_a_limit_requests_pass_and_nothing_is_counted() {
    let fixture = Fixture::new("off");
    let mut queue = fixture.queue(0);
    submit(&mut *queue, [Op::Write(block()); 50]);
    assert_eq!(fixture.order().len(), 50);
    assert_eq!(fixture.wait(&mut *queue, 50).len(), 50);
    assert_eq!(fixture.disk.throttled().0, 0);
    fixture.disk.set_limit(NEVER.parse().unwrap());
    submit(&mut *queue, [Op::Write(block()); 3]);
    assert_eq!(fixture.order().len(), 51);
}

/// GET_VRING_BASE and SIGTERM do not wait for tokens.
#[test]
fn a_queue_that_is_stopped_lets_everything_go_and_owes_it() {
    let fixture = Fixture::new(NEVER);
    let mut queue = fixture.queue(3);
    let mut other = fixture.queue(4);
    submit(&mut *queue, [Op::Write(block()); 40]);
    assert_eq!(fixture.order().len(), 1);
    let disk = Arc::clone(&fixture.disk);
    // From another thread, which the sleeping one hears.
    let stopper = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(10));
        disk.stop_queue(3);
    });
    assert_eq!(fixture.wait(&mut *queue, 40).len(), 40);
    stopper.join().unwrap();
    // What an earlier life left undone comes after the stop.
    submit(&mut *queue, [Op::Write(block())]);
    assert_eq!(fixture.wait(&mut *queue, 1), [0]);
    // 41 are owed.
    submit(&mut *other, [Op::Read(block())]);
    assert_eq!(fixture.order().len(), 41);
    fixture.disk.set_limit(Limit::NONE);
    assert_eq!(fixture.wait(&mut *other, 1), [0]);
}

#[test]
fn another_limit_ends_the_wait_of_a_thread_that_sleeps() {
    let fixture = Fixture::new(NEVER);
    let mut queue = fixture.queue(0);
    submit(&mut *queue, [Op::Write(block()); 64]);
    let disk = Arc::clone(&fixture.disk);
    let operator = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(10));
        disk.set_limit("iops=100000".parse().unwrap());
    });
    assert_eq!(fixture.wait(&mut *queue, 64).len(), 64);
    operator.join().unwrap();
}

/// Reading the structures of a disk is the daemon's business; the last flush of a disk, too.
#[test]
fn the_daemons_own_requests_do_not_wait() {
    let fixture = Fixture::new(NEVER);
    let mut queue = fixture.queue(0);
    submit(&mut *queue, [Op::Write(block()); 4]);
    let mut own = BlockingDisk::new(&fixture.layer).unwrap();
    (0..10).for_each(|_| own.run(Op::Flush).unwrap());
    assert_eq!(fixture.order().len(), 11);
}

#[test]
fn a_disk_that_goes_leaves_its_group_to_the_others() {
    let group = Group::new("tenants".into(), "iops=1".parse().unwrap());
    let layer = |limit: Limit| {
        let below: Arc<dyn Layer> = Arc::new(Below::default());
        Limited::new(below, Arc::clone(&group), limit, Weight::default())
    };
    let reactor = Reactor::new().unwrap();
    let context = QueueContext {
        depth: QueueDepth(8),
        origin: Origin::Queue { disk: 0, queue: 0 },
        reactor: reactor.clone(),
    };
    for _ in 0..3 {
        let (first, second) = (layer(Limit::NONE), layer(Limit::NONE));
        let mut queues = [&first, &second].map(|layer| layer.channel(&context).unwrap());
        assert_eq!(first.disk().group(), Some("tenants"));
        for queue in &mut queues {
            submit(&mut **queue, [Op::Write(block()); 4]);
        }
        drop((first, queues));
        let mut queue = second.channel(&context).unwrap();
        group.set_limit(Limit::NONE);
        submit(&mut *queue, [Op::Write(block()); 4]);
        let mut done = Vec::new();
        queue.reap(&mut done);
        assert_eq!(done.len(), 4);
        group.set_limit("iops=1".parse().unwrap());
    }
}
