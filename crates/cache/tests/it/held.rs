//! A queue of the cache over a disk that completes requests only when told to.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use flowstone_block::{
    AlignedBuf, Channel, Completion, Errno, Geometry, IoVec, Layer, NextLook, Op, Origin,
    QueueContext, QueueDepth, Request, SectorCount,
};
use flowstone_cache::{Cached, PolicyKind};
use flowstone_layers::Mem;

use crate::{cache, extent, mem};

/// A disk whose channels can always be retired: the tests are about the cache's own condition.
struct Held {
    disk: Arc<Mem>,
    holds: Arc<AtomicBool>,
    /// Number of reads of more than a block, which fail when they are let go.
    long: Option<Arc<AtomicUsize>>,
}

struct HeldChannel {
    base: Box<dyn Channel>,
    holds: Arc<AtomicBool>,
    long: Option<Arc<AtomicUsize>>,
    #[expect(clippy::vec_box, reason = "requests travel in their boxes")]
    held: Vec<Box<Request>>,
}

impl Layer for Held {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        let (base, holds) = (self.disk.channel(context)?, Arc::clone(&self.holds));
        Ok(Box::new(HeldChannel { base, holds, long: self.long.clone(), held: Vec::new() }))
    }
}

impl Channel for HeldChannel {
    fn submit(&mut self, request: Box<Request>) {
        match &self.long {
            Some(count) if is_long(&request) => drop(count.fetch_add(1, Ordering::Relaxed)),
            Some(_) => return self.base.submit(request),
            None => {}
        }
        self.held.push(request);
    }

    fn kick(&mut self) {}

    fn reap(&mut self, done: &mut Vec<Completion>) {
        if !self.holds.load(Ordering::Relaxed) {
            for request in self.held.drain(..) {
                match self.long {
                    Some(_) => done.push(Completion { request, outcome: Err(Errno::IO) }),
                    None => self.base.submit(request),
                }
            }
        }
        self.base.kick();
        self.base.reap(done);
    }

    fn next_look(&mut self) -> NextLook {
        NextLook::Now
    }

    fn retire(&mut self) -> bool {
        true
    }
}

fn is_long(request: &Request) -> bool {
    request.op.extent().is_some_and(|extent| extent.count() > SectorCount::new(8))
}

fn queue(cached: &Cached) -> Box<dyn Channel> {
    let origin = Origin::Queue { disk: 0, queue: 0 };
    let context = QueueContext { origin, ..QueueContext::alone(QueueDepth(8)).unwrap() };
    cached.channel(&context).unwrap()
}

/// Regression: dropping a cached queue waited for its reads and blocked the other disks of its
/// thread.
#[test]
fn a_queue_does_not_retire_before_its_reads_are_back() {
    let holds = Arc::new(AtomicBool::new(true));
    let layer = Arc::new(Held { disk: mem(), holds: Arc::clone(&holds), long: None });
    let cached = Cached::new(layer, cache(PolicyKind::Lru), 0, false);
    let mut memory = AlignedBuf::zeroed(4096);
    let mut queue = queue(&cached);
    let mut request = Request::new(Op::Read(extent(0, 8)), 0);
    // SAFETY: the memory outlives the request, which comes back below.
    request.memory.push(unsafe { IoVec::of(&mut memory) });
    queue.submit(request);
    queue.kick();
    let early = queue.retire();
    holds.store(false, Ordering::Relaxed);
    assert!(!early, "its read is below");
    assert!(queue.retire() || queue.retire());
}

#[test]
fn a_read_that_waits_for_a_read_ahead_is_read_by_itself_if_that_fails() {
    let (holds, long) = (Arc::new(AtomicBool::new(true)), Arc::<AtomicUsize>::default());
    let layer = Held { disk: mem(), holds: Arc::clone(&holds), long: Some(Arc::clone(&long)) };
    let cached = Cached::new(Arc::new(layer), cache(PolicyKind::Lru), 0, false);
    let mut memory = AlignedBuf::zeroed(4096);
    let mut queue = queue(&cached);
    let mut done = Vec::new();
    // In sequence, until one waits.
    for block in 0..64 {
        let mut request = Request::new(Op::Read(extent(block * 8, 8)), 0);
        // SAFETY: the memory outlives the request, which comes back below.
        request.memory.push(unsafe { IoVec::of(&mut memory) });
        queue.submit(request);
        queue.kick();
        queue.reap(&mut done);
        if done.is_empty() {
            break;
        }
        assert_eq!(done.pop().unwrap().outcome, Ok(()));
    }
    queue.reap(&mut done);
    assert!(long.load(Ordering::Relaxed) > 0 && done.is_empty(), "none waits");
    holds.store(false, Ordering::Relaxed);
    for _ in 0..8 {
        queue.reap(&mut done);
        queue.kick();
    }
    assert_eq!(done.pop().expect("it still waits").outcome, Ok(()));
}

/// A read-ahead goes over blocks that are held, and reads of these wait for nothing.
#[test]
fn a_held_block_is_read_while_those_around_it_are_read_ahead() {
    let (holds, long) = (Arc::new(AtomicBool::new(true)), Arc::<AtomicUsize>::default());
    let layer = Held { disk: mem(), holds: Arc::clone(&holds), long: Some(Arc::clone(&long)) };
    let cached = Cached::new(Arc::new(layer), cache(PolicyKind::Lru), 0, false);
    let mut memory = AlignedBuf::zeroed(4096);
    let mut queue = queue(&cached);
    let mut is_read = |block: u64| {
        let mut request = Request::new(Op::Read(extent(block * 8, 8)), 0);
        // SAFETY: the memory outlives the request, which comes back before the queue is dropped.
        request.memory.push(unsafe { IoVec::of(&mut memory) });
        queue.submit(request);
        let mut done = Vec::new();
        for _ in 0..8 {
            queue.kick();
            queue.reap(&mut done);
        }
        assert!(done.iter().all(|completion| completion.outcome == Ok(())));
        !done.is_empty()
    };
    // The first two reads of a stream, then a held block, and one that is being read.
    for block in [4, 0, 1] {
        assert!(is_read(block));
    }
    assert_eq!(long.load(Ordering::Relaxed), 1);
    assert!(is_read(4) && !is_read(5));
    holds.store(false, Ordering::Relaxed);
    assert!(is_read(6));
}
