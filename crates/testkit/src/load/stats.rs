//! Counts and latencies of one worker, added up at the end.
//!
//! Everything is preallocated; recording is an array increment.

use hdrhistogram::Histogram;

use super::source::Kind;

/// Resolution of latencies, and the longest that is recorded exactly.
const LATENCY_NS: (u64, u64) = (100, 120_000_000_000);

/// The statistics of the measured phase.
#[derive(Clone, Debug)]
pub(super) struct Stats {
    latency: [Histogram<u64>; 5],
    pub(super) kicks: u64,
    pub(super) calls: u64,
    /// Longest time between two polls that found completions.
    pub(super) longest_gap_ns: u64,
    pub(super) errors: u64,
    pub(super) first_error: Option<String>,
}

impl Stats {
    pub(super) fn new() -> Self {
        let (low, high) = LATENCY_NS;
        let histogram =
            || Histogram::new_with_bounds(low, high, 3).expect("the bounds are in order");
        Stats {
            latency: std::array::from_fn(|_| histogram()),
            kicks: 0,
            calls: 0,
            longest_gap_ns: 0,
            errors: 0,
            first_error: None,
        }
    }

    /// Resets everything without freeing memory.
    pub(super) fn clear(&mut self) {
        self.latency.iter_mut().for_each(Histogram::reset);
        (self.kicks, self.calls, self.longest_gap_ns) = (0, 0, 0);
    }

    #[inline]
    pub(super) fn record(&mut self, kind: Kind, latency_ns: u64) {
        self.latency[kind as usize].saturating_record(latency_ns);
    }

    /// Counts a request that was not completed with OK. Errors of the ramp count too.
    pub(super) fn fail(&mut self, describe: impl FnOnce() -> String) {
        self.errors += 1;
        self.first_error.get_or_insert_with(describe);
    }

    /// Adds only the errors of another pass.
    pub(super) fn add_errors(&mut self, other: &Stats) {
        self.errors += other.errors;
        if self.first_error.is_none() {
            self.first_error.clone_from(&other.first_error);
        }
    }

    /// Returns the number of requests, without flushes: they are overhead of the others.
    pub(super) fn ops(&self) -> u64 {
        Kind::ALL.iter().filter(|&&kind| kind != Kind::Flush).map(|&k| self.of(k).len()).sum()
    }

    pub(super) fn of(&self, kind: Kind) -> &Histogram<u64> {
        &self.latency[kind as usize]
    }

    /// Returns all kinds except flushes in one histogram.
    pub(super) fn requests(&self) -> Histogram<u64> {
        let mut all = self.of(Kind::Read).clone();
        for kind in [Kind::Write, Kind::Discard, Kind::Zeroes] {
            all.add(self.of(kind)).expect("all histograms have the same bounds");
        }
        all
    }

    pub(super) fn add(&mut self, other: &Stats) {
        for (mine, theirs) in self.latency.iter_mut().zip(&other.latency) {
            mine.add(theirs).expect("all histograms have the same bounds");
        }
        self.kicks += other.kicks;
        self.calls += other.calls;
        self.longest_gap_ns = self.longest_gap_ns.max(other.longest_gap_ns);
        self.add_errors(other);
    }
}
