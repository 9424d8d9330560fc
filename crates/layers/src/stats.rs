//! Counts the requests that pass one place in the stack, e.g. below another layer.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flowstone_block::{Channel, Completion, Layer, OpKind, QueueContext, Request};
use serde::{Serialize, Serializer};

/// Requests, bytes and errors by kind of operation, indexed by [`OpKind`].
#[derive(Debug, Default)]
pub struct LayerCounters {
    requests: [AtomicU64; OpKind::ALL.len()],
    bytes: [AtomicU64; OpKind::ALL.len()],
    errors: [AtomicU64; OpKind::ALL.len()],
}

/// Counts of requests of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Passed {
    /// Requests.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Requests that failed.
    pub errors: u64,
}

impl LayerCounters {
    /// Returns the counts of a kind so far.
    pub fn of(&self, kind: OpKind) -> Passed {
        let get = |counters: &[AtomicU64]| counters[kind as usize].load(Ordering::Relaxed);
        let [requests, bytes, errors] =
            [&self.requests, &self.bytes, &self.errors].map(|it| get(it));
        Passed { requests, bytes, errors }
    }
}

impl Serialize for LayerCounters {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(OpKind::ALL.map(|kind| (kind.name(), self.of(kind))))
    }
}

/// The counting layer.
pub struct Stats {
    base: Arc<dyn Layer>,
    counters: Arc<LayerCounters>,
}

struct StatsChannel {
    base: Box<dyn Channel>,
    counters: Arc<LayerCounters>,
}

impl Stats {
    /// Counts the requests to `base`.
    pub fn new(base: Arc<dyn Layer>) -> Self {
        Self { base, counters: Arc::default() }
    }

    /// Returns the counters, for statistics.
    pub fn counters(&self) -> Arc<LayerCounters> {
        Arc::clone(&self.counters)
    }
}

impl Layer for Stats {
    pass_to_base!(geometry);

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        let counters = Arc::clone(&self.counters);
        Ok(Box::new(StatsChannel { base: self.base.channel(context)?, counters }))
    }
}

impl Channel for StatsChannel {
    pass_to_base!(kick, next_look, retire);

    fn submit(&mut self, request: Box<Request>) {
        let kind = request.op.kind() as usize;
        self.counters.requests[kind].fetch_add(1, Ordering::Relaxed);
        self.counters.bytes[kind].fetch_add(request.op.bytes(), Ordering::Relaxed);
        self.base.submit(request);
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        let before = done.len();
        self.base.reap(done);
        for completion in &done[before..] {
            if completion.outcome.is_err() {
                let kind = completion.request.op.kind() as usize;
                self.counters.errors[kind].fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}
