//! State shared by the controlling thread and the workers during a run.
//!
//! Phases only advance. Each worker has a counter on its own cache line, by which a stall is
//! detected.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// The phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Phase {
    /// Warming up; not measured.
    Ramp = 0,
    /// Measured.
    Measure = 1,
    /// No new requests; those in flight are awaited.
    Drain = 2,
    /// Return at once, with requests in flight.
    Abort = 3,
}

/// A run's state, written by the controlling thread.
#[derive(Debug)]
pub(super) struct Shared {
    phase: AtomicU8,
    progress: Vec<Progress>,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Progress(AtomicU64);

impl Shared {
    pub(super) fn new(phase: Phase, workers: usize) -> Self {
        let progress = (0..workers).map(|_| Progress::default()).collect();
        Shared { phase: AtomicU8::new(phase as u8), progress }
    }

    #[inline]
    pub(super) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Ramp,
            1 => Phase::Measure,
            2 => Phase::Drain,
            _ => Phase::Abort,
        }
    }

    /// Advances to `phase`, never back.
    pub(super) fn enter(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::Relaxed);
    }

    /// Records that a worker has completed `requests` so far.
    #[inline]
    pub(super) fn report(&self, worker: usize, requests: u64) {
        self.progress[worker].0.store(requests, Ordering::Relaxed);
    }

    /// Returns the requests completed by all workers.
    pub(super) fn total(&self) -> u64 {
        self.progress.iter().map(|p| p.0.load(Ordering::Relaxed)).sum()
    }
}
