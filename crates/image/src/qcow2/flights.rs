//! Who still uses the host clusters that were in the map a while ago.
//!
//! Time is cut into generations; a commit begins a new one. A request enters the present one when
//! it looks into the map, under the map's lock, and leaves it when its I/O is done. A cluster that
//! the map dropped in some generation may get another use when everybody who entered in that one
//! or before has left.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Everybody who does I/O on behalf of requests.
#[derive(Default)]
pub struct Flights {
    logs: Mutex<Vec<Weak<AtomicU64>>>,
}

/// One queue's or thread's requests in flight.
pub struct FlightLog {
    /// Generations with requests in flight, and how many, from the oldest on.
    counts: VecDeque<(u64, usize)>,
    /// The oldest one, for others to see.
    oldest: Arc<AtomicU64>,
}

const NONE: u64 = u64::MAX;

impl Flights {
    /// A log for another queue or thread.
    pub fn log(&self) -> FlightLog {
        let oldest = Arc::new(AtomicU64::new(NONE));
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        logs.retain(|log| log.strong_count() > 0);
        logs.push(Arc::downgrade(&oldest));
        FlightLog { counts: VecDeque::new(), oldest }
    }

    /// The oldest generation in which something is in flight. To be called after the map's lock
    /// has been taken and given back since the generation in question ended.
    pub fn oldest(&self) -> u64 {
        let logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        let alive = logs.iter().filter_map(Weak::upgrade);
        alive.map(|log| log.load(Ordering::Acquire)).min().unwrap_or(NONE)
    }
}

impl FlightLog {
    /// A request enters; to be called under the map's lock, from which `generation` is.
    pub fn enter(&mut self, generation: u64) {
        match self.counts.back_mut() {
            Some((last, count)) if *last == generation => *count += 1,
            _ => self.counts.push_back((generation, 1)),
        }
        self.publish();
    }

    /// A request that entered in this generation is done with its I/O.
    pub fn leave(&mut self, generation: u64) {
        let found = self.counts.iter_mut().find(|(entered, _)| *entered == generation);
        found.expect("a request leaves after it has entered").1 -= 1;
        while self.counts.front().is_some_and(|(_, count)| *count == 0) {
            self.counts.pop_front();
        }
        self.publish();
    }

    fn publish(&self) {
        let oldest = self.counts.front().map_or(NONE, |(generation, _)| *generation);
        self.oldest.store(oldest, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_generation_ends_when_its_last_request_leaves() {
        let flights = Flights::default();
        let (mut one, mut other) = (flights.log(), flights.log());
        assert_eq!(flights.oldest(), NONE);
        one.enter(3);
        one.enter(3);
        other.enter(4);
        one.enter(5);
        one.leave(3);
        assert_eq!(flights.oldest(), 3);
        one.leave(3);
        assert_eq!(flights.oldest(), 4);
        drop(other);
        assert_eq!(flights.oldest(), 5);
    }
}
