//! What a disk or a group may spend: a bucket of requests and one of bytes.

use super::bucket::Bucket;
use crate::Limit;

/// What a request takes of a budget. A flush takes nothing and is not asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Bytes that it moves: those of a read or write. A discard or write-zeroes is one request without
    /// bytes.
    pub bytes: u64,
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

    /// Spends what a request costs, which may be more than there is.
    pub fn take(&mut self, cost: Cost, now: u64) {
        self.requests.take(1, now);
        self.bytes.take(cost.bytes, now);
    }

    /// How long that takes to come in, in nanoseconds; 0 without a limit.
    pub fn time_of(&self, cost: Cost) -> u64 {
        self.requests.time_of(1).max(self.bytes.time_of(cost.bytes))
    }
}
