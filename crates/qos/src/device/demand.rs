//! The queue depth that a disk wants at a device: the mean of its requests in flight and waiting.

/// Age after which a demand is forgotten.
const FORGOTTEN_NS: u64 = 200_000_000;
/// Levels are kept in 256ths of a request.
const SCALE: u64 = 256;

/// Moving averages, with weight 1/8 for the newest value, 1/4 for a level that falls: a disk that
/// has become modest must be recognised soon.
#[derive(Default)]
pub struct Demand {
    noted_at: u64,
    level: u64,
    cost: u64,
}

impl Demand {
    /// Records the cost of a new request.
    pub fn note_cost(&mut self, cost: u64) {
        self.cost = match self.cost {
            0 => cost,
            mean => mean - mean / 8 + cost / 8,
        };
    }

    /// Records the number of requests in flight and waiting, after a batch has arrived.
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

    /// Returns the number of requests wanted at the device.
    pub fn requests(&self) -> f64 {
        self.level as f64 / SCALE as f64
    }

    /// Returns the mean cost of a request.
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
