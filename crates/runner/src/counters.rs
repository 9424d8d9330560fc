//! Counters of a queue, written by its thread only and read by the control plane.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use flowstone_block::{Metric, MetricKind, Op, OpKind, Outcome};

use crate::failures::Failures;
use crate::histogram::{Histogram, Snapshot, add};

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
    /// Metrics of a disk's queues. An operation that has never happened has none.
    pub const METRICS: &[Metric<[Arc<Self>]>] = &[
        Metric::each(
            MetricKind::Counter,
            "flowstone_requests_total",
            "op",
            "Completed requests",
            |queues, add| by_kind(queues, |it| &it.requests, add),
        ),
        Metric::each(
            MetricKind::Counter,
            "flowstone_request_bytes_total",
            "op",
            "Bytes of completed requests",
            |queues, add| by_kind(queues, |it| &it.bytes, add),
        ),
        Metric::each(
            MetricKind::Counter,
            "flowstone_request_errors_total",
            "op",
            "Failed requests",
            |queues, add| by_kind(queues, |it| &it.errors, add),
        ),
        Metric::gauge(
            "flowstone_requests_in_flight",
            "Requests taken from rings and not completed",
            |queues| sum(queues, |it| &it.in_flight),
        ),
        Metric::counter(
            "flowstone_polling_seconds_total",
            "Time that queues polled for work",
            |queues| (sum(queues, |it| &it.spin_ns) + sum(queues, |it| &it.front_spin_ns)) / 1e9,
        ),
        Metric::counter("flowstone_sleeping_seconds_total", "Time that queues slept", |queues| {
            sum(queues, |it| &it.sleep_ns) / 1e9
        }),
        Metric::counter("flowstone_kicks_total", "Notifications from guests", |queues| {
            sum(queues, |it| &it.kicks)
        }),
        Metric::counter("flowstone_calls_total", "Interrupts to guests", |queues| {
            sum(queues, |it| &it.calls)
        }),
    ];

    /// Durations of a disk's queues.
    pub const DURATIONS: &[Metric<[Arc<Self>], Snapshot>] = &[
        Metric::each(
            MetricKind::Histogram,
            "flowstone_request_duration_seconds",
            "op",
            "Latency from submission to completion, for each range of a request separately",
            |queues, add| {
                for kind in happened(queues) {
                    add(kind.name(), merged(queues, |it| &it.device[kind as usize]));
                }
            },
        ),
        Metric::each(
            MetricKind::Summary,
            "flowstone_stage_duration_seconds",
            "stage",
            "Time of batches in a stage: front (from the ring to the other thread), submit, publish",
            |queues, add| {
                let stages = [
                    ("front", merged(queues, |it| &it.front)),
                    ("submit", merged(queues, |it| &it.submit)),
                    ("publish", merged(queues, |it| &it.publish)),
                ];
                let happened = stages.into_iter().filter(|(_, times)| times.count() > 0);
                happened.for_each(|(stage, times)| add(stage, times));
            },
        ),
    ];

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

fn sum(queues: &[Arc<QueueCounters>], counter: impl Fn(&QueueCounters) -> &AtomicU64) -> f64 {
    queues.iter().map(|queue| counter(queue).load(Ordering::Relaxed)).sum::<u64>() as f64
}

/// Returns the operations that guests have requested.
fn happened(queues: &[Arc<QueueCounters>]) -> impl Iterator<Item = OpKind> {
    let kinds = OpKind::ALL.into_iter();
    kinds.filter(|kind| sum(queues, |it| &it.requests[*kind as usize]) > 0.0)
}

fn by_kind(
    queues: &[Arc<QueueCounters>],
    counters: fn(&QueueCounters) -> &[AtomicU64; KINDS],
    add: &mut dyn FnMut(&str, f64),
) {
    for kind in happened(queues) {
        add(kind.name(), sum(queues, |it| &counters(it)[kind as usize]));
    }
}

fn merged(
    queues: &[Arc<QueueCounters>],
    histogram: impl Fn(&QueueCounters) -> &Histogram,
) -> Snapshot {
    let mut all = Snapshot::default();
    queues.iter().for_each(|queue| all.merge(&histogram(queue).snapshot()));
    all
}
