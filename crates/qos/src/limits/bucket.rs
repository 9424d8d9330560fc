//! A token bucket, as pure arithmetic on a clock in nanoseconds.
//!
//! The bucket is stored as the time at which it is (or was) exactly empty. Tokens come at a rate,
//! so a later time than now means a debt, an earlier one a credit, up to the burst. Taking tokens
//! requires that the bucket is not in debt, but may then create any debt, so that a request larger
//! than the burst passes.

use std::time::Duration;

const SECOND: u128 = 1_000_000_000;

/// A token bucket.
#[derive(Clone, Debug, Default)]
pub struct Bucket {
    /// Tokens per second; `None`: the bucket never runs out.
    rate: Option<u64>,
    burst_ns: u64,
    /// Time at which it has neither tokens nor a debt.
    empty_at: u64,
    /// Fraction of a nanosecond omitted in `empty_at`, in units of 1/`rate`.
    fraction: u64,
}

impl Bucket {
    /// Sets the rate and the burst. With another rate, a debt is kept in tokens, and credit ends.
    pub fn set(&mut self, rate: Option<u64>, burst: Duration, now: u64) {
        self.burst_ns = u64::try_from(burst.as_nanos()).unwrap_or(u64::MAX);
        if rate == self.rate {
            return;
        }
        let owed_ns = u128::from(self.empty_at.saturating_sub(now));
        let owed = owed_ns * u128::from(self.rate.unwrap_or(0)) / SECOND;
        *self = Self { rate, burst_ns: self.burst_ns, empty_at: now, fraction: 0 };
        self.take(u64::try_from(owed).unwrap_or(u64::MAX), now);
    }

    /// Returns the time at which it is out of debt, which may be long ago.
    pub const fn ready_at(&self) -> u64 {
        if self.rate.is_some() { self.empty_at } else { 0 }
    }

    /// Takes tokens, whether they are available or not.
    pub fn take(&mut self, tokens: u64, now: u64) {
        let Some(rate) = self.rate else { return };
        let earliest = now.saturating_sub(self.burst_ns);
        if self.empty_at < earliest {
            (self.empty_at, self.fraction) = (earliest, 0);
        }
        let parts = u128::from(tokens) * SECOND + u128::from(self.fraction);
        let ns = u64::try_from(parts / u128::from(rate)).unwrap_or(u64::MAX);
        self.empty_at = self.empty_at.saturating_add(ns);
        self.fraction = (parts % u128::from(rate)) as u64;
    }

    /// Returns tokens that were taken and not needed.
    pub fn give(&mut self, tokens: u64) {
        let Some(rate) = self.rate else { return };
        let parts = u128::from(tokens) * SECOND;
        let ns = u64::try_from(parts / u128::from(rate)).unwrap_or(u64::MAX);
        let fraction = (parts % u128::from(rate)) as u64;
        let borrows = self.fraction < fraction;
        self.fraction =
            if borrows { self.fraction + (rate - fraction) } else { self.fraction - fraction };
        self.empty_at = self.empty_at.saturating_sub(ns).saturating_sub(u64::from(borrows));
    }

    /// Returns whether it has a rate.
    pub const fn is_limited(&self) -> bool {
        self.rate.is_some()
    }

    /// Returns how many tokens come in a time, at least one; without a rate the greatest number.
    pub fn tokens_in(&self, ns: u64) -> u64 {
        let tokens = |rate: u64| u128::from(rate) * u128::from(ns) / SECOND;
        self.rate.map_or(u64::MAX, |rate| u64::try_from(tokens(rate)).unwrap_or(u64::MAX).max(1))
    }

