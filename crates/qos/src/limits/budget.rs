//! The budget of a disk or a group: a bucket of requests and one of bytes.

use super::bucket::Bucket;
use crate::Limit;

/// The cost of requests to a budget, or a debt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    pub requests: u64,
    /// Bytes moved by reads and writes. A discard or write-zeroes is one request without bytes.
    pub bytes: u64,
}

impl Cost {
    pub fn is_zero(self) -> bool {
        self == Self::default()
    }

    pub fn plus(self, other: Self) -> Self {
        self.each(other, u64::saturating_add)
    }

    /// Returns the excess of this cost over another one.
    pub fn beyond(self, other: Self) -> Self {
        self.each(other, u64::saturating_sub)
    }

    fn each(self, other: Self, combine: fn(u64, u64) -> u64) -> Self {
        let requests = combine(self.requests, other.requests);
        Self { requests, bytes: combine(self.bytes, other.bytes) }
    }
}

/// A bucket of requests and one of bytes.
#[derive(Clone, Debug)]
pub struct Budget {
    limit: Limit,
    requests: Bucket,
    bytes: Bucket,
}

impl Default for Budget {
    /// Without a limit.
    fn default() -> Self {
        Self { limit: Limit::NONE, requests: Bucket::default(), bytes: Bucket::default() }
    }
}

impl Budget {
    /// Sets the limit.
    pub fn set(&mut self, limit: Limit, now: u64) {
        self.limit = limit;
        self.requests.set(limit.iops, limit.burst, now);
        self.bytes.set(limit.bytes_per_s, limit.burst, now);
    }

    /// Returns the limit.
    pub const fn limit(&self) -> Limit {
        self.limit
    }

    /// Returns the time from which the next request may be taken.
    pub fn ready_at(&self) -> u64 {
        self.requests.ready_at().max(self.bytes.ready_at())
    }

    /// Takes the cost of requests, which may exceed what is available.
    pub fn take(&mut self, cost: Cost, now: u64) {
        self.requests.take(cost.requests, now);
        self.bytes.take(cost.bytes, now);
    }

    /// Returns a cost that was taken and not spent.
    pub fn give(&mut self, cost: Cost) {
        self.requests.give(cost.requests);
        self.bytes.give(cost.bytes);
    }

    /// Returns the time in which a cost comes in, in nanoseconds; 0 without a limit.
    pub fn time_of(&self, cost: Cost) -> u64 {
        self.requests.time_of(cost.requests).max(self.bytes.time_of(cost.bytes))
    }

    /// Returns the cost that comes in within a time; at least one request and one byte.
    pub fn in_time(&self, ns: u64) -> Cost {
        Cost { requests: self.requests.tokens_in(ns), bytes: self.bytes.tokens_in(ns) }
    }

    /// Returns the part of a cost that is limited here.
    pub fn counted(&self, cost: Cost) -> Cost {
        let count = |bucket: &Bucket, tokens| if bucket.is_limited() { tokens } else { 0 };
        let requests = count(&self.requests, cost.requests);
        Cost { requests, bytes: count(&self.bytes, cost.bytes) }
    }

    pub const fn counts_bytes(&self) -> bool {
        self.bytes.is_limited()
    }
}
