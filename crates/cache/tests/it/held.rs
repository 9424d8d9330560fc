//! A queue of the cache over a disk that completes requests only when told to.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flowstone_block::{
    AlignedBuf, Channel, Completion, Geometry, IoVec, Layer, NextLook, Op, Origin, QueueContext,
    QueueDepth, Request,
};
use flowstone_cache::{Cached, PolicyKind};
use flowstone_layers::Mem;

use crate::{cache, extent, mem};

/// A disk whose channels can always be retired: the test is about the cache's own condition.
struct Held {
    disk: Arc<Mem>,
    holds: Arc<AtomicBool>,
}

struct HeldChannel {
    base: Box<dyn Channel>,
    holds: Arc<AtomicBool>,
    #[expect(clippy::vec_box, reason = "requests travel in their boxes")]
    held: Vec<Box<Request>>,
}

impl Layer for Held {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        let (base, holds) = (self.disk.channel(context)?, Arc::clone(&self.holds));
        Ok(Box::new(HeldChannel { base, holds, held: Vec::new() }))
    }
}

impl Channel for HeldChannel {
    fn submit(&mut self, request: Box<Request>) {
        self.held.push(request);
    }

    fn kick(&mut self) {}

    fn reap(&mut self, done: &mut Vec<Completion>) {
        if !self.holds.load(Ordering::Relaxed) {
            self.held.drain(..).for_each(|request| self.base.submit(request));
            self.base.kick();
            self.base.reap(done);
        }
    }

    fn next_look(&mut self) -> NextLook {
        NextLook::Now
    }

    fn retire(&mut self) -> bool {
        true
    }
}

/// Regression: dropping a cached queue waited for its reads and blocked the other disks of its
/// thread.
#[test]
fn a_queue_does_not_retire_before_its_reads_are_back() {
    let holds = Arc::new(AtomicBool::new(true));
    let layer = Arc::new(Held { disk: mem(), holds: Arc::clone(&holds) });
    let cached = Cached::new(layer, cache(PolicyKind::Lru), 0, false);
    let mut memory = AlignedBuf::zeroed(4096);
    let origin = Origin::Queue { disk: 0, queue: 0 };
    let context = QueueContext { origin, ..QueueContext::alone(QueueDepth(8)).unwrap() };
    let mut queue = cached.channel(&context).unwrap();
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
