//! Counts the requests that pass one place in the stack, e.g. below another layer.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flowstone_block::{Channel, Completion, Layer, OpKind, QueueContext, Request};
use serde::{Serialize, Serializer};

/// Counters of requests by kind of operation, indexed by [`OpKind`].
#[derive(Debug, Default)]
pub struct LayerCounters([Passed; OpKind::ALL.len()]);

/// Counters of requests of one kind.
#[derive(Debug, Default, Serialize)]
pub struct Passed {
    /// Requests.
    pub requests: AtomicU64,
    /// Their bytes.
    pub bytes: AtomicU64,
    /// Requests that failed.
    pub errors: AtomicU64,
}

impl LayerCounters {
    /// Returns the counters of a kind.
    pub fn of(&self, kind: OpKind) -> &Passed {
        &self.0[kind as usize]
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
        let passed = self.counters.of(request.op.kind());
        passed.requests.fetch_add(1, Ordering::Relaxed);
        passed.bytes.fetch_add(request.op.bytes(), Ordering::Relaxed);
        self.base.submit(request);
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        let before = done.len();
        self.base.reap(done);
        for completion in &done[before..] {
            if completion.outcome.is_err() {
                let passed = self.counters.of(completion.request.op.kind());
                passed.errors.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}
