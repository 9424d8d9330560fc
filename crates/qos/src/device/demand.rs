//! How much a disk wants to have at a device at once: the most that it had there, or waiting, lately.

/// Peaks are those of this long, and of as long before.
const SPAN_NS: u64 = 100_000_000;
/// Weight of the newest request in the mean cost: 1/8.
const SMOOTHING_LOG2: u32 = 3;

/// See the module.
#[derive(Default)]
pub struct Demand {
    since: u64,
    most: usize,
    most_before: usize,
    /// Mean cost of a request.
    cost: u64,
}

impl Demand {
    /// A request of this cost has come, and so many are at the device or wait.
    pub fn note(&mut self, requests: usize, cost: u64, now: u64) {
        if now.saturating_sub(self.since) >= SPAN_NS {
            (self.since, self.most_before, self.most) = (now, self.most, 0);
        }
        self.most = self.most.max(requests);
        self.cost = match self.cost {
            0 => cost,
            mean => mean - (mean >> SMOOTHING_LOG2) + (cost >> SMOOTHING_LOG2),
        };
    }

    /// The cost of all that it wants to have there.
    pub fn cost(&self) -> u64 {
        self.cost.saturating_mul(self.most.max(self.most_before) as u64)
    }
}
