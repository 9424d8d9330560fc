//! How long a device may be idle for a VM that is expected to send again, although others wait.
//!
//! A device that is kept for a VM whose requests have just completed gives that VM its part. But
//! the VM may pause for longer, as one that sends a burst every few milliseconds does. So idle time
//! is bounded: by a ninth of all, and [`EXPECTED_NS`] at a time. When it is used up, no VM is
//! expected that has nothing in flight, until the device has worked for a while.

use flowstone_block::mutated;

use super::state::EXPECTED_NS;

/// Time at work that earns a nanosecond of idle time.
const EARNED_IN: u64 = 8;
/// Idle time that must be there before a VM is expected again: seldom is better than often, since
/// each end of a wait takes a wake-up.
const AGAIN_NS: u64 = EXPECTED_NS / 8;

/// The idle time that is left.
pub struct Patience {
    left_ns: u64,
    is_out: bool,
    looked_at: u64,
    state: State,
}

/// What the device did after the last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Works,
    /// It is idle for want of requests.
    Free,
    /// It is idle, and requests wait.
    Kept,
}

impl Default for Patience {
    fn default() -> Self {
        Self { left_ns: EXPECTED_NS, is_out: false, looked_at: 0, state: State::Free }
    }
}

impl Patience {
    /// Counts the time since the last look.
    pub fn pass(&mut self, now: u64) {
        let time = now.saturating_sub(self.looked_at);
        // Threads read the clock before they take the lock.
        self.looked_at = self.looked_at.max(now);
        match self.state {
            State::Works => self.left_ns = (self.left_ns + time / EARNED_IN).min(EXPECTED_NS),
            State::Kept => {
                let used = mutated("qos.patience.is-endless", time, 0);
                self.left_ns = self.left_ns.saturating_sub(used);
            }
            State::Free => {}
        }
        let least = if self.is_out { AGAIN_NS } else { 1 };
        let is_out = mutated("qos.patience.there-is-none", self.left_ns < least, true);
        self.is_out = is_out;
    }

    /// Notes what the device does from now on.
    pub fn look(&mut self, works: bool, is_kept: bool) {
        self.state = match (works, is_kept) {
            (true, _) => State::Works,
            (_, true) => State::Kept,
            _ => State::Free,
        };
    }

    /// Returns whether it is used up.
    pub const fn is_out(&self) -> bool {
        self.is_out
    }

    /// Returns when it is used up, while the device is kept idle.
    pub fn ends_at(&self) -> Option<u64> {
        let is_kept = self.state == State::Kept && !self.is_out;
        is_kept.then(|| self.looked_at + self.left_ns)
    }
}
