//! How many lines a cause that repeats may write to the log.
//!
//! Guests and strangers can make some lines be written as often as they like: by breaking their
//! queue, by connecting and hanging up. A budget lets the first ones through, then a few per
//! minute, and counts the rest.

use std::time::{Duration, Instant};

/// Lines that may come at once.
const BURST: u32 = 20;
/// The time after which one more line may come.
const REFILL: Duration = Duration::from_secs(10);

/// The budget of one cause of one disk.
#[derive(Debug)]
pub struct LogBudget {
    left: u32,
    refilled: Instant,
    unsaid: u64,
}

impl Default for LogBudget {
    fn default() -> Self {
        Self::new()
    }
}

impl LogBudget {
    /// A full budget.
    #[must_use]
    pub fn new() -> Self {
        Self { left: BURST, refilled: Instant::now(), unsaid: 0 }
    }

    /// Asks for a line. `Some` allows it, and says how many were kept back since the last one.
    pub fn spend(&mut self) -> Option<u64> {
        self.spend_at(Instant::now())
    }

    fn spend_at(&mut self, now: Instant) -> Option<u64> {
        let periods = now.saturating_duration_since(self.refilled).as_secs() / REFILL.as_secs();
        if periods > 0 {
            self.left = self.left.saturating_add(periods.min(u64::from(BURST)) as u32).min(BURST);
            self.refilled = now;
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Some(std::mem::take(&mut self.unsaid))
            }
            None => {
                self.unsaid += 1;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_becomes_a_burst_and_then_a_line_now_and_then() {
        let mut budget = LogBudget::new();
        let start = budget.refilled;
        let lines = (0..1000).filter(|_| budget.spend_at(start).is_some()).count();
        assert_eq!(lines, BURST as usize);
        assert_eq!(budget.spend_at(start + REFILL), Some(1000 - u64::from(BURST)));
        assert_eq!(budget.spend_at(start + REFILL), None);
        let later = start + REFILL * 1000;
        let lines = (0..1000).filter(|_| budget.spend_at(later).is_some()).count();
        assert_eq!(lines, BURST as usize, "a pause saves up no more than a burst");
    }
}
