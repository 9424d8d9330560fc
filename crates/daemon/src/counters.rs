//! What a queue counts about itself. Written by its thread only, read by the control plane.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use flowstone_block::{Completion, OpKind};

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
    /// Nanoseconds it looked for work and found none.
    pub spin_ns: AtomicU64,
    /// From submission to completion, by kind.
    pub device: [Histogram; KINDS],
    /// From taking a batch off the ring to having submitted it.
    pub submit: Histogram,
    /// From a batch's completions to having shown them to the driver.
    pub publish: Histogram,
}

impl QueueCounters {
    /// Counts a completion that came `latency` after its submission.
    pub fn completed(&self, completion: &Completion, latency: Duration) {
        let op = completion.request.op;
        let kind = op.kind() as usize;
        add(&self.requests[kind], 1);
        add(&self.bytes[kind], op.bytes());
        if completion.outcome.is_err() {
            add(&self.errors[kind], 1);
        }
        self.device[kind].record(latency);
    }
}
