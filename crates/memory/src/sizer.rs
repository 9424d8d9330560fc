//! Decides the size of a cache from memory readings; does no I/O.
//!
//! Memory is short when less than a sixteenth of it is available, or when processes stalled on
//! memory for a tenth of the time. Then the cache shrinks at once, by the shortfall below an eighth
//! and by at least an eighth of itself. When memory has been plentiful for a while (more than an
//! eighth available, almost no stalls), the cache may take half of the surplus, at most a sixteenth
//! of its maximum at a time, as long as its miss-ratio curve promises hits. In between, it gives up
//! memory that brings almost no hits. If memory becomes short soon after the cache has grown, the
//! next growth has to wait twice as long, so that its size does not oscillate.

use std::time::Duration;

use crate::mutated;

/// Divisors of the total memory: it is short below 1/16 available, and plentiful above 1/8.
const SHORT_OF: u64 = 16;
pub(crate) const PLENTY_OF: u64 = 8;
/// Shares of the time with stalls above which memory is short, and below which it is plentiful.
const SHORT_WAITING: f64 = 0.1;
const PLENTY_WAITING: f64 = 0.01;
/// Divisors of steps: of the held bytes, and of the maximum.
const SHRINK_OF: u64 = 8;
const GROW_OF: u64 = 16;
const STEP_MIN_OF: u64 = 256;
/// Shortest and longest time of plentiful memory before the cache grows.
const CALM_MIN: Duration = Duration::from_secs(10);
const CALM_MAX: Duration = Duration::from_secs(1280);
/// Largest loss of hit ratio that is accepted to free memory; the cache grows for twice as much.
const LOSS_MAX: f64 = 0.002;
/// A shortage within this time of a growth is attributed to it.
const SOON: Duration = Duration::from_secs(60);

/// A reading of the host's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Bytes available without swapping: the minimum over the host and the memory cgroups.
    pub available: u64,
    /// Total bytes of memory.
    pub total: u64,
    /// Share of the time since the last reading in which some process stalled on memory.
    pub waiting: f64,
}

/// Estimated hit ratio of a cache of the given bytes, weighted by VM; `None` while it is unknown.
pub type HitRatio<'a> = &'a dyn Fn(u64) -> Option<f64>;

/// Bounds of a cache's size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Least bytes.
    pub min: u64,
    /// Most bytes.
    pub max: u64,
}

/// A change of the cache's size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Old size in bytes.
    pub from: u64,
    /// New size in bytes.
    pub to: u64,
    /// Its reason.
    pub reason: Reason,
}

/// Reasons for a change of the cache's size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// Memory is short.
    Short(Reading),
    /// The memory given up brings only this hit ratio.
    Unused(f64),
    /// These bytes have been available for this time.
    Plenty(u64, Duration),
}

/// The sizing policy.
#[derive(Debug)]
pub struct Sizer {
    limits: Limits,
    target: u64,
    /// Start of the current period of plentiful memory.
    calm_since: Option<Duration>,
    /// Required length of that period.
    calm: Duration,
    /// Start of the current period of neither plentiful nor short memory.
    tight_since: Option<Duration>,
    grown: Option<Duration>,
}

