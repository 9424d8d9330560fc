//! A disk's limit, for operators and its queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flowstone_block::{Metric, Reactor, mutated};

use super::budget::Cost;
use super::gate::QueueGate;
use super::group::Group;
use crate::{DiskKey, Limit, Weight};

/// The limits of a disk, its own and its group's.
pub struct DiskLimits {
    pub(super) group: Arc<Group>,
    key: DiskKey,
    throttled: AtomicU64,
    throttled_ns: AtomicU64,
}

impl DiskLimits {
    /// Metrics of a disk's limits.
    pub const METRICS: &[Metric<Self>] = &[
        Metric::counter(
            "flowstone_throttled_requests_total",
            "Requests that had to wait for a limit",
            |it| it.throttled().0 as f64,
        ),
        Metric::counter(
            "flowstone_throttled_seconds_total",
            "Total time that requests waited for a limit",
            |it| it.throttled().1.as_secs_f64(),
        ),
    ];

    /// Adds a new disk to the group.
    pub fn new(group: Arc<Group>, limit: Limit, weight: Weight) -> Arc<Self> {
        let now = group.now();
        let key = {
            let line = &mut group.lock().line;
            let key = line.add_disk(weight);
            line.set_limit(key, limit, now);
            key
        };
        let (throttled, throttled_ns) = Default::default();
        Arc::new(Self { group, key, throttled, throttled_ns })
    }

    /// Returns the name of the disk's group, if it is in a named one.
    pub fn group(&self) -> Option<&str> {
        self.group.name()
    }

    /// Returns the disk's limit.
    pub fn limit(&self) -> Limit {
        self.group.lock().line.limit(self.key)
    }

    /// Sets the disk's limit; applies to waiting requests, too.
    pub fn set_limit(&self, limit: Limit) {
        self.group.change(|line, now| line.set_limit(self.key, limit, now));
    }

    /// Returns the disk's weight in its group.
    pub fn weight(&self) -> u32 {
        self.group.lock().line.weight(self.key)
    }

    /// Sets the disk's weight in its group.
    pub fn set_weight(&self, weight: Weight) {
        self.group.change(|line, _| line.set_weight(self.key, weight));
    }

    /// Returns the number of requests that had to wait, and their total waiting time.
    pub fn throttled(&self) -> (u64, Duration) {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (get(&self.throttled), Duration::from_nanos(get(&self.throttled_ns)))
    }

    pub(super) fn count_throttled(&self, requests: u64, ns: u64) {
        self.throttled.fetch_add(requests, Ordering::Relaxed);
        self.throttled_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Accounts for a read of the disk by the daemon itself. Returns how long it has to rest
    /// afterwards, to be no faster than the guest may be. If the guest caused the read, the guest
    /// is charged.
    pub fn own_read(&self, bytes: u64, is_charged: bool) -> Duration {
        let (cost, now) = (Cost { requests: 1, bytes }, self.group.now());
        let line = &mut self.group.lock().line;
        let is_charged = mutated("qos.disk.own-reads-are-free", is_charged, false);
        if is_charged {
            line.owe(self.key, cost, now);
        }
        Duration::from_nanos(line.time_of(self.key, cost))
    }

    /// Registers a queue, on the thread of this reactor.
    pub(super) fn open_gate(&self, reactor: &Reactor) -> Arc<QueueGate> {
        let mut state = self.group.lock();
        let queue = state.line.add_queue(self.key);
        let gate = Arc::new(QueueGate::new(self.key, queue, reactor.waker()));
        gate.set_limited(state.line.is_limited(self.key));
        state.gates.retain(|gate| gate.strong_count() > 0);
        state.gates.push(Arc::downgrade(&gate));
        gate
    }

    /// Removes a queue.
    pub(super) fn close_gate(&self, gate: &QueueGate) {
        self.group.lock().line.remove_queue(gate.queue);
    }
}

impl Drop for DiskLimits {
    /// Its queues are gone: each holds a reference.
    fn drop(&mut self) {
        self.group.lock().line.remove_disk(self.key);
    }
}
