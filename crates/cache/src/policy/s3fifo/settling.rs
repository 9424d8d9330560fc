//! When the small queue of a cache gives what it has above its part to the main queue: once it is
//! full for the first time, after a change of shape, and after it has grown.

/// Blocks that go on to the main queue per eviction.
pub const MOVES_MAX: usize = 64;
/// Insertions, in capacities, after which a cache that grows to an earlier size settles again. One
/// that goes up and down would else take a part of a scan into the main queue each time.
const AGAIN_AFTER: u64 = 8;

/// See the module.
#[derive(Debug)]
pub struct Settling {
    pub is_due: bool,
    /// The capacity for which the queues have settled.
    capacity: usize,
    /// Blocks that had been taken in then.
    at: u64,
}

impl Settling {
    pub const fn new(capacity: usize) -> Self {
        Self { is_due: true, capacity, at: 0 }
    }

    /// Returns one that is never due: S3-FIFO as published.
    pub const fn never() -> Self {
        Self { is_due: false, capacity: usize::MAX, at: u64::MAX / 2 }
    }

    /// Reports a change of the capacity from `before` to `after`, and how many blocks have been
    /// taken in.
    pub const fn resized(&mut self, before: usize, after: usize, inserted: u64) {
        if inserted > self.at + AGAIN_AFTER * before as u64 {
            self.capacity = before;
        }
        if after > self.capacity {
            *self = Self { is_due: true, capacity: after, at: inserted };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_that_goes_up_and_down_settles_once_in_a_while() {
        let mut settling = Settling { is_due: false, ..Settling::new(1000) };
        let mut after = |before, after, inserted| {
            settling.resized(before, after, inserted);
            std::mem::take(&mut settling.is_due)
        };
        assert!(!after(1000, 500, 100));
        assert!(!after(500, 1000, 200), "it has settled for that");
        assert!(after(1000, 1500, 300));
        assert!(!after(1500, 500, 400));
        assert!(!after(500, 1500, 4300), "not long after");
        assert!(!after(1500, 500, 4400));
        assert!(after(500, 1500, 4401));
    }
}
