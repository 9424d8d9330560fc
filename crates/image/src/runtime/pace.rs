//! Throttles background work while guests are active.
//!
//! Each queue counts its requests in an activity counter. A background thread checks whether any
//! counter has moved since its last check, and if so, rests after each piece of work, because its
//! work competes with the guests for the file's locks, the disk and the processor.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Length of a rest as a multiple of the work before it: beside guests, one fifth of the time is
/// work.
const REST_PER_WORK: u32 = 4;
/// Minimum time charged for a piece of work: handing it over and taking its result costs the queues
/// time, too.
const WORK_MIN: Duration = Duration::from_micros(5);
/// Minimum length of a rest; shorter ones are accumulated: a timer is no finer.
const REST_MIN: Duration = Duration::from_micros(200);
/// Time without requests after which guests count as idle.
const QUIET_AFTER: Duration = Duration::from_millis(5);
/// Maximum length of a rest.
const REST_MAX: Duration = Duration::from_millis(50);

/// The requests of one queue, on a cache line of its own: only the queue's thread writes it.
#[derive(Default)]
#[repr(align(64))]
pub struct ActivityCounter(AtomicU64);

impl ActivityCounter {
    /// Counts a request.
    pub fn count(&self) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

/// The activity counters of all queues of an image.
#[derive(Default)]
pub struct Activity(Mutex<Vec<Weak<ActivityCounter>>>);

impl Activity {
    /// The counter of a new queue.
    pub fn counter(&self) -> Arc<ActivityCounter> {
        let counter = Arc::<ActivityCounter>::default();
        let mut counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counters.retain(|counter| counter.strong_count() > 0);
        counters.push(Arc::downgrade(&counter));
        counter
    }

    /// Returns a number that changes when a queue gets requests.
    fn requests(&self) -> u64 {
        let counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let requests = counters
            .iter()
            .filter_map(Weak::upgrade)
            .map(|counter| counter.0.load(Ordering::Relaxed));
        requests.fold(0, u64::wrapping_add)
    }
}

/// Computes the rests of a background thread.
#[derive(Default)]
pub struct Pace {
    seen: u64,
    /// When guests were last found active.
    seen_at: Option<Instant>,
    owed: Duration,
}

impl Pace {
    /// Returns how long to rest after work that took `work` and has just ended.
    pub fn rest(&mut self, work: Duration, now: Instant, activity: &Activity) -> Duration {
        let requests = activity.requests();
        if std::mem::replace(&mut self.seen, requests) != requests {
            self.seen_at = Some(now);
        } else if self.seen_at.is_none_or(|at| now.saturating_duration_since(at) > QUIET_AFTER) {
            self.owed = Duration::ZERO;
            return Duration::ZERO;
        }
        self.owed += work.max(WORK_MIN) * REST_PER_WORK;
        if self.owed < REST_MIN {
            return Duration::ZERO;
        }
        std::mem::take(&mut self.owed).min(REST_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: Duration = Duration::from_micros(60);

    #[test]
    fn beside_guests_short_rests_are_saved_up_and_long_ones_cut() {
        let (activity, mut pace, now) = (Activity::default(), Pace::default(), Instant::now());
        let counter = activity.counter();
        counter.count();
        let mut rest = |work| pace.rest(work, now, &activity);
        assert_eq!(rest(WORK / 2), Duration::ZERO);
        assert_eq!(rest(WORK), WORK * 6);
        assert_eq!(rest(WORK / 2), Duration::ZERO);
        assert_eq!(rest(Duration::from_secs(1)), REST_MAX);
        let rests = (0..10).map(|_| rest(Duration::ZERO)).sum::<Duration>();
        assert_eq!(rests, WORK_MIN * REST_PER_WORK * 10);
    }

    #[test]
    fn no_worker_rests_for_guests_that_have_been_quiet_for_a_while() {
        let (activity, mut pace, now) = (Activity::default(), Pace::default(), Instant::now());
        let counters = [activity.counter(), activity.counter()];
        let mut rest = |now| pace.rest(WORK, now, &activity);
        assert_eq!(rest(now), Duration::ZERO);
        counters[1].count();
        assert_eq!(rest(now), WORK * 4);
        assert_eq!(rest(now + QUIET_AFTER), WORK * 4);
        assert_eq!(rest(now + QUIET_AFTER * 2), Duration::ZERO);
    }
}
