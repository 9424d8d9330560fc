//! What a queue counts about itself. Written by its thread only, read by the control plane.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use flowstone_block::{Op, OpKind, Outcome};

use crate::failures::Failures;
use crate::histogram::{Histogram, add};

const KINDS: usize = OpKind::ALL.len();

/// The counters of one queue. They outlive its runs: a guest that reboots keeps adding to them.
#[derive(Default)]
pub struct QueueCounters {
    /// Completed requests by kind, in the order of [`OpKind::ALL`].
    pub requests: [AtomicU64; KINDS],
    /// Bytes of completed requests by kind.
    pub bytes: [AtomicU64; KINDS],
    /// Failed requests by kind.
    pub errors: [AtomicU64; KINDS],
    /// Why they failed, of all queues of the disk.
    pub failures: Arc<Failures>,
    /// Requests that it has taken and not answered, as of its last turn with work.
    pub in_flight: AtomicU64,
    /// Requests answered without the disk: identity, unknown types, invalid ranges.
    pub answered: AtomicU64,
    /// Notifications from the driver.
    pub kicks: AtomicU64,
    /// Interrupts to the driver.
    pub calls: AtomicU64,
    /// Times the queue's thread slept.
    pub sleeps: AtomicU64,
    /// Nanoseconds it slept.
    pub sleep_ns: AtomicU64,
    /// Nanoseconds it looked for work before it found some or gave up.
    pub spin_ns: AtomicU64,
    /// From submission to completion, by kind; each range of a request counts by itself.
    pub device: [Histogram; KINDS],
    /// From taking a batch off the ring to having submitted it.
    pub submit: Histogram,
    /// Of a queue on two threads: from finding chains in the ring to having handed them over.
    pub front: Histogram,
    /// ... times the thread that takes requests slept
    pub front_sleeps: AtomicU64,
    /// ... and nanoseconds that it looked for work.
    pub front_spin_ns: AtomicU64,
    /// From a batch's completions to having shown them to the driver.
    pub publish: Histogram,
    /// Whether it runs on two threads, or did when it ran last.
    pub is_split: AtomicBool,
    /// Times that it went from one thread to two, or back, while it ran.
    pub form_changes: AtomicU64,
}

impl QueueCounters {
    /// Nanoseconds in turns that found work.
    pub fn work_ns(&self) -> u64 {
        self.submit.sum_ns() + self.publish.sum_ns()
    }

    /// ... of the thread that takes requests, of a queue on two threads.
    pub fn front_ns(&self) -> u64 {
        self.front.sum_ns()
    }

    /// All completed requests.
    pub fn all_requests(&self) -> u64 {
        self.requests.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// It begins to run on two threads, or on one.
    pub fn runs_as(&self, is_split: bool) {
        self.is_split.store(is_split, Ordering::Relaxed);
    }

    /// It has gone from one thread to two, or back.
    pub fn form_changed(&self) {
        add(&self.form_changes, 1);
    }

    /// Counts a request, or one range of it, that came back `latency` after its submission.
    #[inline]
    pub fn came_back(&self, op: Op, latency: Duration) {
        let kind = op.kind() as usize;
        add(&self.bytes[kind], op.bytes());
        self.device[kind].record(latency);
    }

    /// Counts a request whose last range has come back.
    #[inline]
    pub fn completed(&self, kind: OpKind, outcome: Outcome) {
        add(&self.requests[kind as usize], 1);
        if let Err(errno) = outcome {
            add(&self.errors[kind as usize], 1);
            self.failures.add(kind, errno);
        }
    }
}
