//! The way to the host: each answer takes a round trip, and its bytes their time on a link that all
//! share.

use std::time::{Duration, Instant};

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Link {
    round_trip: Duration,
    /// 0: as many as there are.
    bytes_per_second: u64,
    /// All that was sent so far has come through.
    free: Option<Instant>,
}

impl Link {
    /// Of this round trip and bandwidth (0: as much as there is).
    pub fn new(round_trip: Duration, bytes_per_second: u64) -> Self {
        Self { round_trip, bytes_per_second, free: None }
    }

    /// When something of so many bytes has come through that is sent now.
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
