//! What the idle-time pass that puts blocks in order may write, and what is told of it.

use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use flowstone_block::parse_size;

/// How long a budget lasts.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How much the idle-time pass of a log image may write to the file in a day, copies, headers and
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
    read: AtomicBool,
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

    /// A guest reads. Written once for each look, so that queues do not fight for the cache line.
    pub fn note_read(&self) {
        if !self.read.load(Ordering::Relaxed) {
            self.read.store(true, Ordering::Relaxed);
        }
    }

    /// Whether guests have read since the last look.
    pub fn take_read(&self) -> bool {
        self.read.load(Ordering::Relaxed) && self.read.swap(false, Ordering::Relaxed)
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
    fn a_read_is_seen_once() {
        let resorting = Resorting::default();
        assert!(!resorting.take_read());
        resorting.note_read();
        resorting.note_read();
        assert!(resorting.take_read() && !resorting.take_read());
    }
}
