//! The limit of copies in memory: the minimum of the options, of what the guest's own memory
//! allows, and of the host's grant (M_g of the paper). Does no I/O.

use std::time::{Duration, Instant};

use flowstone_memory::message::Grant;
use flowstone_memory::mutated;
use flowstone_memory::sizer::{Limits, Reading, Sizer};

/// Divisor: copies may always take this part of the options' limit, however short memory is.
const MIN_OF: u64 = 16;
/// The longest lease that is accepted.
const LEASE_MAX: Duration = Duration::from_secs(300);

/// A limit and its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The limit in bytes.
    pub bytes: u64,
    /// `memory` or `size` (the options), `guest` (its memory is short), `host` (its grant).
    pub by: &'static str,
}

/// The limits of a mount; see the module.
pub struct Budgets {
    option: Budget,
    guest: Sizer,
    granted: Option<(Instant, u64)>,
}

impl Budgets {
    /// Starts with the limit of the options.
    pub fn new(option: Budget) -> Self {
        let limits = Limits { min: option.bytes / MIN_OF, max: option.bytes };
        Self { option, guest: Sizer::new(limits), granted: None }
    }

    /// Processes a reading of the guest's memory; the copies take `held` bytes.
    pub fn read(&mut self, at: Duration, reading: Reading, held: u64, curve: &[f64]) {
        let bytes_max = self.option.bytes;
        let hit_ratio = |bytes: u64| ratio_of(curve, bytes, bytes_max);
        self.guest.decide(at, reading, held, &hit_ratio);
    }

    /// Processes a grant of the host, which is valid for its lease.
    pub fn granted(&mut self, grant: &Grant, now: Instant) {
        let lease = Duration::from_secs(grant.lease_s).min(LEASE_MAX);
        self.granted = Some((now + lease, grant.bytes));
    }

    /// Returns the current limit.
    pub fn now(&self, now: Instant) -> Budget {
        let guest = Budget { bytes: self.guest.target(), by: "guest" };
        let holds =
            |end: Instant| mutated("guest.budget.keeps-a-lease-that-is-over", end > now, true);
        let granted = self.granted.filter(|(end, _)| holds(*end));
        let host = granted.map_or(self.option, |(_, bytes)| Budget { bytes, by: "host" });
        // Of equal limits the first is named.
        let least = |one: Budget, other: Budget| if other.bytes < one.bytes { other } else { one };
        least(least(self.option, guest), host)
    }
}

/// Interpolates a curve of points in equal steps up to `bytes_max`; `None` if it is empty.
fn ratio_of(points: &[f64], bytes: u64, bytes_max: u64) -> Option<f64> {
    let last = points.len().checked_sub(1)?;
    let place = bytes as f64 / bytes_max.max(1) as f64 * points.len() as f64;
    let before = if place < 1.0 { 0.0 } else { points[(place as usize - 1).min(last)] };
    let after = points[(place as usize).min(last)];
    Some(before + (after - before) * place.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const OPTION: Budget = Budget { bytes: 256 * MIB, by: "memory" };
    const PLENTY: Reading = Reading { available: 512 * MIB, total: 1024 * MIB, waiting: 0.0 };

    fn grant(bytes: u64, lease_s: u64) -> Grant {
        Grant { bytes, lease_s, reason: String::new() }
    }

    #[test]
    fn the_least_of_three_counts() {
        let (mut budgets, start) = (Budgets::new(OPTION), Instant::now());
        assert_eq!(budgets.now(start), OPTION);
        budgets.granted(&grant(1024 * MIB, 30), start);
        assert_eq!(budgets.now(start), OPTION);
        budgets.granted(&grant(64 * MIB, 30), start);
        assert_eq!(budgets.now(start), Budget { bytes: 64 * MIB, by: "host" });
        let short = Reading { available: 0, ..PLENTY };
        budgets.read(Duration::ZERO, short, 256 * MIB, &[]);
        assert_eq!(budgets.now(start).by, "host");
        budgets.granted(&grant(200 * MIB, 30), start);
        assert_eq!(budgets.now(start), Budget { bytes: 128 * MIB, by: "guest" });
    }

    /// A guest would stay small forever because its host died.
    #[test]
    fn a_grant_ends_with_its_lease() {
        let (mut budgets, start) = (Budgets::new(OPTION), Instant::now());
        budgets.granted(&grant(MIB, 30), start);
        assert_eq!(budgets.now(start + Duration::from_secs(29)).bytes, MIB);
        assert_eq!(budgets.now(start + Duration::from_secs(31)), OPTION);
        budgets.granted(&grant(MIB, u64::MAX), start);
        assert_eq!(budgets.now(start + LEASE_MAX), OPTION);
    }

    #[test]
    fn a_curve_is_read_between_its_points() {
        let points = [0.2, 0.4, 0.4, 0.8];
        let at = |bytes| ratio_of(&points, bytes, 400).unwrap();
        assert_eq!([at(0), at(100), at(200), at(400)], [0.0, 0.2, 0.4, 0.8]);
        assert!((at(50) - 0.1).abs() < 1e-9 && (at(350) - 0.6).abs() < 1e-9);
        assert_eq!(ratio_of(&[], 7, 400), None);
    }
}