impl Sizer {
    /// Makes a sizer whose cache may take its maximum.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            target: limits.max,
            calm_since: None,
            calm: CALM_MIN,
            tight_since: None,
            grown: None,
        }
    }

    /// Returns the bytes that the cache may take now.
    pub fn target(&self) -> u64 {
        self.target
    }

    /// Sets other bounds. The cache keeps its share of the maximum, so that a change that is undone
    /// leaves it as it was.
    pub fn set_limits(&mut self, limits: Limits) {
        if limits == self.limits {
            return;
        }
        let wanted = u128::from(self.target) * u128::from(limits.max);
        let part = wanted.checked_div(self.limits.max.into());
        self.target = part.map_or(limits.max, |part| part as u64).max(limits.min);
        self.limits = limits;
    }

    /// Returns the change to be made at time `now`, when the cache holds `held` bytes.
    pub fn decide(
        &mut self,
        now: Duration,
        reading: Reading,
        held: u64,
        hit_ratio: HitRatio<'_>,
    ) -> Option<Change> {
        let Reading { available, total, waiting } = reading;
        let plenty = total / PLENTY_OF;
        let waits = mutated("memory.sizer.ignores-who-waits", waiting > SHORT_WAITING, false);
        let is_short = available < total / SHORT_OF || waits;
        if is_short {
            (self.calm_since, self.tight_since) = (None, None);
            return self.shrink(now, reading, held);
        }
        if available <= plenty || waiting > PLENTY_WAITING {
            self.calm_since = None;
            let since = *self.tight_since.get_or_insert(now);
            return if now - since < CALM_MIN { None } else { self.trim(now, hit_ratio) };
        }
        self.tight_since = None;
        let since = *self.calm_since.get_or_insert(now);
        if now - since < self.calm {
            return None;
        }
        // Memory that the cache may already take but does not hold must not be granted a second
        // time.
        let promised = self.target.saturating_sub(held);
        let promised = mutated("memory.sizer.promises-twice", promised, 0);
        // While the hit ratio is unknown, growth is tried.
        let gain = hit_ratio(self.limits.max).zip(hit_ratio(self.target));
        let is_idle = gain.is_some_and(|(most, now)| most - now < 2.0 * LOSS_MAX);
        let is_idle = mutated("memory.sizer.grows-for-nothing", is_idle, false);
        if is_idle {
            return None;
        }
        self.grow(now, available, (available - plenty).saturating_sub(promised))
    }

    /// Gives up memory that brings almost no hits.
    fn trim(&mut self, now: Duration, hit_ratio: HitRatio<'_>) -> Option<Change> {
        let to = self.target.saturating_sub(self.limits.max / GROW_OF).max(self.limits.min);
        let loss = hit_ratio(self.limits.max)? - hit_ratio(to)?;
        let is_used = mutated("memory.sizer.gives-up-what-is-used", loss > LOSS_MAX, false);
        if to == self.target || is_used {
            return None;
        }
        self.tight_since = Some(now);
        Some(self.change(to, Reason::Unused(loss)))
    }

    fn shrink(&mut self, now: Duration, reading: Reading, held: u64) -> Option<Change> {
        let Reading { available, total, .. } = reading;
        let is_soon = self.grown.take().is_some_and(|grown| now - grown < SOON);
        let is_soon = mutated("memory.sizer.swings", is_soon, false);
        if is_soon {
            self.calm = (self.calm * 2).min(CALM_MAX);
        }
        // Memory that the cache may take but does not hold is free anyway.
        let size = self.target.min(held);
        let missing = (total / PLENTY_OF).saturating_sub(available);
        let less = missing.max(size / SHRINK_OF);
        let least = mutated("memory.sizer.below-its-least", self.limits.min, 0);
        let to = size.saturating_sub(less).max(least);
        (to < self.target).then(|| self.change(to, Reason::Short(reading)))
    }

    fn grow(&mut self, now: Duration, available: u64, spare: u64) -> Option<Change> {
        let step = (self.limits.max / GROW_OF).min(spare / 2);
        let to = (self.target + step).min(self.limits.max);
        let is_worth_it = to - self.target >= self.limits.max / STEP_MIN_OF;
        if to == self.target || !(is_worth_it || to == self.limits.max) {
            return None;
        }
        self.grown = Some(now);
        Some(self.change(to, Reason::Plenty(available, self.calm)))
    }

    fn change(&mut self, to: u64, reason: Reason) -> Change {
        let from = std::mem::replace(&mut self.target, to);
        Change { from, to, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const LIMITS: Limits = Limits { min: GIB / 8, max: GIB };

    /// Every byte of the cache brings hits.
    fn all_of_it(bytes: u64) -> Option<f64> {
        Some(bytes as f64 / GIB as f64)
    }

    /// Half of it has all the hits.
    fn a_half_of_it(bytes: u64) -> Option<f64> {
        Some((bytes as f64 / GIB as f64).min(0.5))
    }

    /// A host of 8 GiB on which others use `used`, with a cache that holds all it may.
    struct Host {
        sizer: Sizer,
        now: Duration,
        cache: u64,
        changes: usize,
    }

    impl Host {
        fn new() -> Self {
            let (now, sizer) = (Duration::ZERO, Sizer::new(LIMITS));
            Self { sizer, now, cache: GIB, changes: 0 }
        }

        fn run(&mut self, seconds: u64, used: u64, waiting: f64) {
            for _ in 0..seconds * 2 {
                self.now += Duration::from_millis(500);
                let available = (8 * GIB).saturating_sub(used + self.cache);
                let reading = Reading { available, total: 8 * GIB, waiting };
                if let Some(change) = self.sizer.decide(self.now, reading, self.cache, &all_of_it) {
                    assert!(
                        (LIMITS.min..=LIMITS.max).contains(&change.to) && change.to != change.from
                    );
                    self.cache = change.to;
                    self.changes += 1;
                }
            }
        }
    }

    #[test]
    fn a_host_with_plenty_is_left_alone() {
        let mut host = Host::new();
        host.run(3600, 4 * GIB, 0.0);
        assert_eq!((host.cache, host.changes), (GIB, 0));
    }

    #[test]
    fn what_is_missing_is_given_back_within_a_second_and_taken_again_when_there_is_room() {
        let mut host = Host::new();
        host.run(1, 7 * GIB - GIB / 4, 0.0);
        assert!(host.cache < GIB / 2, "{}", host.cache);
        host.run(10, 7 * GIB, 0.0);
        assert!(8 * GIB - 7 * GIB - host.cache >= GIB / 2);
        host.run(60, 4 * GIB, 0.0);
        assert_eq!(host.cache, GIB);
    }

    #[test]
    fn processes_that_wait_take_all_but_the_minimum() {
        let mut host = Host::new();
        host.run(20, GIB, 0.5);
        assert_eq!(host.cache, LIMITS.min);
        let changes = host.changes;
        host.run(20, GIB, 0.5);
        assert_eq!(host.changes, changes, "there is nothing left to give");
    }

    /// The host has room for half of the cache: its size settles near that.
    #[test]
    fn the_size_does_not_swing() {
        let mut host = Host::new();
        host.run(600, 8 * GIB - GIB / 2 - 9 * GIB / 16, 0.0);
        let settled = host.changes;
        host.run(3600, 8 * GIB - GIB / 2 - 9 * GIB / 16, 0.0);
        assert!(host.changes <= settled + 2, "{settled}, then {}", host.changes);
        // Others come and go every half minute: the size follows less and less often.
        let mut changes = Vec::new();
        for _ in 0..4 {
            let before = host.changes;
            for _ in 0..20 {
                host.run(15, 7 * GIB, 0.0);
                host.run(15, 5 * GIB, 0.0);
            }
            changes.push(host.changes - before);
        }
        assert!(changes[3] * 2 <= changes[0].max(2), "{changes:?}");
    }

    /// Without I/O, memory that the cache may take but does not hold stays available.
    #[test]
    fn what_is_promised_is_not_promised_again() {
        let mut sizer = Sizer::new(LIMITS);
        let (mut now, held) = (Duration::ZERO, GIB / 8);
        let short = Reading { available: 0, total: 8 * GIB, waiting: 0.0 };
        assert_eq!(sizer.decide(now, short, held, &all_of_it).unwrap().to, LIMITS.min);
        // 64 MiB above an eighth.
        let spare = GIB / 16;
        let calm = Reading { available: GIB + spare, total: 8 * GIB, waiting: 0.0 };
        for _ in 0..120 {
            now += Duration::from_millis(500);
            sizer.decide(now, calm, held, &all_of_it);
        }
        assert!(sizer.target > held && sizer.target <= held + spare, "{}", sizer.target);
    }

    #[test]
    fn what_brings_no_hits_is_given_up_when_memory_is_neither_short_nor_plentiful_and_not_taken_again()
     {
        let mut sizer = Sizer::new(LIMITS);
        let mut now = Duration::ZERO;
        let mut run = |sizer: &mut Sizer, available, hit_ratio: HitRatio<'_>| {
            let mut changes = 0;
            for _ in 0..600 {
                now += Duration::from_millis(500);
                let reading = Reading { available, total: 8 * GIB, waiting: 0.0 };
                changes +=
                    usize::from(sizer.decide(now, reading, sizer.target, hit_ratio).is_some());
            }
            changes
        };
        let (tight, plenty) = (3 * GIB / 4, 4 * GIB);
        assert_eq!(run(&mut sizer, tight, &all_of_it), 0);
        assert_eq!(run(&mut sizer, tight, &|_| None), 0, "nothing is known");
        assert_eq!((run(&mut sizer, tight, &a_half_of_it), sizer.target), (8, GIB / 2));
        assert_eq!(run(&mut sizer, plenty, &a_half_of_it), 0);
        assert!(run(&mut sizer, plenty, &|_| None) > 0 && sizer.target == GIB);
    }
}
