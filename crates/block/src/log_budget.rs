//! A rate limit for log lines of one repeating cause.
//!
//! Guests and local processes can cause some log lines at will: by breaking their queue, by
//! connecting and hanging up. A budget lets the first lines through, then a few per minute, and
//! counts the suppressed rest.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

/// Lines that may be written in a burst.
const BURST: u32 = 20;
/// The time after which one more line may be written.
const REFILL: Duration = Duration::from_secs(10);

/// The budget of one cause of one disk.
#[derive(Debug)]
pub struct LogBudget {
    burst: u32,
    left: u32,
    refilled: Instant,
    unsaid: u64,
}

impl Default for LogBudget {
    /// Makes a full budget.
    fn default() -> Self {
        Self::of(BURST)
    }
}

impl LogBudget {
    /// Makes a budget for a line that is always the same: a burst of one.
    #[must_use]
    pub fn of_one() -> Self {
        Self::of(1)
    }

    fn of(burst: u32) -> Self {
        Self { burst, left: burst, refilled: Instant::now(), unsaid: 0 }
    }

    /// Asks for a line. `Some` allows it, with the number of lines suppressed since the last one;
    /// an inner `None` if there were none, so that the log field is omitted.
    pub fn spend(&mut self) -> Option<Option<NonZeroU64>> {
        self.spend_at(Instant::now())
    }

    fn spend_at(&mut self, now: Instant) -> Option<Option<NonZeroU64>> {
        let periods = now.saturating_duration_since(self.refilled).as_secs() / REFILL.as_secs();
        if periods > 0 {
            let more = periods.min(u64::from(self.burst)) as u32;
            self.left = self.left.saturating_add(more).min(self.burst);
            self.refilled = now;
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Some(NonZeroU64::new(std::mem::take(&mut self.unsaid)))
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
        let mut budget = LogBudget::default();
        let start = budget.refilled;
        let lines = (0..1000).filter(|_| budget.spend_at(start).is_some()).count();
        assert_eq!(lines, BURST as usize);
        let unsaid = NonZeroU64::new(1000 - u64::from(BURST));
        assert_eq!(budget.spend_at(start + REFILL), Some(unsaid));
        assert_eq!(budget.spend_at(start + REFILL), None);
        let later = start + REFILL * 1000;
        let lines = (0..1000).filter(|_| budget.spend_at(later).is_some()).count();
        assert_eq!(lines, BURST as usize, "a pause saves up no more than a burst");
        assert_eq!(LogBudget::default().spend(), Some(None), "nothing was kept back");
        let mut budget = LogBudget::of_one();
        let start = budget.refilled;
        assert_eq!((0..9).filter(|_| budget.spend_at(start).is_some()).count(), 1);
    }
}
