//! State of a disk at a device, and the definition of an active disk.

use super::super::demand::Demand;

/// Idle time after which a disk with no I/O in flight is inactive.
pub const ACTIVE_FOR_NS: u64 = 200_000_000;
/// Longest interval of periodic requests; a disk with such intervals stays active for twice its
/// recent ones. Otherwise each of its requests would find the device filled with the requests of
/// others.
const INTERVAL_MAX_NS: u64 = 1_000_000_000;
/// Time without a completion after which a disk with I/O in flight is inactive.
const HUNG_NS: u64 = 1_000_000_000;
/// Time without a completion after which a disk stalls; see the scheduler.
pub const STALLED_NS: u64 = 100_000_000;

/// Time after a completion within which a disk that continues sends its next request: about a time
/// slice that its guest, or our thread, may have to wait for the CPU.
pub const EXPECTED_NS: u64 = 4_000_000;

/// State of a disk at the device.
#[derive(Default)]
pub struct DiskState {
    pub on_their_way: usize,
    pub waiting: usize,
    /// As of the last census, unless something has completed since.
    pub is_stalled: bool,
    /// Whether the disk is active, as of the last census.
    pub is_counted: bool,
    pub demand: Demand,
    /// Time of the last completion, or of a send while nothing was in flight.
    moved_at: u64,
    /// Time of the last activity.
    active_at: Option<u64>,
    /// Time for which it stays active after that.
    active_for: u64,
}

impl DiskState {
    pub fn asked(&mut self, now: u64) {
        let interval = self.active_at.replace(now).map_or(u64::MAX, |at| now.saturating_sub(at));
        self.active_for = match interval {
            // While a disk works it is touched every few milliseconds, which is no interval, so the
            // value decays slowly.
            0..=INTERVAL_MAX_NS => (2 * interval).max(self.active_for - self.active_for / 8),
            _ => 0,
        };
    }

    pub fn sent(&mut self, requests: usize, now: u64) {
        if self.on_their_way == 0 && requests > 0 {
            self.moved_at = now;
        }
        self.on_their_way += requests;
    }

    pub fn came_back(&mut self, requests: usize, now: u64) {
        self.on_their_way -= requests;
        self.moved_at = now;
    }

    pub const fn stalls_at(&self) -> u64 {
        self.moved_at.saturating_add(STALLED_NS)
    }

    /// Returns whether it has I/O in flight, or has just had a completion.
    pub fn is_expected(&self, now: u64) -> bool {
        let is_fresh = self.active_at.is_some() && now.saturating_sub(self.moved_at) < EXPECTED_NS;
        self.on_their_way > 0 || is_fresh
    }

    pub fn is_active(&self, now: u64) -> bool {
        let is_served = self.on_their_way > 0 && now.saturating_sub(self.moved_at) < HUNG_NS;
        let active_for = self.active_for.max(ACTIVE_FOR_NS);
        is_served || self.active_at.is_some_and(|at| now.saturating_sub(at) < active_for)
    }
}
