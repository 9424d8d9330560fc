//! How much a disk wants to have at a device at once: what it usually has there, or waiting.

/// What was wanted so long ago is not wanted any more.
const FORGOTTEN_NS: u64 = 200_000_000;
/// Levels are kept in 256ths of a request.
const SCALE: u64 = 256;

/// See the module. Means, in which the newest value has a weight of 1/8; of a level that falls,
/// 1/4: a disk that has become modest is to be known as such soon.
#[derive(Default)]
pub struct Demand {
    noted_at: u64,
    level: u64,
    cost: u64,
}

impl Demand {
    /// A request of this cost has come.
    pub fn note_cost(&mut self, cost: u64) {
        self.cost = match self.cost {
            0 => cost,
            mean => mean - mean / 8 + cost / 8,
        };
    }

    /// After a batch has come: so many requests are at the device or wait.
    pub fn note_level(&mut self, requests: usize, now: u64) {
        let level = requests as u64 * SCALE;
        let is_known = self.level > 0 && now.saturating_sub(self.noted_at) < FORGOTTEN_NS;
        self.noted_at = now;
        self.level = match self.level {
            _ if !is_known => level,
            mean if level < mean => mean - (mean - level).div_ceil(4),
            mean => mean + (level - mean) / 8,
        };
    }

    /// How many requests it wants there.
    pub fn requests(&self) -> f64 {
        self.level as f64 / SCALE as f64
    }

    /// Mean cost of one.
    pub fn cost(&self) -> f64 {
        self.cost as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_disk_is_known_by_what_it_usually_has_there() {
        let mut demand = Demand::default();
        (0..100).for_each(|at| demand.note_level(32 - at % 4, at as u64 * MS));
        assert!((29.0..32.0).contains(&demand.requests()), "{}", demand.requests());
    }

    #[test]
    fn a_burst_of_a_modest_disk_is_soon_forgotten() {
        let mut demand = Demand::default();
        (0..50).for_each(|at| demand.note_level(1, at * MS));
        demand.note_level(64, 50 * MS);
        (51..63).for_each(|at| demand.note_level(1, at * MS));
        assert!(demand.requests() < 1.5, "{}", demand.requests());
    }

    #[test]
    fn what_was_wanted_long_ago_is_not_wanted() {
        let mut demand = Demand::default();
        demand.note_level(128, MS);
        demand.note_level(1, 3_600_000 * MS);
        assert!((demand.requests() - 1.0).abs() < f64::EPSILON);
    }
}
