//! Counters of a queue, written by its thread only and read by the control plane.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use flowstone_block::{Op, OpKind, Outcome};

use crate::failures::Failures;
use crate::histogram::{Histogram, add};

const KINDS: usize = OpKind::ALL.len();

/// The counters of one queue. They persist across its runs: the requests of a rebooted guest are
/// added to them.
#[derive(Default)]
pub struct QueueCounters {
    /// Completed requests by kind, in the order of [`OpKind::ALL`].
    pub requests: [AtomicU64; KINDS],
    /// Bytes of completed requests by kind.
    pub bytes: [AtomicU64; KINDS],
    /// Failed requests by kind.
    pub errors: [AtomicU64; KINDS],
    /// Failed requests by errno, of all queues of the disk.
    pub failures: Arc<Failures>,
    /// Requests taken and not answered, as of the last turn with work.
    pub in_flight: AtomicU64,
    /// Requests answered without the disk: device identity, unknown types, invalid ranges.
    pub answered: AtomicU64,
    /// Notifications from the driver.
    pub kicks: AtomicU64,
    /// Interrupts to the driver.
    pub calls: AtomicU64,
    /// Sleeps of the queue's thread.
    pub sleeps: AtomicU64,
    /// Nanoseconds slept.
    pub sleep_ns: AtomicU64,
    /// Nanoseconds spent polling for work.
    pub spin_ns: AtomicU64,
    /// Latency from submission to completion, by kind; each range of a request counts separately.
    pub device: [Histogram; KINDS],
    /// Time from taking a batch off the ring to having submitted it.
    pub submit: Histogram,
    /// Of a split queue: time from finding chains in the ring to having handed them over.
    pub front: Histogram,
    /// Of a split queue: sleeps of the front thread.
    pub front_sleeps: AtomicU64,
    /// Of a split queue: nanoseconds that the front thread polled for work.
    pub front_spin_ns: AtomicU64,
    /// Time from reaping a batch's completions to having published them to the driver.
    pub publish: Histogram,
    /// Whether the queue runs split (on two threads), or did in its last run.
    pub is_split: AtomicBool,
    /// Changes between one thread and two while the queue ran.
    pub form_changes: AtomicU64,
}

impl QueueCounters {
    /// Returns the nanoseconds spent in turns that found work.
    pub fn work_ns(&self) -> u64 {
        self.submit.sum_ns() + self.publish.sum_ns()
    }

    /// Returns the same for the front thread of a split queue.
    pub fn front_ns(&self) -> u64 {
        self.front.sum_ns()
    }

    /// Returns the number of completed requests of all kinds.
    pub fn all_requests(&self) -> u64 {
        self.requests.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Records whether the queue starts to run on two threads.
    pub fn runs_as(&self, is_split: bool) {
        self.is_split.store(is_split, Ordering::Relaxed);
    }

    /// Counts a change between one thread and two.
    pub fn form_changed(&self) {
        add(&self.form_changes, 1);
    }

    /// Counts a completed request, or one completed range of it, with its latency.
    #[inline]
    pub fn came_back(&self, op: Op, latency: Duration) {
        let kind = op.kind() as usize;
        add(&self.bytes[kind], op.bytes());
        self.device[kind].record(latency);
    }

    /// Counts a completed request (its last range has completed).
    #[inline]
    pub fn completed(&self, kind: OpKind, outcome: Outcome) {
        add(&self.requests[kind as usize], 1);
        if let Err(errno) = outcome {
            add(&self.errors[kind as usize], 1);
            self.failures.add(kind, errno);
        }
    }
}
