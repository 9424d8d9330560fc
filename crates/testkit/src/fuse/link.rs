//! A simulated link to the host: each answer takes a round trip, plus the time of its bytes on a
//! shared link.

use std::time::{Duration, Instant};

/// The link; see the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Link {
    round_trip: Duration,
    /// Bandwidth; 0 means unlimited.
    bytes_per_second: u64,
    /// The time at which all bytes sent so far have passed.
    free: Option<Instant>,
}

impl Link {
    /// Makes a link of this round trip and bandwidth (0: unlimited).
    pub fn new(round_trip: Duration, bytes_per_second: u64) -> Self {
        Self { round_trip, bytes_per_second, free: None }
    }

    /// Returns the arrival time of `bytes` bytes that are sent now.
    pub fn arrival(&mut self, now: Instant, bytes: u64) -> Instant {
        let nanos = (bytes * 1_000_000_000).checked_div(self.bytes_per_second).unwrap_or_default();
        let free = self.free.map_or(now, |free| free.max(now)) + Duration::from_nanos(nanos);
        self.free = Some(free);
        free + self.round_trip
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_overlap_and_bytes_do_not() {
        let now = Instant::now();
        let mut link = Link::new(Duration::from_millis(1), 1_000_000);
        let after = |millis| now + Duration::from_millis(millis);
        assert_eq!(link.arrival(now, 2000), after(3));
        assert_eq!(link.arrival(now, 2000), after(5));
        assert_eq!(link.arrival(after(10), 0), after(11));
        let mut none = Link::default();
        assert_eq!(none.arrival(now, 1 << 30), now);
    }
}
