//! Adaptive polling: how long a queue polls before it sleeps.
//!
//! Sleeping costs two context switches and, for the driver, a notification; polling costs the core.
//! So a queue polls for about as long as its recent gaps between work: a busy queue never sleeps,
//! and one whose gaps are longer than is worth polling sleeps at once.

use std::time::Duration;

use clap::ValueEnum;

use crate::histogram::nanos;

/// When a queue looks for work by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PollMode {
    /// For about as long as recent gaps between requests
    #[default]
    Auto,
    /// All the time: lowest latency, at the cost of a core per poller of such a queue
    Always,
    /// Notifications only
    Never,
}

/// Longest gap to poll through while the disk is busy: about the cost of a sleep and a wake-up, and
/// the time of one access to a fast disk.
pub const FOR_DISK: Duration = Duration::from_micros(150);
/// The same when only the driver can bring work, on a thread of the queue's own, which exists for
/// latency.
pub const FOR_DRIVER: Duration = FOR_DISK;
/// The same on a shared thread, which exists to save CPU time. A driver that answers completions at
/// once does so in less, even when woken by an interrupt; for one that sends requests at intervals,
/// independent of completions, polling would take ten times as long as the request itself.
pub const FOR_DRIVER_SHARED: Duration = Duration::from_micros(25);
/// Least time for which a queue in use polls.
const LOOK_MIN: Duration = Duration::from_micros(20);
/// Weight of the newest gap in the average: 1/8.
const SMOOTHING_LOG2: u32 = 3;

/// The polling budget of one queue.
#[derive(Debug)]
pub struct SpinBudget {
    mode: PollMode,
    /// Longest gap that is polled through.
    worth: Duration,
    /// Smoothed gap in nanoseconds.
    gap_ns: u64,
}

impl SpinBudget {
    /// Starts with a long gap, so without polling: the first gaps decide.
    pub fn new(mode: PollMode, worth: Duration) -> Self {
        Self { mode, worth, gap_ns: 2 * nanos(worth) }
    }

    /// Returns how long to poll now.
    pub fn budget(&self) -> Duration {
        match self.mode {
            PollMode::Never => Duration::ZERO,
            PollMode::Always => Duration::MAX,
            PollMode::Auto if self.gap_ns > nanos(self.worth) => Duration::ZERO,
            PollMode::Auto => Duration::from_nanos(2 * self.gap_ns).max(LOOK_MIN),
        }
    }

    /// Adds an idle gap to the average.
    pub fn learn(&mut self, gap: Duration) {
        // Gaps are capped: after any long pause sleeping was right, and the next burst must make
        // the queue poll again soon.
        let gap_ns = nanos(gap).min(4 * nanos(self.worth));
        self.gap_ns = self.gap_ns - (self.gap_ns >> SMOOTHING_LOG2) + (gap_ns >> SMOOTHING_LOG2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(gaps: &[(usize, Duration)]) -> Duration {
        let mut budget = SpinBudget::new(PollMode::Auto, FOR_DISK);
        for (times, gap) in gaps {
            (0..*times).for_each(|_| budget.learn(*gap));
        }
        budget.budget()
    }

    #[test]
    fn a_queue_starts_asleep_and_wakes_up_under_load() {
        assert_eq!(after(&[]), Duration::ZERO);
        assert!(after(&[(20, Duration::from_micros(5))]) >= LOOK_MIN);
    }

    #[test]
    fn the_budget_covers_a_gap_of_the_usual_length() {
        assert!(after(&[(50, Duration::from_micros(70))]) >= Duration::from_micros(70));
    }

    #[test]
    fn long_gaps_are_slept_through_and_one_pause_is_soon_forgotten() {
        assert_eq!(after(&[(50, Duration::from_millis(3))]), Duration::ZERO);
        let hour = Duration::from_secs(3600);
        assert!(after(&[(50, Duration::from_micros(5)), (1, hour)]) > Duration::ZERO);
        assert!(after(&[(9, hour), (16, Duration::from_micros(5))]) > Duration::ZERO);
    }

    /// Four disks with 20,000 requests a second each took a core, for a fifth of a core's work.
    #[test]
    fn on_a_shared_thread_a_driver_is_not_waited_for_as_long_as_a_disk() {
        let gap = Duration::from_micros(50);
        let after = |worth| {
            let mut budget = SpinBudget::new(PollMode::Auto, worth);
            (0..50).for_each(|_| budget.learn(gap));
            budget.budget()
        };
        assert_eq!(after(FOR_DRIVER_SHARED), Duration::ZERO);
        assert!(after(FOR_DRIVER) >= gap);
    }

    #[test]
    fn always_and_never_do_not_learn() {
        let mut never = SpinBudget::new(PollMode::Never, FOR_DISK);
        let mut always = SpinBudget::new(PollMode::Always, FOR_DISK);
        never.learn(Duration::from_nanos(1));
        always.learn(Duration::from_secs(1));
        assert_eq!((never.budget(), always.budget()), (Duration::ZERO, Duration::MAX));
    }
}
