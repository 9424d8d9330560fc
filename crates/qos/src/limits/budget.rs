//! What a disk or a group may spend: a bucket of requests and one of bytes.

use super::bucket::Bucket;
use crate::Limit;

/// What requests take of a budget, or owe it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    pub requests: u64,
    /// Bytes that they move: those of reads and writes. A discard or write-zeroes is one request
    /// without bytes.
    pub bytes: u64,
}

impl Cost {
    pub fn is_zero(self) -> bool {
        self == Self::default()
    }

    pub fn plus(self, other: Self) -> Self {
        self.each(other, u64::saturating_add)
    }

    /// What it is more than the other one.
    pub fn beyond(self, other: Self) -> Self {
        self.each(other, u64::saturating_sub)
    }

    fn each(self, other: Self, combine: fn(u64, u64) -> u64) -> Self {
        let requests = combine(self.requests, other.requests);
        Self { requests, bytes: combine(self.bytes, other.bytes) }
    }
}

/// See the module.
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

    /// The limit.
    pub const fn limit(&self) -> Limit {
        self.limit
    }

    /// When the next request may go.
    pub fn ready_at(&self) -> u64 {
        self.requests.ready_at().max(self.bytes.ready_at())
    }

    /// Spends what requests cost, which may be more than there is.
    pub fn take(&mut self, cost: Cost, now: u64) {
        self.requests.take(cost.requests, now);
        self.bytes.take(cost.bytes, now);
    }

    /// Gets back what has been taken and was not spent.
    pub fn give(&mut self, cost: Cost) {
        self.requests.give(cost.requests);
        self.bytes.give(cost.bytes);
    }

    /// How long that takes to come in, in nanoseconds; 0 without a limit.
    pub fn time_of(&self, cost: Cost) -> u64 {
        self.requests.time_of(cost.requests).max(self.bytes.time_of(cost.bytes))
    }

    /// What comes in within a time; at least one request and one byte.
    pub fn in_time(&self, ns: u64) -> Cost {
        Cost { requests: self.requests.tokens_in(ns), bytes: self.bytes.tokens_in(ns) }
    }

    /// As much of a cost as is limited here.
    pub fn counted(&self, cost: Cost) -> Cost {
        let count = |bucket: &Bucket, tokens| if bucket.is_limited() { tokens } else { 0 };
        let requests = count(&self.requests, cost.requests);
        Cost { requests, bytes: count(&self.bytes, cost.bytes) }
    }

    pub const fn counts_bytes(&self) -> bool {
        self.bytes.is_limited()
    }
}
