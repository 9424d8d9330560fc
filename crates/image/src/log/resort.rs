//! When the re-sorting pass may work and what it may write, and what is told of it.

use std::str::FromStr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use flowstone_block::parse_size;

/// How long a budget lasts.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The pass works beside fewer requests a second.
const LIGHT_RATE: u32 = 4;
/// That many may come at once: a commit of a guest's file system is a few.
const LIGHT_BURST: u32 = 16;
/// More than light loads are forgotten in this time.
const FORGETS: Duration = Duration::from_secs(20);
/// What is asked for often comes in more requests than one: so long after each the pass waits.
const REST: Duration = Duration::from_millis(200);
/// Reads that are counted between two looks.
const READS_MAX: u32 = LIGHT_BURST + LIGHT_RATE * FORGETS.as_secs() as u32;

/// How much the re-sorting pass of a log image may write to the file in a day, copies, headers and
/// maps together. It puts blocks that guests have scattered in the order of their LBAs again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResortLimit {
    /// There is no such pass.
    #[default]
    Off,
    /// A tenth of the disk's size.
    Tenth,
    /// So many bytes.
    Bytes(u64),
}

impl ResortLimit {
    /// In bytes, for a disk of so many.
    pub const fn bytes(self, disk: u64) -> u64 {
        match self {
            Self::Off => 0,
            Self::Tenth => disk / 10,
            Self::Bytes(bytes) => bytes,
        }
    }
}

impl FromStr for ResortLimit {
    type Err = String;

    /// A size, or `off`.
    fn from_str(text: &str) -> Result<Self, String> {
        match (text, parse_size(text)) {
            ("off", _) => Ok(Self::Off),
            (_, Ok(bytes)) if bytes > 0 => Ok(Self::Bytes(bytes)),
            _ => {
                Err(format!("`{text}` is not an amount for a day; use a size such as 20G, or off"))
            }
        }
    }
}

/// What queues and the maintenance worker share.
#[derive(Debug, Default)]
pub struct Resorting {
    /// In bytes per day.
    limit: AtomicU64,
    reads: AtomicU32,
    written: AtomicU64,
    passes: AtomicU64,
}

impl Resorting {
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// A guest reads. Written a few times for each look, so that queues do not fight for the cache
    /// line.
    pub fn note_read(&self) {
        let reads = self.reads.load(Ordering::Relaxed);
        if reads < READS_MAX {
            self.reads.store(reads + 1, Ordering::Relaxed);
        }
    }

    /// How often guests have read since the last look, about, and up to [`READS_MAX`].
    pub fn take_reads(&self) -> u32 {
        match self.reads.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.reads.swap(0, Ordering::Relaxed),
        }
    }

    pub fn add(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn end_pass(&self) {
        self.passes.fetch_add(1, Ordering::Relaxed);
    }

    /// Bytes written by the pass since the image was opened.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// How often all of the disk has been gone through.
    pub fn passes(&self) -> u64 {
        self.passes.load(Ordering::Relaxed)
    }
}

/// What guests ask for: a bucket that leaks as fast as a light load fills it.
#[derive(Clone, Copy, Debug)]
pub struct GuestLoad {
    /// Requests in the bucket, when it was last looked at.
    level: f64,
    looked: Instant,
    /// When guests were last seen to have asked for something.
    asked: Instant,
}

impl GuestLoad {
    /// Nothing is known of what was before.
    pub const fn unknown(now: Instant) -> Self {
        Self { level: READS_MAX as f64, looked: now, asked: now }
    }

    /// Guests have made so many requests since the last look.
    pub fn look(&mut self, requests: u64, now: Instant) {
        let leaked =
            now.saturating_duration_since(self.looked).as_secs_f64() * f64::from(LIGHT_RATE);
        let level = (self.level - leaked).max(0.0) + requests as f64;
        self.level = level.min(READS_MAX.into());
        self.looked = now;
        if requests > 0 {
            self.asked = now;
        }
    }

    /// From when on the pass may work, if guests ask for nothing until then.
    pub fn is_light_at(&self) -> Instant {
        let excess = (self.level - f64::from(LIGHT_BURST)).max(0.0);
        let light = self.looked + Duration::from_secs_f64(excess / f64::from(LIGHT_RATE));
        light.max(self.asked + REST)
    }
}

