//! Limits and statistics of the re-sorting pass.

use std::str::FromStr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use flowstone_block::parse_size;

/// Period of a budget.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Maximum load, in requests per second, beside which the pass works.
const LIGHT_RATE: u32 = 4;
/// Requests that may come at once within a light load: a commit of a guest's file system is a few.
const LIGHT_BURST: u32 = 16;
/// Time after which a higher load is forgotten.
const FORGETS: Duration = Duration::from_secs(20);
/// Rest after each guest request: one request often is followed by more.
const REST: Duration = Duration::from_millis(200);
/// Maximum number of reads counted between two looks.
const READS_MAX: u32 = LIGHT_BURST + LIGHT_RATE * FORGETS.as_secs() as u32;

/// Bytes that the re-sorting pass of a log image may write to the file in a day: copies, headers
/// and maps. The pass puts blocks that guests have scattered back in LBA order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResortLimit {
    /// No re-sorting.
    #[default]
    Off,
    /// A tenth of the disk's size.
    Tenth,
    /// A number of bytes.
    Bytes(u64),
}

impl ResortLimit {
    /// Returns the limit in bytes, for a disk of `disk` bytes.
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

    /// Parses a size, or `off`.
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

/// State shared by queues and the maintenance worker.
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

    /// Counts a read of a guest. Writes at most [`READS_MAX`] times between two looks, so that
    /// queues do not contend for the cache line.
    pub fn note_read(&self) {
        let reads = self.reads.load(Ordering::Relaxed);
        if reads < READS_MAX {
            self.reads.store(reads + 1, Ordering::Relaxed);
        }
    }

    /// Returns and resets the approximate number of guest reads since the last look, up to
    /// [`READS_MAX`].
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

    /// Returns the bytes written by the pass since the image was opened.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Returns the number of completed passes over the disk.
    pub fn passes(&self) -> u64 {
        self.passes.load(Ordering::Relaxed)
    }
}

/// Load of the guests: a leaky bucket with the rate of a light load.
#[derive(Clone, Copy, Debug)]
pub struct GuestLoad {
    /// Requests in the bucket at the last look.
    level: f64,
    looked: Instant,
    /// When requests of guests were last seen.
    asked: Instant,
}

impl GuestLoad {
    /// A full bucket: the load before `now` is unknown.
    pub const fn unknown(now: Instant) -> Self {
        Self { level: READS_MAX as f64, looked: now, asked: now }
    }

    /// Adds the requests made since the last look.
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

    /// Returns when the pass may work, if guests make no request until then.
    pub fn is_light_at(&self) -> Instant {
        let excess = (self.level - f64::from(LIGHT_BURST)).max(0.0);
        let light = self.looked + Duration::from_secs_f64(excess / f64::from(LIGHT_RATE));
        light.max(self.asked + REST)
    }
}

/// Bytes written in the current day.
#[derive(Debug, Default)]
pub struct Budget {
    since: Option<Instant>,
    spent: u64,
}

impl Budget {
    /// Returns the bytes that may still be written.
    pub fn left(&self, limit: u64, now: Instant) -> u64 {
        match self.since {
            Some(since) if now.duration_since(since) < DAY => limit.saturating_sub(self.spent),
            _ => limit,
        }
    }

    /// Returns when something may be written: now, or when the current day is over. `None` if the
    /// limit is zero.
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

    /// Returns the milliseconds of a minute in which the pass may work beside requests that come at
    /// this interval, after a load that was not light.
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
