//! The times of requests of a queue with a fixed rate, independent of completions (open loop).
//!
//! Time is divided into slots of equal length, and each burst of requests, or single request, is
//! due at a random time in its own slot. So the rate is exact over longer times, and queues of the
//! same rate are not synchronised.
//! A delayed queue catches up by a few milliseconds at most; bursts missed before that are never
//! sent. One that has begun is sent to its end.

use fastrand::Rng;

/// Most lateness that is caught up.
const LATE_MAX_NS: f64 = 2e6;

/// The times of one queue's requests.
#[derive(Debug)]
pub(super) struct Pace {
    random: Rng,
    slot_ns: f64,
    /// Start of the slot after that of the next request.
    next_slot_ns: f64,
    due_ns: u64,
    /// Requests that are due together, and those of them that are left.
    burst: u32,
    left: u32,
}

impl Pace {
    /// Makes a pace of `rate` requests per second, `burst` at a time, from time zero on.
    pub(super) fn new(rate: f64, burst: u32, seed: u64) -> Self {
        let slot_ns = f64::from(burst) * 1e9 / rate;
        let random = Rng::with_seed(seed);
        let mut pace = Pace { random, slot_ns, next_slot_ns: 0.0, due_ns: 0, burst, left: 1 };
        pace.sent(0);
        pace
    }

    /// Returns when the next request is to be sent.
    #[inline]
    pub(super) fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Records that it has been sent.
    #[inline]
    pub(super) fn sent(&mut self, now_ns: u64) {
        self.left -= 1;
        if self.left > 0 {
            return;
        }
        self.left = self.burst;
        let slot_ns = self.next_slot_ns.max(now_ns as f64 - LATE_MAX_NS);
        self.due_ns = (slot_ns + self.random.f64() * self.slot_ns) as u64;
        self.next_slot_ns = slot_ns + self.slot_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_exact_and_the_moments_are_not() {
        let mut pace = Pace::new(20_000.0, 1, 1);
        let (mut now, mut sent, mut gaps) = (0, 0, Vec::new());
        while pace.due_ns() < 1_000_000_000 {
            gaps.push(pace.due_ns() - now);
            now = pace.due_ns();
            pace.sent(now);
            sent += 1;
        }
        assert!((19_999..=20_001).contains(&sent), "{sent}");
        assert!(gaps.iter().all(|gap| *gap <= 100_000));
        assert!(gaps.iter().any(|gap| *gap < 10_000) && gaps.iter().any(|gap| *gap > 80_000));
    }

    #[test]
    fn requests_of_a_burst_are_due_together() {
        let mut pace = Pace::new(10_000.0, 100, 1);
        let mut bursts = std::collections::BTreeMap::new();
        while pace.due_ns() < 1_000_000_000 {
            *bursts.entry(pace.due_ns()).or_insert(0) += 1;
            pace.sent(pace.due_ns());
        }
        assert!((99..=101).contains(&bursts.len()), "{}", bursts.len());
        assert!(bursts.values().all(|requests| *requests == 100));
    }

    #[test]
    fn what_was_missed_in_a_pause_is_not_sent_all_at_once() {
        let mut pace = Pace::new(10_000.0, 1, 1);
        let now = 5_000_000_000;
        let mut sent = 0;
        while pace.due_ns() <= now {
            pace.sent(now);
            sent += 1;
        }
        // The one that was due, and those of two milliseconds.
        assert!((20..=22).contains(&sent), "{sent}");
    }
}