    /// Returns the time in which this many tokens come.
    pub fn time_of(&self, tokens: u64) -> u64 {
        let ns = |rate: u64| u128::from(tokens) * SECOND / u128::from(rate);
        self.rate.map_or(0, |rate| u64::try_from(ns(rate)).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const MS: u64 = 1_000_000;
    const BURST: Duration = Duration::from_millis(10);

    fn bucket(rate: u64, burst: Duration) -> Bucket {
        let mut bucket = Bucket::default();
        bucket.set(Some(rate), burst, SECOND);
        bucket
    }

    /// Takes as much as possible at each of `looks`. Returns how much that was.
    fn drain(bucket: &mut Bucket, looks: impl Iterator<Item = u64>) -> u64 {
        let mut taken = 0;
        for now in looks {
            while bucket.ready_at() <= now {
                bucket.take(1, now);
                taken += 1;
            }
        }
        taken
    }

    #[test]
    fn the_rate_is_exact_however_it_divides_a_second_and_however_late_the_looks_are() {
        for rate in [1, 3, 7, 999, 20_000, 333_333, 3_000_007] {
            for step in [MS / 10, MS, 9 * MS] {
                let mut bucket = bucket(rate, BURST);
                let end = SECOND + 10 * SECOND;
                let taken = drain(&mut bucket, (SECOND..end).step_by(step as usize));
                // One may be owed at the end, and the last look is a step before it.
                let least = (rate * 10).saturating_sub(rate * step / SECOND + 1);
                assert!((least..=rate * 10 + 1).contains(&taken), "{rate}, {step}: {taken}");
            }
        }
    }

    #[test]
    fn credit_is_what_a_burst_of_idle_time_brings_and_no_more() {
        for (idle, credit) in [(5 * MS, 5), (10 * MS, 10), (3600 * SECOND, 10)] {
            let mut bucket = bucket(1000, BURST);
            let taken = drain(&mut bucket, std::iter::once(SECOND + idle));
            assert_eq!(taken, credit + 1, "one may be owed");
        }
    }

    #[test]
    fn a_request_larger_than_the_burst_passes_and_is_owed() {
        let mut bucket = bucket(1000, BURST);
        assert!(bucket.ready_at() <= SECOND);
        bucket.take(5000, SECOND);
        assert_eq!(bucket.ready_at(), 6 * SECOND);
        assert_eq!(drain(&mut bucket, [2 * SECOND, 6 * SECOND - 1].into_iter()), 0);
        assert_eq!(drain(&mut bucket, std::iter::once(6 * SECOND)), 1);
    }

    #[test]
    fn another_rate_keeps_the_tokens_that_are_owed_and_no_credit() {
        let mut owing = bucket(10, BURST);
        owing.take(100, SECOND);
        assert_eq!(owing.ready_at(), 11 * SECOND);
        owing.set(Some(1000), BURST, 6 * SECOND);
        assert_eq!(owing.ready_at(), 6 * SECOND + 50 * MS, "50 are owed");
        owing.set(None, BURST, 6 * SECOND);
        assert_eq!(owing.ready_at(), 0);
        owing.set(Some(10), BURST, 7 * SECOND);
        assert_eq!(owing.ready_at(), 7 * SECOND);

        let mut saved = bucket(10, Duration::from_secs(100));
        saved.set(Some(1000), Duration::from_secs(100), 50 * SECOND);
        assert_eq!(drain(&mut saved, std::iter::once(50 * SECOND)), 1);
    }

    /// Sizes are assumed before requests are read, and corrected afterwards.
    #[test]
    fn what_is_given_back_was_never_taken() {
        let mut random = fastrand::Rng::with_seed(5);
        let (mut exact, mut corrected) = (bucket(999_983, BURST), bucket(999_983, BURST));
        for _ in 0..1000 {
            let (tokens, more) = (random.u64(0..100_000), random.u64(0..100_000));
            exact.take(tokens, SECOND);
            corrected.take(tokens + more, SECOND);
            corrected.give(more);
            assert_eq!(exact.ready_at(), corrected.ready_at());
        }
    }

    #[test]
    fn tokens_of_a_time_are_at_least_one() {
        let counts = |rate| bucket(rate, BURST).tokens_in(10 * MS);
        assert_eq!((counts(1), counts(1000), counts(1 << 50)), (1, 10, (1 << 50) / 100));
        assert_eq!(Bucket::default().tokens_in(MS), u64::MAX);
    }

    #[test]
    fn nothing_overflows() {
        let mut bucket = bucket(1, Duration::from_secs(3600));
        (0..3).for_each(|_| bucket.take(u64::MAX, SECOND));
        assert_eq!((bucket.ready_at(), bucket.time_of(u64::MAX)), (u64::MAX, u64::MAX));
        bucket.set(Some(1 << 50), BURST, 2 * SECOND);
        assert!(bucket.ready_at() > 2 * SECOND);
    }
}