/// What has been written in this day.
#[derive(Debug, Default)]
pub struct Budget {
    since: Option<Instant>,
    spent: u64,
}

impl Budget {
    /// Bytes that may still be written.
    pub fn left(&self, limit: u64, now: Instant) -> u64 {
        match self.since {
            Some(since) if now.duration_since(since) < DAY => limit.saturating_sub(self.spent),
            _ => limit,
        }
    }

    /// When something may be written: now, or when this day is over. Never without a limit above
    /// zero.
    pub fn next(&self, limit: u64, now: Instant) -> Option<Instant> {
        match self.since {
            _ if limit == 0 => None,
            Some(since) if self.left(limit, now) == 0 => Some(since + DAY),
            _ => Some(now),
        }
    }

    pub fn spend(&mut self, bytes: u64, now: Instant) {
        if self.since.is_none_or(|since| now.duration_since(since) >= DAY) {
            (self.since, self.spent) = (Some(now), 0);
        }
        self.spent += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_lasts_for_a_day() {
        let (mut budget, start) = (Budget::default(), Instant::now());
        assert_eq!(budget.left(100, start), 100);
        budget.spend(60, start);
        budget.spend(30, start + DAY / 2);
        assert_eq!(budget.left(100, start + DAY / 2), 10);
        budget.spend(30, start + DAY / 2);
        assert_eq!(budget.left(100, start + DAY * 9 / 10), 0);
        assert_eq!(budget.left(200, start + DAY * 9 / 10), 80, "changed meanwhile");
        assert_eq!(budget.left(100, start + DAY), 100);
        budget.spend(7, start + DAY);
        assert_eq!(budget.left(100, start + DAY), 93);
    }

    #[test]
    fn a_budget_that_is_used_up_is_there_again_when_its_day_is_over() {
        let (mut budget, start) = (Budget::default(), Instant::now());
        assert_eq!((budget.next(0, start), budget.next(100, start)), (None, Some(start)));
        budget.spend(90, start);
        let later = start + DAY / 2;
        assert_eq!(budget.next(100, later), Some(later));
        budget.spend(10, later);
        assert_eq!(budget.next(100, later), Some(start + DAY));
        assert_eq!(budget.next(100, start + DAY), Some(start + DAY));
        assert_eq!(budget.next(0, later), None);
    }

    #[test]
    fn limits_are_bytes_of_the_disk() {
        let of = |limit: ResortLimit| limit.bytes(1000);
        assert_eq!(of(ResortLimit::default()), 0);
        assert_eq!((of(ResortLimit::Tenth), of(ResortLimit::Bytes(7))), (100, 7));
    }

    #[test]
    fn reads_are_counted_up_to_what_matters() {
        let resorting = Resorting::default();
        assert_eq!(resorting.take_reads(), 0);
        (0..3).for_each(|_| resorting.note_read());
        assert_eq!((resorting.take_reads(), resorting.take_reads()), (3, 0));
        (0..1000).for_each(|_| resorting.note_read());
        assert_eq!(resorting.take_reads(), READS_MAX);
    }

    /// Milliseconds of a minute in which the pass may work beside requests that come so often, the
    /// first of them after a load that was not light.
    fn works_beside(requests: u64, each: Duration) -> u128 {
        let step = Duration::from_millis(10);
        let start = Instant::now();
        let (mut load, mut worked, mut next) = (GuestLoad::unknown(start), 0, start);
        for now in (0..6000).map(|number| start + step * number) {
            let comes = now >= next;
            if comes {
                next += each;
            }
            load.look(if comes { requests } else { 0 }, now);
            worked += u128::from(load.is_light_at() <= now) * step.as_millis();
        }
        worked
    }

    #[test]
    fn the_pass_works_beside_a_guest_that_asks_now_and_then_and_beside_no_other() {
        let (seconds, millis) = (Duration::from_secs, Duration::from_millis);
        let alone = works_beside(1, seconds(1000));
        assert!((39_900..40_100).contains(&alone), "20 s after a load that was not light: {alone}");
        assert!(works_beside(6, seconds(5)) > 25_000, "commits of a guest's file system");
        assert!(works_beside(1, seconds(1)) > 20_000);
        assert_eq!(works_beside(1, millis(190)), 0, "it never rests");
        assert_eq!(works_beside(5, seconds(1)), 0, "too many");
    }
}
