//! A memory disk that executes requests some time after their submission, reports completions some
//! time later, fails some, and can grow.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use flowstone_block::{
    Channel, Completion, Errno, Geometry, Layer, NextLook, Op, QueueContext, Request, SectorCount,
};
use flowstone_layers::Mem;

/// Greatest value of each of a request's two delays.
const DELAY_US_MAX: u64 = 200;

pub struct Late {
    pub disk: Arc<Mem>,
    /// Capacity visible to the guest.
    pub capacity: AtomicU64,
    /// One write in this many fails, before or after it is executed; 0 for none.
    pub failing: u64,
    /// A sector whose reads fail.
    pub bad: Option<u64>,
    /// Whether requests are delayed.
    pub is_late: bool,
    /// Reads and writes received.
    pub reads: AtomicU64,
    pub writes: AtomicU64,
}

struct LateChannel {
    layer: Arc<Late>,
    base: Box<dyn Channel>,
    random: fastrand::Rng,
    /// Requests submitted and not kicked.
    #[expect(clippy::vec_box, reason = "requests travel in their boxes")]
    submitted: Vec<Box<Request>>,
    waiting: Vec<(Instant, Box<Request>)>,
    done: Vec<(Instant, Completion)>,
    arrived: Vec<Completion>,
}

/// The layer, shared with the test.
pub struct Handle(pub Arc<Late>);

impl Late {
    pub fn new(disk: Arc<Mem>) -> Self {
        let capacity = disk.geometry().capacity.get();
        Self {
            disk,
            capacity: AtomicU64::new(capacity),
            failing: 0,
            bad: None,
            is_late: false,
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
        }
    }

    pub fn layer(self) -> (Arc<Self>, Arc<dyn Layer>) {
        let late = Arc::new(self);
        (Arc::clone(&late), Arc::new(Handle(late)))
    }
}

impl Layer for Handle {
    fn geometry(&self) -> Geometry {
        let capacity = SectorCount::new(self.0.capacity.load(Ordering::Relaxed));
        Geometry { capacity, ..self.0.disk.geometry() }
    }

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        Ok(Box::new(LateChannel {
            layer: Arc::clone(&self.0),
            base: self.0.disk.channel(context)?,
            random: fastrand::Rng::new(),
            submitted: Vec::new(),
            waiting: Vec::new(),
            done: Vec::new(),
            arrived: Vec::new(),
        }))
    }
}

impl LateChannel {
    fn some_time(&mut self) -> Instant {
        let delay = if self.layer.is_late { self.random.u64(0..DELAY_US_MAX) } else { 0 };
        Instant::now() + Duration::from_micros(delay)
    }

    fn carry_out(&mut self, request: Box<Request>) {
        let is_bad = match (request.op, self.layer.bad) {
            (Op::Read(extent), Some(bad)) => {
                extent.start().get() <= bad && bad < extent.end().get()
            }
            _ => false,
        };
        let fails = request.op.modifies()
            && self.layer.failing > 0
            && self.random.u64(0..self.layer.failing) == 0;
        let outcome = if is_bad || fails { Err(Errno::IO) } else { Ok(()) };
        let mut request = request;
        if outcome.is_ok() || (fails && self.random.bool()) {
            self.base.submit(request);
            self.base.kick();
            self.base.reap(&mut self.arrived);
            request = self.arrived.pop().expect("a memory disk is done at once").request;
        }
        let due = self.some_time();
        self.done.push((due, Completion { request, outcome }));
    }
}

impl Channel for LateChannel {
    fn submit(&mut self, request: Box<Request>) {
        match request.op {
            Op::Read(_) => self.layer.reads.fetch_add(1, Ordering::Relaxed),
            Op::Write(_) => self.layer.writes.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
        self.submitted.push(request);
    }

    fn kick(&mut self) {
        for request in std::mem::take(&mut self.submitted) {
            let due = self.some_time();
            self.waiting.push((due, request));
        }
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        let now = Instant::now();
        let due: Vec<_> = self.waiting.extract_if(.., |(due, _)| *due <= now).collect();
        for (_, request) in due {
            self.carry_out(request);
        }
        let told = self.done.extract_if(.., |(due, _)| *due <= now);
        done.extend(told.map(|(_, completion)| completion));
    }

    fn next_look(&mut self) -> NextLook {
        let waiting = self.waiting.iter().map(|(due, _)| *due);
        let done = self.done.iter().map(|(due, _)| *due);
        waiting.chain(done).min().map_or(NextLook::OnWake, NextLook::At)
    }
}
