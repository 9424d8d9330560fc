//! Limits the CPU time of the daemon, or of one disk.
//!
//! A leaky bucket: CPU time is charged after it was used. Each charge advances the time at which
//! all use is paid for, and a thread rests until then. Unused credit is kept for 10 ms only, so a
//! burst after an idle period does not exceed the share for long.

use std::str::FromStr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use flowstone_block::lock;
use rustix::time::{ClockId, clock_gettime};

/// Wall-clock time for which unused credit is kept.
const CREDIT: Duration = Duration::from_millis(10);
/// Shorter rests are deferred: they would cost more than they save.
const REST_MIN: Duration = Duration::from_micros(500);
/// Longer rests are cut to this: stopping and moving queues wait for them.
const REST_MAX: Duration = Duration::from_millis(100);

/// A share of one CPU's time: `50%` is half of one, `150%` one and a half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuShare {
    percent: u32,
}

impl CpuShare {
    /// Returns the share in CPUs.
    fn cpus(self) -> f64 {
        f64::from(self.percent) / 100.0
    }
}

impl FromStr for CpuShare {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let percent = text.strip_suffix('%').and_then(|number| number.parse().ok());
        match percent {
            Some(percent @ 1..=100_000) => Ok(Self { percent }),
            _ => Err(format!("`{text}` is not a CPU budget; write e.g. 50% or 150%")),
        }
    }
}

/// The CPU budget of one disk's queues.
pub struct CpuBudget {
    share: CpuShare,
    /// Time at which all use so far is paid for.
    paid: Mutex<Instant>,
}

impl CpuBudget {
    /// Makes a budget of which nothing is used.
    pub fn new(share: CpuShare) -> Self {
        Self { share, paid: Mutex::new(Instant::now()) }
    }

    /// Charges `used`. Returns the end of the rest that this requires, if it is long enough to be
    /// worth taking.
    pub fn charge(&self, used: Duration, now: Instant) -> Option<Instant> {
        let mut paid = lock(&self.paid);
        let from = now.checked_sub(CREDIT).map_or(*paid, |oldest| oldest.max(*paid));
        *paid = from + used.div_f64(self.share.cpus());
        let rest = paid.saturating_duration_since(now);
        (rest >= REST_MIN).then(|| now + rest.min(REST_MAX))
    }
}

/// The CPU budget of the whole process.
pub struct ProcessBudget {
    budget: CpuBudget,
    /// CPU time of the process that has been charged.
    charged: Mutex<Duration>,
}

impl ProcessBudget {
    /// Makes a budget; CPU time used before is not charged.
    pub fn new(share: CpuShare) -> Self {
        Self { budget: CpuBudget::new(share), charged: Mutex::new(process_time()) }
    }

    /// Charges the CPU time that all threads have used since the last call by any of them. Returns
    /// the end of the rest that this requires, if any.
    pub fn charge(&self, now: Instant) -> Option<Instant> {
        let mut charged = lock(&self.charged);
        let total = process_time();
        let used = total.saturating_sub(*charged);
        *charged = total;
        self.budget.charge(used, now)
    }
}

fn process_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(text: &str) -> CpuBudget {
        CpuBudget::new(text.parse().unwrap())
    }

    /// Simulates work in slices of 100 us for two seconds. Returns the CPU time used.
    fn used(budget: &CpuBudget) -> Duration {
        const WORK: Duration = Duration::from_micros(100);
        let start = Instant::now() + Duration::from_secs(1);
        let (mut now, mut used) = (start, Duration::ZERO);
        while now < start + Duration::from_secs(2) {
            now += WORK;
            used += WORK;
            now = budget.charge(WORK, now).unwrap_or(now);
        }
        used
    }

    #[test]
    fn one_thread_uses_its_share_to_the_hundredth() {
        for percent in [5, 30, 80] {
            let share = used(&budget(&format!("{percent}%"))).as_secs_f64() / 2.0;
            let wanted = f64::from(percent) / 100.0;
            // The credit from before the start, and one slice.
            let spare = wanted * CREDIT.as_secs_f64() / 2.0 + 0.001;
            assert!(share >= wanted - 0.001 && share <= wanted + spare, "{percent} %: {share}");
        }
    }

    #[test]
    fn a_share_of_more_than_the_work_never_rests() {
        let budget = budget("150%");
        assert_eq!(used(&budget), Duration::from_secs(2));
    }

    /// A pause of an hour must not allow an hour's work at once.
    #[test]
    fn credit_is_not_saved_up() {
        let budget = budget("50%");
        let later = Instant::now() + Duration::from_secs(3600);
        assert_eq!(budget.charge(Duration::from_millis(4), later), None);
        assert!(budget.charge(Duration::from_millis(4), later).is_some());
    }

    /// A thread that rests must hear an order to stop soon.
    #[test]
    fn a_rest_is_never_long() {
        let now = Instant::now();
        let until = budget("1%").charge(Duration::from_secs(1), now).unwrap();
        assert_eq!(until - now, REST_MAX);
    }

    #[test]
    fn what_all_threads_use_is_charged() {
        let budget = ProcessBudget::new("1%".parse().unwrap());
        let start = process_time();
        std::thread::scope(|scope| {
            scope.spawn(|| while process_time() - start < Duration::from_millis(3) {});
        });
        assert!(budget.charge(Instant::now()).is_some());
    }

    #[test]
    fn shares_are_percentages() {
        assert!("150%".parse::<CpuShare>().is_ok());
        for text in ["150", "0%", "%", "-5%", "1.5", "100001%"] {
            assert!(text.parse::<CpuShare>().is_err(), "{text} was accepted");
        }
    }
}
